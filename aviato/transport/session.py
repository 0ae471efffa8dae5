"""One session with a server: a connection, and all that is asked over it. See `wire.session`."""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from aviato.exceptions import SandboxUnavailableError
from aviato.transport.channel import Channel
from aviato.wire.flow import Writing
from aviato.wire.frames import HEAD, FramePieces, FrameType
from aviato.wire.session import MOST_CHANNELS, WHOLE, encode_head
from aviato.wire.version import PID_HEADER, WIRE_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Sequence

    from aviato.transport.server import Server

    Body = Sequence[bytes] | AsyncIterable[bytes]

JOINED_BYTES = 64 << 10
"""A body of up to so much goes with its head, in one piece."""
LARGEST_ANSWER_BYTES = 64 << 10
"""Of HTTP, to the request that opens a session."""


class RefusedError(Exception):
    """The server opens no session.

    Args:
        status: that it answered.
        is_ours: it is an aviato server that did.
    """

    def __init__(self, status: int, *, is_ours: bool) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.is_ours = is_ours


class Session(Writing, asyncio.BufferedProtocol):
    """The client's end of a session.

    Args:
        server: on the other end.
        opening: the request that opens it.
        room: where what is read lies until it is taken, at once: the same memory for all sessions of a loop.
        on_lost: told once it has ended.

    Attributes:
        usable: it can be asked. One that says nothing where something should have come is not asked again.
        channels: what is under way, by number.
        common: headers that the server says once for all answers.
        opened: is done when requests can be sent; raises `RefusedError` where the server opens none.
        idle_since: when the last request was over, by the loop's clock.
    """

    def __init__(self, server: Server, opening: bytes, room: memoryview, on_lost: Callable[[Session], None]) -> None:
        super().__init__()
        self.opened: asyncio.Future[None] = self.loop.create_future()
        self.idle_since = self.loop.time()
        self.server = server
        self.usable = False
        self.channels: dict[int, Channel] = {}
        self.common: dict[str, str] = {}
        self._opening = opening
        self._on_lost = on_lost
        self._buffer = room
        self._begin = b""
        self._frames = FramePieces()
        self._last_number = 0
        self._unsent = 0
        """When that was looked at last: who takes some of it is not silent."""
        self._heard = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether its connection is."""
        return self.transport is not None and not self.transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.channels

    async def ask(
        self,
        line: str,
        headers: dict[str, str],
        body: Body | None,
        silence_seconds: float,
        head_seconds: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Channel:
        """Send a request; returns once the head of its answer is there.

        Args:
            line: method and path.
            headers: of the request.
            body: its pieces, or a source of them; None is none.
            silence_seconds: how long the server may take nothing and say nothing, then and while the answer's body comes.
            head_seconds: a shorter limit until the head is there.
            meanwhile: done while the head is on its way, before the body follows.

        Raises:
            TimeoutError: it said nothing for longer.
            ConnectionError: the connection ended, or the answer was cut.
            SandboxUnavailableError: what came is no session.
        """
        if not self.usable or self.transport is None:
            raise ConnectionResetError("the server closed it")
        number = self._last_number % MOST_CHANNELS + 1
        while number in self.channels:
            number = number % MOST_CHANNELS + 1
        self._last_number = number
        patience = silence_seconds if head_seconds is None else head_seconds
        channel = self.channels[number] = Channel(self, number, patience, silence_seconds)
        if self._timer is None or self._timer.when() > self.loop.time() + patience:
            self._watch(patience)
        try:
            first = encode_head(line, headers)
            joined = b"" if body is None else None
            if isinstance(body, (list, tuple)) and meanwhile is None and sum(map(len, body)) <= JOINED_BYTES:
                joined = b"".join(body)
            begin = first if joined is None else first + joined
            begin = HEAD.pack(FrameType.OPEN, 0 if joined is None else WHOLE, number, len(begin), len(first)) + begin
            if meanwhile is None:
                self.transport.write(begin)
            else:
                self._send_now(begin)
                meanwhile()
            if body is not None and joined is None:
                await channel.send(body)
            await channel.coming
            return channel
        except BaseException:
            channel.close()
            raise

    def noticed_silence(self, since: float) -> None:
        """A request has waited since then for as long as it may: if nobody else has heard anything, the other end is gone."""
        if self._heard <= since:
            self.usable = False

    def abort(self) -> None:
        """End it, whatever is under way."""
        self.usable = False
        if self.transport is not None:
            self.transport.abort()

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there, and speaks HTTP still."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of asyncio's
        self.transport.write(self._opening)
        self.usable = True

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next piece goes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Frames, or pieces of them."""
        data = self._buffer[:nbytes]
        self._heard = self.loop.time()
        try:
            if not self.opened.done():
                data = self._take_http(data)
            for frame in self._frames.feed(data):
                channel = self.channels.get(frame.channel)
                if channel is None:
                    raise ValueError(f"an answer on channel {frame.channel}, where nothing was asked")
                if channel.take(frame):
                    del self.channels[frame.channel]
                    if not self.channels:
                        self.idle_since = self._heard
        except ValueError as error:
            self._end(
                SandboxUnavailableError(
                    f"{self.server.endpoint.url}: not an answer that can be read ({error})", reason="protocol"
                )
            )
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and with it all that was under way."""
        self.transport, self.usable = None, False
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        self._end(ConnectionResetError("the server closed it" if exc is None else str(exc)))
        self._on_lost(self)

    # -- inside

    def _send_now(self, data: bytes) -> None:
        """Send at once: uvloop's transports wait for the end of the turn."""
        transport = self.transport
        if transport is None:
            return
        sent = 0
        if not transport.get_write_buffer_size():
            with suppress(OSError):  # The transport learns of it as well.
                sent = os.write(transport.get_extra_info("socket").fileno(), data)
        if sent < len(data):
            transport.write(data[sent:])

    def _take_http(self, data: memoryview) -> memoryview:
        """What comes behind the head of the answer to the opening, once that is whole."""
        self._begin += data
        said, end, rest = self._begin.partition(b"\r\n\r\n")
        if not end:
            if len(self._begin) > LARGEST_ANSWER_BYTES:
                raise ValueError("its head is too large")
            return data[:0]
        first, *lines = said.decode("latin-1").split("\r\n")
        status = first[9:12]
        if not first.startswith("HTTP/1.") or not status.isdigit():
            raise ValueError(f"it begins with {first[:40]!r}")
        for line in lines:  # A proxy on the way writes names as it likes.
            name, _, value = line.partition(":")
            for ours in (WIRE_HEADER, PID_HEADER):
                if name.lower() == ours.lower():
                    self.common[ours] = value.strip()
        if status != "101":
            self._refuse(RefusedError(int(status), is_ours=WIRE_HEADER in self.common))
            self.abort()
            return data[:0]
        self.opened.set_result(None)
        return memoryview(rest)

    def _end(self, error: Exception) -> None:
        """Nothing more comes."""
        if not self.opened.done():
            self._refuse(error)
        channels, self.channels = self.channels, {}
        for channel in channels.values():
            channel.end(error)

    def _refuse(self, error: Exception) -> None:
        self.opened.set_exception(error)
        self.opened.exception()  # Whoever waits hears of it; if nobody does any more, it is no news.

    def _watch(self, seconds: float) -> None:
        """Look after so many seconds whether the server is silent. One timer serves all: to set and cancel many costs more."""
        if seconds == math.inf or (self._timer is not None and self._timer.when() <= self.loop.time() + seconds):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        now, unsent = self.loop.time(), 0 if self.transport is None else self.transport.get_write_buffer_size()
        takes, self._unsent = unsent < self._unsent, unsent
        left = [channel.look(now, takes) for channel in list(self.channels.values())]
        if left:
            self._watch(max(0.001, min(left)))
