"""Many requests over one: what a batch asks of a server on a Unix socket, a frame each way for every item.

Each of these could be a request of its own, and is one whenever anything is unusual: before the stream is open, when it is cut,
when there are many at once, when the server says so. So nothing here is tried again, and nobody waits for a connection.
"""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from aviato.transport.answers import Chunks, parse_head
from aviato.wire.frames import CONFIRMED_AT_ONCE, Frame, FrameDecoder, FrameType, encode
from aviato.wire.version import WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "/v1/runs/stream"
LARGEST_BYTES = 96 << 10
"""Of what is asked for: a command with all the input that can come with it. Larger bodies the server reads a few at a time."""
MOST_AT_ONCE = 128
FEW = 4
"""So many are asked for by themselves first: one command is no batch."""
OPEN_SECONDS = 5.0
IDLE_SECONDS = 1.0
"""It is closed then: a server that has nothing to do can go."""
LARGEST_HEAD_BYTES = 64 << 10
ROOM_BYTES = 64 << 10
REFUSALS = (400, 404, 405)
"""Of a server that has no such streams."""

_OPENING = (
    f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{WIRE_HEADER}: {WIRE_VERSION}\r\n"
    "Content-Type: application/vnd.aviato.frames\r\nTransfer-Encoding: chunked\r\n\r\n"
).encode()


class RunAnswer(NamedTuple):
    """What came of one.

    Attributes:
        type: RAN or ERROR.
        payload: of that frame.
        confirm: says that it has arrived; False if that has to be said in another way. None where it always has.
    """

    type: int
    payload: bytes
    confirm: Callable[[], bool] | None


class RunStreams:
    """The stream of one loop to one socket, while there is something to ask.

    Args:
        name: of the socket, as `connect` takes it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._stream: RunStream | None = None
        self._opening: asyncio.Task[None] | None = None
        self._refused = False
        self._asked = 0
        self._last = 0.0

    async def ask(self, body: bytes, seconds: float) -> RunAnswer | None:
        """The answer to one; None where it is to be asked for by itself.

        Args:
            body: of the request.
            seconds: after which it is given up.
        """
        stream = self._stream
        if stream is None or not stream.usable:
            self._begin()
            return None
        return await stream.ask(body, seconds) if len(body) <= LARGEST_BYTES and stream.waiting < MOST_AT_ONCE else None

    def close(self) -> None:
        """Close it; what is under way is asked for by itself."""
        if self._opening is not None:
            self._opening.cancel()
        if self._stream is not None:
            self._stream.close()

    def _begin(self) -> None:
        """Open one in the background, if it seems worth it."""
        if self._refused or self._opening is not None:
            return
        now = self._loop.time()
        if now - self._last > IDLE_SECONDS:
            self._asked = 0
        self._last = now
        self._asked += 1
        if self._asked > FEW:
            self._asked = 0
            self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                _, self._stream = await self._loop.create_unix_connection(RunStream, self._name)
            self._refused = await self._stream.opened in REFUSALS
        except (OSError, TimeoutError):
            return  # Those that ask by themselves say what is wrong.
        finally:
            self._opening = None


class RunStream(asyncio.BufferedProtocol):
    """One connection, with one request that goes on.

    Attributes:
        opened: gets the status of the answer, or 0 if there is none.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[int] = self._loop.create_future()
        self._room = memoryview(bytearray(ROOM_BYTES))
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, tuple[asyncio.Future[Frame | None], float]] = {}
        """Those that have no answer, in the order in which they were asked, each with the moment at which it is given up."""
        self._asked = 0
        self._arrived: list[int] = []
        """Numbers that are confirmed at the end of the loop's turn."""
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._head = b""
        self._chunks: Chunks | None = None
        self._frames = FrameDecoder()

    @property
    def usable(self) -> bool:
        """Whether it can be asked."""
        return self._chunks is not None and self._transport is not None

    @property
    def waiting(self) -> int:
        """How many have no answer yet."""
        return len(self._waiting)

    async def ask(self, body: bytes, seconds: float) -> RunAnswer | None:
        """See `RunStreams`."""
        assert self._transport is not None
        self._last = self._loop.time()
        coming: asyncio.Future[Frame | None] = self._loop.create_future()
        # Never used again: the answer to one that was given up may come at any time, and is nobody else's.
        self._asked = number = self._asked + 1
        self._waiting[number] = (coming, self._last + seconds)
        self._send(encode(FrameType.RUN, body, offset=number))
        try:
            found = await coming
        finally:
            self._waiting.pop(number, None)
        if found is None or not (found.payload or found.type != FrameType.RAN):
            return None
        return RunAnswer(found.type, found.payload, partial(self._confirm, number) if found.stream else None)

    def close(self) -> None:
        """Close it; what is under way is asked for by itself."""
        if self._timer is not None:
            self._timer.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if not self.opened.done():
            self.opened.set_result(0)
        for coming, _ in self._waiting.values():
            if not coming.done():
                coming.set_result(None)

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of asyncio's
        self._transport.write(_OPENING)
        self._watch()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next piece goes: it is taken from there at once."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """A piece of the answer."""
        data = self._room[:nbytes]
        try:
            if self._chunks is None:
                data = self._take_head(data)
            for piece in () if self._chunks is None else self._chunks.feed(data):
                if piece is None:
                    self.close()
                    return
                for frame in self._frames.feed(piece):
                    self._take(frame)
        except ValueError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self.close()

    # -- inside

    def _send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))

    def _confirm(self, number: int) -> bool:
        """Say that an answer has arrived, together with others; False if this stream has ended."""
        if not self.usable:
            return False
        if not self._arrived:
            self._loop.call_soon(self._send_arrived)
        self._arrived.append(number)
        return True

    def _send_arrived(self) -> None:
        numbers, self._arrived = self._arrived, []
        for start in range(0, len(numbers), CONFIRMED_AT_ONCE):
            some = numbers[start : start + CONFIRMED_AT_ONCE]
            self._send(encode(FrameType.CONFIRMED, struct.pack(f">{len(some)}Q", *some)))

    def _take_head(self, data: memoryview) -> memoryview:
        """What comes behind the head, once that is whole."""
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            if len(self._head) > LARGEST_HEAD_BYTES:
                raise ValueError("its head is too large")
            return data[:0]
        said = parse_head(head)
        if not self.opened.done():
            self.opened.set_result(said.status)
        if said.status != 200 or not said.chunked:
            raise ValueError(f"status {said.status}")
        self._chunks = Chunks()
        return memoryview(rest)

    def _take(self, frame: Frame) -> None:
        coming, _ = self._waiting.get(frame.offset, (None, 0.0))
        if coming is not None and not coming.done():
            coming.set_result(frame)

    def _watch(self) -> None:
        """One timer for all: looks now and then whether anything is waited for, and for too long."""
        now = self._loop.time()
        first = next(iter(self._waiting.values()), None)
        if first[1] <= now if first is not None else now - self._last >= IDLE_SECONDS:
            self.close()
        else:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._watch)
