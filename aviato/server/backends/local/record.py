"""Steps of a plan as system calls, for compiled code to make them in their order: `birth.c`."""

from __future__ import annotations

import errno
import functools
import os
import resource
import socket
import struct
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local import native, syscalls
from aviato.server.backends.local.confine import Confinement
from aviato.server.backends.local.kernel import bounded_by, mode_of
from aviato.server.supervisor.buffers import SOCK_DIAG

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aviato.server.backends.local.plan import Step

NOT_RECORDED = frozenset({"write_mounted", "put_mounted"})
"""Steps that have to look at what is there."""
REMEMBERED = 512
"""Steps that are not translated again; most are the same for every sandbox."""

_NUMBERS = {name: number for number, name in enumerate(native.OPERATIONS)}
_NO_REGISTER, _ANY_ERROR = 255, 255
_VALUE, _TEXT, _REGISTER = range(3)
_OWN_NAMES = {"layer": native.LAYER, "sockets": native.SOCKETS, "lower": native.LOWER, "merged": native.MERGED}


class TooMany(Exception):
    """There are more descriptors with names than the compiled code can tell apart."""


class Register(int):
    """A descriptor that is to be, by the number under which it will be remembered."""


_SCRATCH = Register(native.SCRATCH)
_Argument = int | bytes | str | None


@dataclass
class Call:
    """One system call, or what stands for some.

    Attributes:
        operation: one of `native.OPERATIONS`.
        arguments: text becomes its address, a `Register` the descriptor in it.
        result: the register that gets what it returns.
        forgiven: errors that are none; all of them if it is None.
        skip_done, skip_forgiven: how many calls are left out after it, where it was done and where it failed so.
    """

    operation: str
    arguments: Sequence[_Argument] = ()
    result: int = _NO_REGISTER
    forgiven: Iterable[int] | None = ()
    skip_done: int = 0
    skip_forgiven: int = 0

    def encode(self) -> bytes:
        """`struct call`."""
        kinds, values, text = bytearray(6), [0] * 6, b""
        for position, argument in enumerate(self.arguments):
            if isinstance(argument, (bytes, str)):
                kinds[position], values[position] = _TEXT, len(text)
                text += argument if isinstance(argument, bytes) else os.fsencode(argument) + b"\0"
                text += b"\0" * (-len(text) % 8)
            else:
                kinds[position] = _REGISTER if isinstance(argument, Register) else _VALUE
                values[position] = int(argument or 0)
        errors = bytes([_ANY_ERROR] if self.forgiven is None else self.forgiven).ljust(4, b"\0")
        head = (native.CALL.size + len(text), _NUMBERS[self.operation], self.result, self.skip_done, self.skip_forgiven)
        return native.CALL.pack(*head, errors, bytes(kinds), *values) + text


