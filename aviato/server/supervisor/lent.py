"""Memory that a client on the same machine lends: files are copied between it and the disk here. Standard library only.

It comes with a request and is closed with it. It is read and written by calls, and never mapped: whoever shortens it meanwhile
gets less, and kills nobody.
"""

from __future__ import annotations

import mmap
import os
import time

from aviato.server.supervisor.errors import Refused
from aviato.server.supervisor.transfers import Transfer
from aviato.wire.memory import CONFIRMATION_BYTES, CONFIRMED_AT, REFUSED, confirmed_offset

PAUSE_SECONDS = 20e-6
MOST_PAUSES = 10
"""So often in a row the word of whoever fills memory is waited for: nothing else is done meanwhile."""
MOST_TURNS = 64
"""So often that is looked at."""
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
        self._taken = 0

    def take_filled(self) -> None:
        """Take what is there already, for as long as that becomes more; all of it is the end."""
        pauses = 0
        for _ in range(MOST_TURNS):
            filled = self._filled()
            if filled is None or pauses == MOST_PAUSES:
                return
            if filled > self._taken:
                pauses = 0
                self._take(filled)
                if self._taken < filled:
                    return  # It is shorter than that.
            elif self._taken < self._size:
                pauses += 1
                time.sleep(PAUSE_SECONDS)
            if self._taken == self._size:
                self._transfer.end()
                return

    def end(self) -> None:
        """See `Transfer`. What the memory lacks, whoever knows the size misses."""
        self._take(self._size)
        self._transfer.end()

    def _take(self, until: int) -> None:
        room = _kept_room()
        while self._taken < until:
            try:
                count = os.preadv(self._fd, [room[: until - self._taken]], self._taken)
            except OSError as error:
                raise Refused("VALIDATION", f"what was lent cannot be read: {error}", reason=REFUSED) from None
            if not count:
                break
            self._transfer.data(room[:count])
            self._taken += count

    def _filled(self) -> int | None:
        """How much of it is said to be there; None of a client that says nothing."""
        try:
            said = os.pread(self._fd, CONFIRMATION_BYTES, CONFIRMED_AT)
        except OSError:
            return None
        return min(confirmed_offset(said), self._size) if said[:8] != said[8:] else None

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
