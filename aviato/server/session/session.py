"""One session: the connection of a client that speaks frames, and the requests that are under way over it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from aviato.exceptions import AviatoError, SandboxResourceExhaustedError
from aviato.server.callers import CALLER, OPERATOR
from aviato.server.operations.call import Call
from aviato.server.operations.failures import failed
from aviato.server.session.channel import Channel
from aviato.wire.flow import Writing
from aviato.wire.frames import Frame, FrameError, FramePieces, FrameType, every_channel
from aviato.wire.session import WHOLE, parse_head

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from aviato.server.callers import Caller
    from aviato.server.connections.guard import Guard
    from aviato.server.operations.bodies import Bodies
    from aviato.server.operations.routes import Routes
    from aviato.server.service import Service

log = logging.getLogger(__name__)

HIGH_WATER_BYTES = 256 << 10
"""So much lies in this process for a connection before answers wait, and requests."""
MOST_UNDER_WAY = 20_000
"""Requests of one tenant, over all its sessions. The server's own user may have any number."""
AGAIN_SECONDS = 1.0


class Session(Writing, asyncio.Protocol):
    """The server's end of a session.

    Args:
        service: does the work.
        routes: find the operations.
        bodies: how much of those may be read at a time.
        guard: lets each of its requests in, but those of the server's own user: whoever has opened a Unix socket stays it.
        under_way: how many requests of each tenant are, over all sessions.
        caller: whose session it is.
        headers: with which it was opened.
        on_lost: told when the connection has ended.

    Attributes:
        transport: of the connection; None before it and after it.
        channels: the requests that are under way, by number.
        tenant: of whose session it is.
        answering: what is under way.
    """

    def __init__(
        self,
        service: Service,
        routes: Routes,
        bodies: Bodies,
        guard: Guard,
        under_way: Counter[str | None],
        caller: Caller,
        headers: Mapping[str, str],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__()
        self.bodies = bodies
        self.answering: set[asyncio.Task[None]] = set()
        self._service = service
        self._routes = routes
        self._guard = guard
        self._under_way = under_way
        self._caller = caller
        self.tenant = caller.tenant
        self._headers = headers
        self._on_lost = on_lost
        self._frames = FramePieces(every_channel)
        self.channels: dict[int, Channel] = {}

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

    def close(self) -> None:
        """End it, whatever is under way."""
        if self.transport is not None:
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
        for channel in self.channels.values():
            channel.lost()
        for task in self.answering:
            task.cancel()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Frames, or pieces of them."""
        try:
            for frame in self._frames.feed(data):
                if frame.type == FrameType.OPEN:
                    self._open(frame)
                elif (channel := self.channels.get(frame.channel)) is not None:  # Else its answer was on the way.
                    channel.take(frame)
        except ValueError as error:
            log.warning("a session ends: what its client says is none: %s", error)
            if self.transport is not None:
                self.transport.abort()

    # -- inside

    def _open(self, frame: Frame) -> None:
        number = frame.channel
        if number == 0 or number in self.channels:
            raise FrameError(f"channel {number} is opened where it cannot be")
        if frame.offset > len(frame.payload):
            raise FrameError("a head that is longer than its frame")
        said = parse_head(frame.payload[: frame.offset])
        first = frame.payload[frame.offset :]
        channel = Channel(self, number, said.headers, first, whole=frame.stream == WHOLE)
        self.channels[number] = channel
        task = channel.task = self.loop.create_task(self._answer(said.first, channel))
        self.answering.add(task)
        self._under_way[self.tenant] += 1
        task.add_done_callback(self._answered)
        if first and self.tenant is not None:
            channel.count(len(first))

    def _answered(self, task: asyncio.Task[None]) -> None:
        self.answering.discard(task)
        self._under_way[self.tenant] -= 1

    async def _answer(self, line: str, channel: Channel) -> None:
        """See what is asked for, and whether it may be asked, do it, and send what comes of it."""
        try:
            try:
                target = self._routes.find(line)
            except AviatoError:
                await self._check(None, line)
                raise
            caller = self._caller
            if caller is not OPERATOR:
                caller = await self._check(target.operation.path, line)
                caller.check_size(channel.size_bytes or 0)
            CALLER.set(caller)
            reply = await target.operation(Call(channel, self._service, target.variables, target.query))
        except Exception as error:
            reply = failed(error, line)
        try:
            await channel.send(reply)
        except Exception as error:
            # The client sees a break and resumes, or fails, by itself.
            if not isinstance(error, (ConnectionError, AviatoError, FrameError)):
                log.error("an answer broke off", exc_info=error)
            channel.break_off()
        finally:
            if reply.stack is not None:
                await reply.close()

    async def _check(self, route: str | None, line: str) -> Caller:
        """Who asks; raises where that may not come in."""
        if self.tenant is not None and self._under_way[self.tenant] > MOST_UNDER_WAY:
            raise SandboxResourceExhaustedError(
                f"this caller has {MOST_UNDER_WAY} requests under way", retry_delay_seconds=AGAIN_SECONDS
            )
        return await self._guard.caller(self.transport, self._headers, route, line.partition(" ")[2])
