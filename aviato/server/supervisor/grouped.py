"""Commands that are born in a control group of version 2. Standard library only.

A process that is moved waits for every processor of the machine, so they start where they belong (CLONE_INTO_CGROUP). The call
for that hides its flags from filters, and everyone inside is refused it. So this process lives without that one rule, and each
child takes it before it becomes the command.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import struct
import time
from typing import Any

from aviato.server.supervisor.keeper import load

CLONE3 = 435
CLONE_INTO_CGROUP = 1 << 33
REPORT = struct.Struct("<i")
STEP_MILLISECONDS = 10
HEAR_SECONDS = 10.0
"""A group may have next to no processor time; longer than this nobody waits."""

_held = ctypes.PyDLL(None, use_errno=True)
_held.syscall.restype = ctypes.c_long


class Grouped:
    """Starts programs in a group.

    Args:
        directory: descriptor of the group's.
        compiled: the rest of the filter.
    """

    def __init__(self, directory: int, compiled: bytes) -> None:
        self._arguments = struct.pack("11Q", CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, *[0] * 5, directory)
        self._compiled = compiled
        self._ignored = [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]

    def start(self, program: str, argv: list[str], environment: dict[str, str], moves: list[tuple[Any, ...]]) -> int:
        """See `spawn.Start`."""
        read, write = os.pipe2(os.O_CLOEXEC)
        # Held: a process of one thread needs none of what Python does about others after a fork.
        pid: int = _held.syscall(ctypes.c_long(CLONE3), ctypes.c_char_p(self._arguments), ctypes.c_size_t(len(self._arguments)))
        if pid == 0:
            self._become(write, program, argv, environment, moves)
        os.close(write)
        try:
            if pid < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            self._hear(pid, read)
        finally:
            os.close(read)
        return pid

    def _hear(self, pid: int, fd: int) -> None:
        """Wait until it is the command, or dead; others inside may stop it on the way.

        Raises:
            OSError: it could not become the command.
        """
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + HEAR_SECONDS
        number = 0
        while not poll.poll(STEP_MILLISECONDS):
            if time.monotonic() >= deadline:
                number = errno.ETIMEDOUT
                os.kill(pid, signal.SIGKILL)
                break
            os.kill(pid, signal.SIGCONT)
        else:
            said = os.read(fd, REPORT.size)
            if len(said) == REPORT.size:
                (number,) = REPORT.unpack(said)
        if number:
            os.waitpid(pid, 0)
            raise OSError(number, os.strerror(number))

    def _become(
        self, report: int, program: str, argv: list[str], environment: dict[str, str], moves: list[tuple[Any, ...]]
    ) -> None:
        """In the child. Never returns."""
        number = errno.EIO
        try:
            os.setsid()
            load(self._compiled)
            for ignored in self._ignored:
                if ignored not in (signal.SIGKILL, signal.SIGSTOP):
                    signal.signal(ignored, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for action, target, *rest in moves:
                if action == os.POSIX_SPAWN_OPEN:
                    fd = os.open(rest[0], rest[1], rest[2])
                    os.dup2(fd, target)
                    os.close(fd)
                else:
                    os.dup2(target, rest[0])
            os.execve(program, argv, environment)
        except OSError as error:
            number = error.errno or number
        except ValueError:
            number = errno.EINVAL
        finally:
            os.write(report, REPORT.pack(number))
            os._exit(127)
