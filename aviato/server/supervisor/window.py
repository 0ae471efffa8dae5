"""The bytes of an output stream that nobody has acknowledged yet. Standard library only."""

from __future__ import annotations

import mmap
import os

from aviato.wire.frames import WIDE_WINDOW_BYTES
from aviato.wire.memory import CONFIRMATION_BYTES, CONFIRMED_AT, confirmed_offset

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

    def place(self, begin: int) -> tuple[int, int] | None:
        """Where in memory that was lent lies what begins so many bytes behind the first, and how much; None: nowhere."""
        return None

    @property
    def rest(self) -> bytes:
        """All of it."""
        if self._ring is None:
            return bytes(self._small)
        end = self._begin + self._length
        return bytes(self._ring[self._begin : end]) + bytes(self._ring[: max(0, end - len(self._ring))])


class LentWindow(Window):
    """One whose ring is memory that the reader has lent, so that what is read is moved there and no further.

    Args:
        fd: of it, which whoever made this closes; of no use from then on.
        content: of the window before.

    Raises:
        OSError: it takes less than it should.
    """

    def __init__(self, fd: int, content: bytes) -> None:
        super().__init__()
        self.limit_bytes = WIDE_WINDOW_BYTES
        self._memory = fd
        self._length = len(content)
        if self._length > self.limit_bytes or os.pwrite(fd, content, 0) < self._length:
            raise OSError("the memory takes less than it should")

    def __len__(self) -> int:
        return self._length + len(self._small)

    @property
    def large(self) -> bool:
        """See `Window`."""
        return True

    def grow(self) -> None:
        """It has its size."""

    def widen(self) -> None:
        """It has its size."""

    def read(self, fd: int) -> int:
        """See `Window`. What is read is moved within the kernel."""
        at = (self._begin + self._length) % self.limit_bytes
        room = min(self.limit_bytes - self._length, self.limit_bytes - at)
        count = os.splice(fd, self._memory, room, offset_dst=at, flags=os.SPLICE_F_NONBLOCK)
        self._length += count
        return count

    @property
    def confirmed(self) -> int:
        """Up to which offset of the stream the reader says to have it."""
        return confirmed_offset(os.pread(self._memory, CONFIRMATION_BYTES, CONFIRMED_AT))

    def put(self, data: bytes) -> None:
        """See `Window`. Nothing is read any more then."""
        self._small += data

    def peek(self, begin: int) -> bytes:
        """See `Window`; for who has not lent it. Nothing where the memory was shortened."""
        place = self.place(begin)
        if place is None:
            return bytes(memoryview(self._small)[begin - self._length :][:PIECE_BYTES])
        return os.pread(self._memory, min(place[1], LARGE_PIECE_BYTES), place[0])

    def place(self, begin: int) -> tuple[int, int] | None:
        """See `Window`."""
        if begin >= self._length:
            return None
        at = (self._begin + begin) % self.limit_bytes
        return at, min(self._length - begin, self.limit_bytes - at)

    def drop(self, count: int) -> None:
        """See `Window`."""
        step = min(count, self._length)
        self._begin = (self._begin + step) % self.limit_bytes
        self._length -= step
        del self._small[: count - step]

    @property
    def rest(self) -> bytes:
        """See `Window`."""
        pieces, position = [], 0
        while (place := self.place(position)) is not None:
            pieces.append(os.pread(self._memory, place[1], place[0]).ljust(place[1], b"\0"))
            position += place[1]
        return b"".join((*pieces, self._small))
