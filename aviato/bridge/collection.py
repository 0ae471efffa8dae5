"""What is kept of a stream for the result: everything up to a cap, then head and tail."""

from __future__ import annotations

import io
from typing import NamedTuple

DEFAULT_MAX_OUTPUT_BYTES = 16 << 20
_BLOCK_BYTES = 64 << 10


class Collected(NamedTuple):
    """Bytes kept of a stream.

    Attributes:
        data: all of it, or head + tail.
        head_bytes: where the head ends if bytes were left out, else None.
        total: how many bytes the stream had.
    """

    data: bytes
    head_bytes: int | None
    total: int


class Collection:
    """Output that is kept for its result: the first and the last half of `max_bytes`; all of a stream that fits.

    Args:
        max_bytes: how much.
        offset: where in the stream it begins.

    Attributes:
        offset: as given.
        total_bytes: up to which offset bytes have been fed.
        reading: whether somebody reads along, who may be slow.
    """

    reading = False

    def __init__(self, max_bytes: int = DEFAULT_MAX_OUTPUT_BYTES, offset: int = 0) -> None:
        self.offset = self.total_bytes = offset
        # Its value is not copied out of it: new memory is what large output costs most.
        self._head = io.BytesIO()
        self._head_bytes = 0
        self._head_max = max_bytes - max_bytes // 2
        self._tail: list[bytearray] = []
        self._tail_bytes = 0
        self._tail_max = max_bytes // 2

    def feed(self, data: bytes | memoryview, offset: int) -> None:
        """Append bytes that begin at `offset`, no later than those so far have ended; what came before is skipped."""
        skip = self.total_bytes - offset
        self._add(data[skip:] if skip else data)

    async def ready(self) -> None:
        """Wait until whoever reads along has read enough."""

    @property
    def _dropped(self) -> int:
        """How many bytes are gone."""
        return self.total_bytes - self.offset - self._head_bytes - self._tail_bytes

    def _add(self, data: bytes | memoryview) -> None:
        """Append bytes; the oldest of the tail make room."""
        self.total_bytes += len(data)
        room = self._head_max - self._head_bytes
        if room > 0:
            self._head_bytes += self._head.write(data[:room])
            data = data[room:]
        if not data:
            return
        # Small writes share a block: an object for each would cost more than its bytes.
        if self._tail and len(self._tail[-1]) + len(data) <= _BLOCK_BYTES:
            self._tail[-1] += data
        else:
            self._tail.append(bytearray(data))
        self._tail_bytes += len(data)
        while (excess := self._tail_bytes - self._tail_max) > 0:
            first = self._tail[0]
            if len(first) <= excess:
                del self._tail[0]
                self._tail_bytes -= len(first)
            else:
                del first[:excess]
                self._tail_bytes -= excess

    def skip(self, offset: int) -> bool:
        """Leave out bytes before `offset`, which never come; False where they belong to the head, which cannot have a hole."""
        if self._head_bytes < self._head_max:
            return False
        self.total_bytes = offset
        self._tail.clear()
        self._tail_bytes = 0
        return True

    def collected(self) -> Collected:
        """What is kept, as one piece; where bytes are fed."""
        head = self._head.getvalue()
        data = b"".join((head, *self._tail)) if self._tail else head
        is_all = len(data) == self.total_bytes - self.offset
        return Collected(data, None if is_all else self._head_bytes, self.total_bytes)
