"""Starting a program where somebody inside could hold it up in the moment of its birth. Standard library only.

A caller of `posix_spawn` waits until the child is the program. Who sends SIGSTOP to every number that comes next can stop a
child before that, and with it process 1 and all that it watches. So where anybody else lives inside, the child comes from a
fork, for which nobody need wait, and whoever stops it is stopped himself until it is through.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import signal
import struct
import time
from typing import Any

from aviato.server.supervisor import spawn, tree

REPORT = struct.Struct("<i")
STEP_MILLISECONDS = 10
HEAR_SECONDS = 10.0
"""A group may have next to no processor time; longer than this nobody waits."""

held = ctypes.PyDLL(None, use_errno=True)
"""Held: a process of one thread needs none of what Python does about others after a fork."""


class Births:
    """Starts programs as children of this process."""

    def __init__(self, proc: int) -> None:
        self._proc = proc
        self.open_files: int | None = None
        """How many they may have; None: as many as this process."""

    def start(self, program: str, argv: list[str], environment: dict[str, str], moves: list[tuple[Any, ...]]) -> int:
        """See `spawn.Start`. By a fork only where it has to be: that takes a millisecond more."""
        if self.open_files is not None or tree.signal_all(0):
            return self.fork(program, argv, environment, moves)
        return spawn.child(program, argv, environment, moves)

    def fork(self, program: str, argv: list[str], environment: dict[str, str], moves: list[tuple[Any, ...]]) -> int:
        """As `start`, always by a fork."""
        read, write = os.pipe2(os.O_CLOEXEC)
        changed = [number for number in spawn.SIGNALS if signal.getsignal(number) != signal.SIG_DFL]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, spawn.SIGNALS)  # No handler of ours runs in the child.
        pid = self._clone()
        if pid == 0:
            self._become(write, changed, program, argv, environment, moves)
        number = ctypes.get_errno()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write)
        try:
            if pid < 0:
                raise OSError(number, os.strerror(number))
            self._hear(pid, read)
        finally:
            os.close(read)
        return pid

    def _clone(self) -> int:
        return int(held.fork())

    def _settle(self) -> None:
        """In the child, before it is the program."""

    def _hear(self, pid: int, fd: int) -> None:
        """Wait until it is the program, or dead.

        Raises:
            OSError: it could not become the program.
        """
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + HEAR_SECONDS
        number, frozen = 0, False
        try:
            while not poll.poll(STEP_MILLISECONDS):
                if time.monotonic() >= deadline:
                    number = errno.ETIMEDOUT
                    os.kill(pid, signal.SIGKILL)
                    break
                if not frozen and tree.is_stopped(self._proc, str(pid)):
                    frozen = tree.signal_all(signal.SIGSTOP)
                os.kill(pid, signal.SIGCONT)
            else:
                said = os.read(fd, REPORT.size)
                if len(said) == REPORT.size:
                    (number,) = REPORT.unpack(said)
        finally:
            if frozen:
                tree.signal_all(signal.SIGCONT)
        if number:
            os.waitpid(pid, 0)
            raise OSError(number, os.strerror(number))

    def _become(
        self,
        report: int,
        changed: list[signal.Signals],
        program: str,
        argv: list[str],
        environment: dict[str, str],
        moves: list[tuple[Any, ...]],
    ) -> None:
        """In the child. Never returns."""
        number = errno.EIO
        try:
            os.setsid()
            self._settle()
            if self.open_files is not None:
                hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                most = self.open_files if hard == resource.RLIM_INFINITY else min(hard, self.open_files)
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            for one in changed:
                # As Python would, which refuses it to all but the thread that it was begun by.
                held.signal(ctypes.c_int(one), ctypes.c_void_p(None))
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
