"""Memory that a client on the same machine lends: files are copied between it and the disk here. Standard library only.

It comes with a request and is closed with it. It is read and written by calls, and never mapped: whoever shortens it meanwhile
gets less, and kills nobody.
"""

from __future__ import annotations

import mmap
import os

from aviato.server.supervisor.errors import Refused
from aviato.server.supervisor.transfers import Transfer
from aviato.wire.memory import REFUSED

PIECE_BYTES = 256 << 10
_room: list[memoryview] = []


class Lent(Transfer):
    """A file on its way in, whose bytes lie in memory once the end has come.

    Args:
        fd: of the memory; owned.
        size: how many bytes.
        transfer: takes them.
    """

    def __init__(self, fd: int, size: int, transfer: Transfer) -> None:
        self._fd = fd
        self._size = size
        self._transfer = transfer

    def end(self) -> None:
        """See `Transfer`. What the memory lacks, whoever knows the size misses."""
        room, taken = _kept_room(), 0
        while taken < self._size:
            try:
                count = os.preadv(self._fd, [room[: self._size - taken]], taken)
            except OSError as error:
                raise Refused("VALIDATION", f"what was lent cannot be read: {error}", reason=REFUSED) from None
            if not count:
                break
            self._transfer.data(room[:count])
            taken += count
        self._transfer.end()

    def close(self) -> None:
        """See `Transfer`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self._transfer.close()


def fill(fd: int, file: int, most_bytes: int) -> int | None:
    """Put a file into it, from where it stands to its end; returns the size, None where it does not take so much."""
    room, size = _kept_room(), 0
    while count := os.readv(file, [room[: most_bytes + 1 - size]]):
        if size + count > most_bytes:
            return None
        try:
            if os.pwrite(fd, room[:count], size) < count:
                return None  # It takes no more, which the kernel tells by what it took.
        except OSError:
            return None
        size += count
    return size


def _kept_room() -> memoryview:
    """The same for all: new memory for each would cost more than its bytes."""
    if not _room:
        _room.append(memoryview(mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)))
    return _room[0]
