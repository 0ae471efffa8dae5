"""System V shared memory, semaphores and messages. Standard library only.

No process shows them, and they outlive whoever made them. Newer kernels let the plan bound them (`kernel_counts`). Here they
are counted, and taken away where the limit of memory is reached.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from aviato.server.supervisor.errors import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

PIECE_BYTES = 16 << 10
SEMAPHORE_BYTES = 64
SHARED, SEMAPHORES, MESSAGES = "shm", "sem", "msg"
IPC_RMID = 0

_libc = ctypes.CDLL(None, use_errno=True)


class Segments:
    """Those of a sandbox.

    Args:
        proc: descriptor of /proc.
        own: whether it has any: those of the machine are none of its business.
    """

    def __init__(self, proc: int, own: bool = True) -> None:
        self._proc = proc
        self._names = [SHARED, SEMAPHORES, MESSAGES] if own else []
        self._tables: dict[str, int] = {}

    def used_bytes(self) -> Generator[float, None, int]:
        """A job that returns what they hold in memory."""
        total = 0
        for name in self._open():
            for fields in self._rows(name):
                if fields is None:
                    yield True
                elif name == SHARED:
                    total += int(fields[-2]) + int(fields[-1])
                else:
                    total += int(fields[3]) * (SEMAPHORE_BYTES if name == SEMAPHORES else 1)
        return total

    def remove(self) -> Iterator[float]:
        """A job that takes away all that no process is attached to."""
        for name in self._open():
            found = []
            for fields in self._rows(name):
                if fields is None:
                    yield True
                elif name != SHARED or fields[6] == b"0":
                    found.append(int(fields[1]))
            for number in found:
                if name == SHARED:
                    _libc.shmctl(number, IPC_RMID, None)
                elif name == SEMAPHORES:
                    _libc.semctl(number, 0, IPC_RMID)
                else:
                    _libc.msgctl(number, IPC_RMID, None)
                yield True

    def _open(self) -> list[str]:
        """Most sandboxes are over before anybody looks, so that comes first then.

        Raises:
            OSError: there is no room for it.
        """
        while len(self._tables) < len(self._names):
            name = self._names[len(self._tables)]
            try:
                self._tables[name] = os.open(f"sysvipc/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            except OSError as error:
                if error.errno in NO_ROOM:
                    raise
                self._names.remove(name)  # A kernel without them.
        return self._names

    def _rows(self, name: str) -> Iterator[list[bytes] | None]:
        """The lines of a table in fields, without its head; None between two pieces of it."""
        offset, rest, head = 0, b"", True
        while piece := os.pread(self._tables[name], PIECE_BYTES, offset):
            offset += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            yield from (line.split() for line in lines[head:])
            head = False
            if len(piece) > PIECE_BYTES // 2:
                yield None
