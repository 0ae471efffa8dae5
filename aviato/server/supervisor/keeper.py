"""A keeper for each command where there are no namespaces: whatever a command leaves behind comes to its keeper.

A keeper is a fork of the supervisor that starts one command, tells how that ended, and stays until all its descendants are
gone. It takes a second filter, which refuses to signal, limit or reschedule the supervisor and the keeper itself: commands are
born with it. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
from typing import TYPE_CHECKING, Any

from aviato.grading.inside.loop import READ
from aviato.server.supervisor import spawn
from aviato.server.supervisor.usage import Used

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.grading.inside.loop import Loop
    from aviato.server.supervisor.lineage import Lineage

SUPERVISOR, KEEPER = 0x5A0B71D3, 0x5A0B71E7
"""Stand in the filter for two numbers that are known late; so do their negatives, for process groups."""
LOW = 0xFFFFFFFF
JUMP_IF_EQUAL = 0x15
STARTED, FAILED, ENDED = 1, 2, 3
REPORT = struct.Struct("<iiddq")
HEAR_SECONDS = 2.0
STEP_MILLISECONDS = 10
MOST_DESCRIPTORS = 1 << 20
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER = 1, 22, 36
SECCOMP_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)
_held = ctypes.PyDLL(None, use_errno=True)


class Keepers:
    """The keepers of one sandbox.

    Args:
        loop: of the supervisor.
        compiled: the second filter.
        lineage: is told of every keeper.
    """

    def __init__(self, loop: Loop, compiled: bytes, lineage: Lineage) -> None:
        self.newest = 0
        """The number of the keeper of the command that was started last."""
        self._loop = loop
        self._lineage = lineage
        own = os.getpid()
        self._compiled = put_in(compiled, {SUPERVISOR: own, -SUPERVISOR & LOW: -own & LOW})
        self._reports: dict[int, int] = {}

    def start(self, program: str, argv: list[str], environment: dict[str, str], moves: list[tuple[Any, ...]]) -> int:
        """See `spawn.Start`."""
        read, write = os.pipe2(os.O_CLOEXEC)
        # Held: a process of one thread needs none of what Python does about others after a fork.
        pid: int = _held.fork()
        if pid == 0:
            _keep(self._compiled, write, program, argv, environment, moves)
        os.close(write)
        if pid < 0:
            os.close(read)
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._lineage.keepers.add(pid)
        kind, value, *_ = self._hear(pid, read)
        if kind != STARTED:
            os.close(read)
            raise OSError(value, os.strerror(value))
        self._reports[pid] = read
        self.newest = pid
        return value

    def watch(self, keeper: int, ended: Callable[[int, Used], None]) -> None:
        """Call back with the status of what a keeper has started, and what that used."""
        fd = self._reports.pop(keeper)

        def heard(events: int) -> None:
            data = os.read(fd, REPORT.size)
            self._loop.forget(fd)
            os.close(fd)
            if len(data) == REPORT.size:
                _, status, *used = REPORT.unpack(data)
                ended(status, Used(*used))
            else:
                # It was killed itself, by us with all others, or by a command of the sandbox.
                ended(signal.SIGKILL, Used(0.0, 0.0, 0))

        self._loop.watch(fd, READ, heard)

    def reaped(self, pid: int) -> bool:
        """A child of the supervisor is gone; whether it was a keeper."""
        if pid not in self._lineage.keepers:
            return False
        self._lineage.keepers.remove(pid)
        return True

    def _hear(self, pid: int, fd: int) -> tuple[int, int]:
        """The first word of a keeper. It comes at once, unless another command stops it on purpose."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        deadline = self._loop.now() + HEAR_SECONDS
        while not poll.poll(STEP_MILLISECONDS):
            if self._loop.now() >= deadline:
                os.kill(pid, signal.SIGKILL)
                return FAILED, 110  # ETIMEDOUT
            os.kill(pid, signal.SIGCONT)
        data = os.read(fd, REPORT.size)
        if len(data) < REPORT.size:
            return FAILED, 3  # ESRCH: it was killed.
        kind, value, *_ = REPORT.unpack(data)
        return kind, value


def put_in(program: bytes, numbers: dict[int, int]) -> bytes:
    """A filter with numbers in place of those that stand for them."""
    patched = bytearray(program)
    for at in range(0, len(program), 8):
        code, _, _, value = struct.unpack_from("<HBBI", program, at)
        if code == JUMP_IF_EQUAL and value in numbers:
            struct.pack_into("<I", patched, at + 4, numbers[value])
    return bytes(patched)


def _keep(
    compiled: bytes, report: int, program: str, argv: list[str], environment: dict[str, str], moves: list[tuple[Any, ...]]
) -> None:
    """In the child. Never returns."""
    try:
        zero = ctypes.c_ulong(0)
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), zero, zero, zero)
        _libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), zero, zero, zero)
        own = os.getpid()
        load(put_in(compiled, {KEEPER: own, -KEEPER & LOW: -own & LOW}))
        try:
            pid = spawn.child(program, argv, environment, moves)
        except OSError as error:
            os.write(report, REPORT.pack(FAILED, error.errno or 0, 0, 0, 0))
            return
        except ValueError:
            os.write(report, REPORT.pack(FAILED, 22, 0, 0, 0))
            return
        os.write(report, REPORT.pack(STARTED, pid, 0, 0, 0))
        os.closerange(0, report)
        os.closerange(report + 1, MOST_DESCRIPTORS)
        _wait(pid, report)
    finally:
        os._exit(0)


def load(program: bytes) -> None:
    """Have a filter, for good; it takes no_new_privs."""
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    if _libc.prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.c_char_p(described), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def _wait(command: int, report: int) -> None:
    while True:
        try:
            pid, status, used = os.wait4(-1, 0)
        except ChildProcessError:
            return
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGKILL)  # It has made this process its tracer.
        elif pid == command:
            os.write(report, REPORT.pack(ENDED, status, used.ru_utime, used.ru_stime, used.ru_maxrss))
            os.close(report)