@dataclass
class Recorder:
    """Has the methods of `kernel.Kernel`, and notes the calls that would do the same.

    Attributes:
        given: names of descriptors that the template has already.
        compiled: the filter.
    """

    given: frozenset[str] = frozenset()
    compiled: bytes = b""
    calls: list[Call] = field(default_factory=list)
    _opened: int = 0
    """Where the calls begin that have opened the last descriptor."""

    def _note(self, operation: str, *arguments: _Argument, **how: Any) -> None:
        self.calls.append(Call(operation, arguments, **how))

    # -- descriptors by name ----------------------------------------------------------------------------------------------

    def keep(self, name: str, fd: int) -> None:
        """The descriptor that was opened last is to be remembered."""
        number = register(name)
        for call in self.calls[self._opened :]:
            call.result = number if call.result == _SCRATCH else call.result
            call.arguments = [Register(number) if argument is _SCRATCH else argument for argument in call.arguments]

    def kept(self, name: str) -> int:
        """One that will be remembered."""
        return Register(register(name))

    def has(self, name: str) -> bool:
        """Whether it was given."""
        return name in self.given

    def _open(self, operation: str, *arguments: _Argument, **how: Any) -> int:
        self._opened = len(self.calls)
        self._note(operation, *arguments, result=_SCRATCH, **how)
        return _SCRATCH

    # -- files --------------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        """See `Kernel`."""
        return self._open("openat", syscalls.AT_FDCWD, path, flags | os.O_CLOEXEC, 0)

    def path_by_descriptor(self, path: str) -> str:
        """See `Kernel`."""
        fd = self.open(path, os.O_PATH)
        self._note("dup3", fd, native.PATH_DESCRIPTOR, os.O_CLOEXEC)
        self.close(fd)
        return f"/proc/self/fd/{native.PATH_DESCRIPTOR}"

    def path_of_directory(self, path: str, device: int, inode: int) -> str:
        """See `Kernel`."""
        fd = self.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._note("is", fd, device, inode)
        self._note("dup3", fd, native.PATH_DESCRIPTOR, os.O_CLOEXEC)
        self.close(fd)
        return f"/proc/self/fd/{native.PATH_DESCRIPTOR}"

    def close(self, fd: int) -> None:
        """See `Kernel`."""
        self._note("close", fd)

    def change_directory(self, path: str) -> None:
        """See `Kernel`."""
        self._note("chdir", path)

    def return_to(self, fd: int) -> None:
        """See `Kernel`."""
        self._note("fchdir", fd)

    def make_directory(self, path: str, mode: int) -> None:
        """See `Kernel`."""
        special = mode & ~0o777
        self._note("mkdirat", syscalls.AT_FDCWD, path, mode, forgiven=(errno.EEXIST,), skip_forgiven=1 if special else 0)
        if special:
            self._note("fchmodat", syscalls.AT_FDCWD, path, mode)

    def make_file(self, path: str) -> None:
        """See `Kernel`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = self._open("openat", syscalls.AT_FDCWD, path, flags, 0o444, forgiven=(errno.EEXIST,), skip_forgiven=1)
        self.close(fd)

    def link(self, path: str, target: str) -> None:
        """See `Kernel`."""
        self._note("symlinkat", target, syscalls.AT_FDCWD, path)

    def unlink(self, path: str) -> None:
        """See `Kernel`."""
        self._note("unlinkat", syscalls.AT_FDCWD, path, 0)

    def create(self, path: str, content: str) -> None:
        """See `Kernel`."""
        self._write(path, os.O_CREAT | os.O_EXCL, content, ())

    def write(self, path: str, content: str, forgiven: Iterable[int] = ()) -> None:
        """See `Kernel`."""
        self._write(path, 0, content, tuple(forgiven))

    def _write(self, path: str, flags: int, content: str, forgiven: tuple[int, ...]) -> None:
        flags |= os.O_WRONLY | os.O_CLOEXEC
        fd = self._open("openat", syscalls.AT_FDCWD, path, flags, mode_of(path, content), forgiven=forgiven, skip_forgiven=2)
        self._note("write", fd, content, len(content.encode()), forgiven=forgiven)
        self.close(fd)

    # -- mounts -------------------------------------------------------------------------------------------------------------

    def mount(self, source: str | None, target: str, type: str | None, flags: int, *options: str) -> None:
        """See `Kernel`."""
        chosen: tuple[str | None, ...] = options or (None,)
        for left, one in zip(reversed(range(len(chosen))), chosen, strict=True):
            self._note("mount", source, target, type, flags, one, forgiven=None if left else (), skip_done=left)

    def bind_self(self, path: str) -> None:
        """See `Kernel`."""
        self._note("mount", path, path, None, syscalls.MS_BIND, None, forgiven=(errno.ENOENT,))

    def unmount(self, target: str) -> None:
        """See `Kernel`."""
        self._note("umount2", target, syscalls.MNT_DETACH)

    def copy_mount(self, path: str, attributes: int = 0, *, recursive: bool = True, private: bool = False) -> int:
        """See `Kernel`."""
        fd = self._open("open_tree", syscalls.AT_FDCWD, path, syscalls.open_tree_flags(path, recursive))
        if attributes or private:
            what = syscalls.mount_attributes(attributes, private=private)
            self._note("mount_setattr", fd, "", syscalls.AT_EMPTY_PATH | syscalls.AT_RECURSIVE, what, len(what))
        return fd

    def attach(self, fd: int, target: str) -> None:
        """See `Kernel`."""
        self._note("move_mount", fd, "", syscalls.AT_FDCWD, target, syscalls.MOVE_MOUNT_F_EMPTY_PATH)

    def lend(self, path: str) -> None:
        """See `Kernel`."""
        fd = self._open(
            "open_tree", syscalls.AT_FDCWD, path, syscalls.open_tree_flags(path, False), forgiven=None, skip_forgiven=2
        )
        self._note("lend", Register(native.SYNC), fd, forgiven=None)
        self.close(fd)

    def pivot_root(self, new: str, old: str) -> None:
        """See `Kernel`."""
        self._note("pivot_root", new, old)

    # -- powers -------------------------------------------------------------------------------------------------------------

    def wait_for_maps(self) -> None:
        """See `Kernel`."""
        self._note("receive", Register(native.SYNC), native.LOWER)

    def be(self, uid: int, gid: int) -> None:
        """See `Kernel`."""
        self._note("setresgid", gid, gid, gid)
        self._note("setresuid", uid, uid, uid)

    def control(self, option: int, value: int) -> None:
        """See `Kernel`."""
        self._note("prctl", option, value)

    def enter_user_namespace(self, ids: str) -> None:
        """See `Kernel`."""
        self._note("enter_user_namespace", ids, len(ids))

    def name_host(self, name: str) -> None:
        """See `Kernel`."""
        self._note("sethostname", name, len(name.encode()))

    def limit(self, number: int, value: int) -> None:
        """See `Kernel`; the child has the hard limits of this process."""
        bounded = bounded_by(resource.getrlimit(number)[1], value)
        self._note("prlimit64", 0, number, struct.pack("=QQ", bounded, bounded), None)

    def run_on(self, processors: Iterable[int]) -> None:
        """See `Kernel`."""
        mask = sum(1 << number for number in processors)
        size = -(-mask.bit_length() // 64) * 8
        self._note("sched_setaffinity", 0, size, mask.to_bytes(size, sys.byteorder), forgiven=(errno.EINVAL,))

    def bound_capabilities(self, kept: Iterable[int]) -> None:
        """See `Kernel`."""
        self._note("bound_capabilities", sum(1 << number for number in kept))

    def set_capabilities(self, bits: int) -> None:
        """See `Kernel`."""
        self._note("capset", *syscalls.capability_sets(bits, bits))

    def set_umask(self, mask: int) -> None:
        """See `Kernel`."""
        self._note("umask", mask)

    def raise_loopback(self) -> None:
        """See `Kernel`."""
        self._note("raise_loopback")

    def open_diagnosis(self) -> int:
        """See `Kernel`."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        fd = self._open("socket", socket.AF_NETLINK, kind, SOCK_DIAG, forgiven=None, skip_done=1)
        self._note("openat", syscalls.AT_FDCWD, "/dev/null", os.O_RDONLY | os.O_CLOEXEC, 0, result=_SCRATCH)
        return fd

    def load_filter(self) -> None:
        """See `Kernel`."""
        self._note("load_filter", self.compiled, len(self.compiled))


_named: dict[str, int] = {}


def register(name: str) -> int:
    """The number under which a descriptor is remembered.

    Raises:
        TooMany: there is none left.
    """
    number = _OWN_NAMES.get(name)
    if number is None:
        number = _named.setdefault(name, native.NAMED + len(_named))
    if number >= native.REGISTERS:
        raise TooMany(name)
    return number


def record(steps: Iterable[Step], given: frozenset[str], compiled: bytes) -> bytes | None:
    """The calls of a plan, one behind the other; None where it has to be executed otherwise.

    Args:
        steps: the plan.
        given: names of the mounts that the template makes.
        compiled: the filter of system calls.
    """
    steps = tuple(steps)
    if not NOT_RECORDED.isdisjoint(step.operation for step in steps):
        return None
    try:
        return b"".join(_recorded(step, given, compiled if step.operation == "filter" else b"") for step in steps)
    except TooMany:
        return None


@functools.lru_cache(REMEMBERED)
def _recorded(step: Step, given: frozenset[str], compiled: bytes) -> bytes:
    recorder = Recorder(given, compiled, [Call("label", [f"{step.operation} ({step.reason})"])])
    Confinement(recorder).take(step.operation, step.arguments)
    return b"".join(call.encode() for call in recorder.calls)
