"""One session: the connection of a client that speaks frames, and the requests that are under way over it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from aviato.exceptions import AviatoError
from aviato.server.callers import CALLER
from aviato.server.operations.call import Call
from aviato.server.operations.failures import failed
from aviato.server.session.channel import Channel
from aviato.wire.flow import Paused
from aviato.wire.frames import Frame, FrameDecoder, FrameError, FrameType
from aviato.wire.session import WHOLE, parse_head

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato.server.callers import Caller
    from aviato.server.operations.bodies import Bodies
    from aviato.server.operations.reply import Reply
    from aviato.server.operations.routes import Routes
    from aviato.server.service import Service

log = logging.getLogger(__name__)

HIGH_WATER_BYTES = 256 << 10
"""So much lies in this process for a connection before answers wait, and requests."""


class Session(Paused, asyncio.Protocol):
    """The server's end of a session.

    Args:
        service: does the work.
        routes: find the operations.
        bodies: how much of those may be read at a time.
        caller: whose session it is.
        check: says who asks, and whether one of its requests may come in, by its route and its path.
        on_requests: told how many are under way, and by how many that has changed.
        on_lost: told when the connection has ended.

    Attributes:
        transport: of the connection; None before it and after it.
        tenant: of whose session it is.
        answering: what is under way.
    """

    def __init__(
        self,
        service: Service,
        routes: Routes,
        bodies: Bodies,
        caller: Caller,
        *,
        check: Callable[[str | None, str], Awaitable[Caller]],
        on_requests: Callable[[int, int], None],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__()
        self.bodies = bodies
        self.transport: asyncio.Transport | None = None
        self.answering: set[asyncio.Task[None]] = set()
        self._service = service
        self._routes = routes
        self.tenant = caller.tenant
        self._check = check
        self._on_requests = on_requests
        self._on_lost = on_lost
        self._frames = FrameDecoder()
        self._channels: dict[int, Channel] = {}
        self._unsent: list[bytes | memoryview] = []
        self._unsent_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether what is sent may still arrive."""
        return self.transport is not None and not self.transport.is_closing()

    def write(self, *data: bytes | memoryview) -> None:
        """Send bytes of whole frames: what one turn of the loop has to say goes together."""
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent += data
        self._unsent_bytes += sum(map(len, data))
        if self._unsent_bytes > HIGH_WATER_BYTES:
            self._flush()  # Whoever has more to send in this turn sees then whether it may.

    async def drained(self) -> None:
        """Wait until the client reads as fast as it is sent to."""
        if self._unsent:
            self._flush()
        await super().drained()

    def pause_writing(self) -> None:
        """The client does not read: what it asks is not heard before it does, or its answers would pile up here."""
        super().pause_writing()
        if self.transport is not None:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        if self.transport is not None:
            self.transport.resume_reading()

    def release(self, number: int) -> None:
        """Let the number of a channel be used again."""
        del self._channels[number]

    def close(self) -> None:
        """End it, whatever is under way."""
        if self.transport is not None:
            self._flush()
            self.transport.close()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It speaks frames from now on."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of asyncio's
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, and with it all that was under way."""
        self.transport = None
        self.resume_writing()
        for channel in self._channels.values():
            channel.lost()
        for task in self.answering:
            task.cancel()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Frames, or pieces of them."""
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except ValueError as error:
            log.warning("a session ends: what its client says is none: %s", error)
            if self.transport is not None:
                self.transport.abort()

    # -- inside

    def _flush(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if unsent and self.transport is not None:
            self.transport.writelines(unsent)

    def _take(self, frame: Frame) -> None:
        if frame.type == FrameType.OPEN:
            self._open(frame)
            return
        channel = self._channels.get(frame.channel)
        if channel is None:
            return  # Its answer was on the way when this was sent.
        if frame.type == FrameType.DATA:
            channel.feed(frame.payload)
        elif frame.type == FrameType.END:
            channel.end()
        elif frame.type == FrameType.CREDIT:
            channel.allow(frame.offset)
        elif frame.type == FrameType.CUT:
            channel.cut()
        else:
            raise FrameError(f"a frame of type {frame.type}")

    def _open(self, frame: Frame) -> None:
        number = frame.channel
        if number == 0 or number in self._channels:
            raise FrameError(f"channel {number} is opened where it cannot be")
        if frame.offset > len(frame.payload):
            raise FrameError("a head that is longer than its frame")
        said = parse_head(frame.payload[: frame.offset])
        channel = Channel(self, number, said.headers, frame.payload[frame.offset :], whole=frame.stream == WHOLE)
        self._channels[number] = channel
        task = channel.task = self.loop.create_task(self._answer(said.first, channel))
        self.answering.add(task)
        self._on_requests(len(self.answering), 1)
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self.answering.discard(task)
        self._on_requests(len(self.answering), -1)

    async def _answer(self, line: str, channel: Channel) -> None:
        reply = await self._reply(line, channel)
        try:
            await channel.send(reply)
        except Exception as error:
            # The client sees a break and resumes, or fails, by itself.
            if not isinstance(error, (ConnectionError, AviatoError, FrameError)):
                log.error("an answer broke off", exc_info=error)
            channel.break_off()
        finally:
            await reply.close()

    async def _reply(self, line: str, channel: Channel) -> Reply:
        """See what is asked for, and whether it may be asked, and do it."""
        try:
            path = line.partition(" ")[2]
            try:
                target = self._routes.find(line)
            except AviatoError:
                await self._check(None, path)
                raise
            caller = await self._check(target.operation.path, path)
            CALLER.set(caller)
            caller.check_size(channel.size_bytes or 0)
            call = Call(request=channel, service=self._service, variables=target.variables, query=target.query)
            return await target.operation(call)
        except Exception as error:
            return failed(error, line)
