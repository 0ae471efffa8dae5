"""What `confine` asks of the kernel, done at once. Standard library only: the template loads it.

`record.Recorder` has the same methods and notes the calls, for compiled code to make them in their order. So a method is what a
list of system calls can be, and what depends on how one of them ended is a method of its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import struct
from typing import TYPE_CHECKING, NoReturn

from aviato.server.backends.local import syscalls
from aviato.server.backends.local.accounts import PRIVATE
from aviato.server.supervisor.buffers import open_diagnosis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


class Kernel:
    """The calling process's own.

    Args:
        wait_for_maps: returns once the template has mapped the ids of this process, with what it sent.
        compiled: the filter of system calls.
    """

    def __init__(self, wait_for_maps: Callable[[], int | None], compiled: bytes) -> None:
        self._wait_for_maps = wait_for_maps
        self._compiled = compiled
        self._kept: dict[str, int] = {}

    # -- descriptors by name ----------------------------------------------------------------------------------------------

    def keep(self, name: str, fd: int) -> None:
        """Remember a descriptor."""
        self._kept[name] = fd

    def kept(self, name: str) -> int:
        """A descriptor that is remembered."""
        return self._kept[name]

    def has(self, name: str) -> bool:
        """Whether one is."""
        return name in self._kept

    # -- files --------------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        """A descriptor, closed on exec."""
        return os.open(path, flags | os.O_CLOEXEC)

    def path_by_descriptor(self, path: str) -> str:
        """Another path to the same directory, by a descriptor that stays open until others take its place."""
        return f"/proc/self/fd/{self.open(path, os.O_PATH)}"

    def path_of_directory(self, path: str, device: int, inode: int) -> str:
        """As `path_by_descriptor`, of a directory that is what it was: of these numbers, and no link.

        Raises:
            OSError: it is another one.
        """
        fd = self.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (device, inode):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return f"/proc/self/fd/{fd}"

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def change_directory(self, path: str) -> None:
        """chdir(2)."""
        os.chdir(path)

    def return_to(self, fd: int) -> None:
        """fchdir(2)."""
        os.fchdir(fd)

    def make_directory(self, path: str, mode: int) -> None:
        """Make one if there is nothing of that name; bits above the usual ones are set then."""
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            return
        if mode & ~0o777:
            os.chmod(path, mode)

    def make_file(self, path: str) -> None:
        """Make an empty one if there is nothing of that name."""
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
        except FileExistsError:
            pass

    def link(self, path: str, target: str) -> None:
        """symlink(2)."""
        os.symlink(target, path)

    def unlink(self, path: str) -> None:
        """Take a name away."""
        os.unlink(path)

    def create(self, path: str, content: str) -> None:
        """A new file with this content; one that says what it is run by can be run."""
        self._write(path, os.O_CREAT | os.O_EXCL, content)

    def write(self, path: str, content: str, forgiven: Iterable[int | None] = ()) -> None:
        """Write into a file that is there.

        Args:
            path: its name.
            content: all of it in one call.
            forgiven: numbers of errors after which it is left as it is.
        """
        try:
            self._write(path, 0, content)
        except OSError as error:
            if error.errno not in forgiven:
                raise

    def _write(self, path: str, flags: int, content: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, mode_of(path, content))
        try:
            os.write(fd, content.encode())
        finally:
            os.close(fd)

    # -- mounts -------------------------------------------------------------------------------------------------------------

    def mount(self, source: str | None, target: str, type: str | None, flags: int, *options: str) -> None:
        """Mount, bind or remount, with the first options that the kernel takes."""
        for chosen in options[:-1]:
            try:
                return syscalls.mount(source, target, type, flags, chosen)
            except OSError:
                continue
        return syscalls.mount(source, target, type, flags, options[-1] if options else None)

    def bind_self(self, path: str) -> None:
        """Bind a name over itself, with the attributes of the mount that it is seen by; nothing where it is gone."""
        try:
            syscalls.mount(path, path, None, syscalls.MS_BIND)
        except FileNotFoundError:
            pass

    def unmount(self, target: str) -> None:
        """Take a mount away as soon as nobody uses it."""
        syscalls.unmount(target)

    def copy_mount(self, path: str, attributes: int = 0, *, recursive: bool = True, private: bool = False) -> int:
        """A detached copy of a mount, with attributes added; with `private`, one that no later mount elsewhere comes to."""
        fd = syscalls.open_tree(path, recursive=recursive)
        if attributes or private:
            syscalls.mount_setattr(fd, attributes, private=private)
        return fd

    def attach(self, fd: int, target: str) -> None:
        """Attach a detached mount."""
        syscalls.move_mount(fd, target)

    def lend(self, path: str) -> None:
        """Send a mount to the template, for a sandbox to come; only compiled code does."""

    def pivot_root(self, new: str, old: str) -> None:
        """Change the root of the mount namespace."""
        syscalls.pivot_root(new, old)

    # -- powers -------------------------------------------------------------------------------------------------------------

    def wait_for_maps(self) -> None:
        """Wait until the ids are mapped; what the template sends is kept as `lower`."""
        sent = self._wait_for_maps()
        if sent is not None:
            self.keep("lower", sent)

    def be(self, uid: int, gid: int) -> None:
        """Have these ids and no others."""
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)

    def control(self, option: int, value: int) -> None:
        """prctl(2)."""
        syscalls.prctl(option, value)

    def enter_user_namespace(self, ids: str) -> None:
        """Be in a new one, in which these ids of the present one are mapped; both of its maps are the same."""
        process = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        read, write = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            self._map_from_outside(process, read, ids)
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        os.write(write, b"g")
        status = os.waitpid(pid, 0)[1]
        for fd in (process, read, write):
            os.close(fd)
        if status:
            number = os.waitstatus_to_exitcode(status)
            raise OSError(number, os.strerror(number), "maps of ids")

    def _map_from_outside(self, process: int, told: int, ids: str) -> NoReturn:
        # More than one id can be mapped only by somebody who is in the namespace around.
        status = errno.EPIPE
        try:
            os.read(told, 1)
            for name in ("uid_map", "gid_map"):
                fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=process)
                os.write(fd, ids.encode())
                os.close(fd)
            status = 0
        except OSError as error:
            status = error.errno or status
        finally:
            os._exit(status)

    def name_host(self, name: str) -> None:
        """Name the UTS namespace."""
        syscalls.set_hostname(name)

    def limit(self, number: int, value: int) -> None:
        """Have at most this of a resource, for good, and no more than one has already."""
        bounded = bounded_by(resource.getrlimit(number)[1], value)
        resource.setrlimit(number, (bounded, bounded))

    def run_on(self, processors: Iterable[int]) -> None:
        """Run on these processors alone, if there are any of them left."""
        try:
            os.sched_setaffinity(0, processors)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    def bound_capabilities(self, kept: Iterable[int]) -> None:
        """Take all others out of what this process may ever have."""
        syscalls.bound_capabilities(tuple(kept))

    def set_capabilities(self, bits: int) -> None:
        """Have these, by number, and no others."""
        syscalls.set_capabilities(bits, bits)

    def set_umask(self, mask: int) -> None:
        """umask(2)."""
        os.umask(mask)

    def raise_loopback(self) -> None:
        """Have `lo`, if it is not up. Where the template made the network namespace it is, and nobody here may change it."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            name = b"lo".ljust(16, b"\0")
            flags = struct.unpack_from("=H", fcntl.ioctl(sock, SIOCGIFFLAGS, name + bytes(24)), 16)[0]
            if not flags & IFF_UP:
                fcntl.ioctl(sock, SIOCSIFFLAGS, name + struct.pack("=H22x", flags | IFF_UP))

    def open_diagnosis(self) -> int:
        """See `buffers.open_diagnosis`."""
        return open_diagnosis()

    def load_filter(self) -> None:
        """Have the filter of system calls."""
        syscalls.load_filter(self._compiled)


def mode_of(path: str, content: str) -> int:
    """The mode of a new file of a sandbox's tree."""
    if path in PRIVATE:
        return 0o600
    if path.startswith("/sys/"):
        return 0o444
    return 0o755 if content.startswith("#!") else 0o644


def bounded_by(hard: int, value: int) -> int:
    """A limit that a process with this hard one may set."""
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
