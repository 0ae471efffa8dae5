"""The bytes of an output stream that nobody has acknowledged yet. Standard library only."""

from __future__ import annotations

import mmap
import os

from aviato.wire.frames import WIDE_WINDOW_BYTES

WINDOW_BYTES = 1 << 20
PIECE_BYTES = 64 << 10
LARGE_PIECE_BYTES = 256 << 10


class Window:
    """At most `limit_bytes` of what a command has written, and what is put behind it.

    Once there is much of it, it lies in a ring: what is read and what is sent is not copied then, and takes no new memory. A
    piece that was peeked at changes only after it was dropped, so who has it still waiting to be sent has nobody who needs it.
    """

    def __init__(self) -> None:
        self.limit_bytes = WINDOW_BYTES
        self._small = bytearray()
        self._ring: memoryview | None = None
        self._begin = 0
        self._length = 0

    def __len__(self) -> int:
        return len(self._small) if self._ring is None else self._length

    @property
    def large(self) -> bool:
        """Whether it has become a ring."""
        return self._ring is not None

    def grow(self) -> None:
        """Become a ring, if it is none and what it has fits one."""
        if self._ring is None and len(self._small) <= self.limit_bytes:
            self._make_ring(self._small)

    def widen(self) -> None:
        """Take more from now on: somebody reads, and who confirms that less often reads faster."""
        if self.limit_bytes < WIDE_WINDOW_BYTES:
            self.limit_bytes = WIDE_WINDOW_BYTES
            if self._ring is not None:
                self._make_ring(self.rest)

    def _make_ring(self, content: bytes | bytearray) -> None:
        ring = memoryview(mmap.mmap(-1, self.limit_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        ring[: len(content)] = content
        self._begin, self._length = 0, len(content)
        self._ring, self._small = ring, bytearray()

    def read(self, fd: int) -> int:
        """Read a piece; returns its length, 0 at the end of what is read.

        Raises:
            OSError: as `os.read`.
        """
        room = self.limit_bytes - len(self)
        if self._ring is None:
            data = os.read(fd, min(room, PIECE_BYTES))
            self._small += data
            return len(data)
        at = (self._begin + self._length) % len(self._ring)
        count = os.readv(fd, [self._ring[at : at + min(room, LARGE_PIECE_BYTES)]])
        self._length += count
        return count

    def put(self, data: bytes) -> None:
        """Add something, whether there is room or not."""
        if self._ring is not None:
            self._small, self._ring = bytearray(self.rest), None
        self._small += data

    def peek(self, begin: int) -> bytes | memoryview:
        """A piece that begins so many bytes behind the first."""
        if self._ring is None:
            return bytes(memoryview(self._small)[begin : begin + PIECE_BYTES])
        at = (self._begin + begin) % len(self._ring)
        return self._ring[at : at + min(self._length - begin, LARGE_PIECE_BYTES)]

    def drop(self, count: int) -> None:
        """Forget the first bytes."""
        if self._ring is None:
            del self._small[:count]
        else:
            self._begin = (self._begin + count) % len(self._ring)
            self._length -= count

    @property
    def rest(self) -> bytes:
        """All of it."""
        if self._ring is None:
            return bytes(self._small)
        end = self._begin + self._length
        return bytes(self._ring[self._begin : end]) + bytes(self._ring[: max(0, end - len(self._ring))])
