"""The Unix socket's door: what our own client asks for most is answered here where that is short, all else by aiohttp.

Of a command that does nothing, and of a file, aiohttp takes a third of what the server takes. Our client says its heads always
in the same way, so a request is known by its head; what is not known, not small or not over at once goes to aiohttp as it came.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, cast

from aviato.exceptions import AviatoError
from aviato.server.callers import OPERATOR
from aviato.server.middlewares import error_response
from aviato.server.peers import peer_pid
from aviato.server.routes import short
from aviato.server.routes.streaming import BEGUN, HOLD_BACK_BYTES, Begun, hold_back_exec
from aviato.wire.execution import FRAMES_CONTENT_TYPE
from aviato.wire.version import PID_HEADER, WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from aiohttp import web
    from aiohttp.web_protocol import RequestHandler

    from aviato.server.connection_limit import ConnectionLimit
    from aviato.server.guard import Guard
    from aviato.server.service import Service
    from aviato.server.service.feed import ExecFeed
    from aviato.server.service.left_feed import LeftFeed

log = logging.getLogger(__name__)

MOST_HEADS = 1024
"""So many are remembered: of one sandbox's commands, those of the same size have the same."""
LONGEST_HEAD_BYTES = 16 << 10
AIOHTTP_SECONDS = 600.0
"""After so long one goes to aiohttp again, which else would take the connection for one that nobody uses."""
_END = b"\r\n\r\n"


class Desk:
    """What all doors of a server have in common.

    Args:
        app: answers what goes to aiohttp.
        service: does the work.
        guard: knows which connections were let in.
        connection_limit: counts the requests that are under way.
    """

    def __init__(self, app: web.Application, service: Service, guard: Guard, connection_limit: ConnectionLimit) -> None:
        self.service = service
        self.guard = guard
        self.connection_limit = connection_limit
        self.begun = app[BEGUN]
        self.answering: set[asyncio.Task[None]] = set()
        self._heads: dict[bytes, short.Head] = {}
        self._common = f"{WIRE_HEADER}: {WIRE_VERSION}\r\n{PID_HEADER}: {os.getpid()}\r\n"
        self._frames = f"HTTP/1.1 200 OK\r\nContent-Type: {FRAMES_CONTENT_TYPE}\r\n{self._common}Content-Length: ".encode()

    def doors(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """The maker of doors, each before a protocol of aiohttp's."""
        return lambda: Door(self, cast("RequestHandler", make()))

    def known(self, data: bytes) -> tuple[short.Head, bytes] | None:
        """Head and body of one whole request, or what comes before a body that follows; None for whatever else."""
        position = data.find(_END, 0, LONGEST_HEAD_BYTES)
        if position < 0:
            return None
        line, body = data[: position + 2], data[position + 4 :]
        head = self._heads.get(line)
        if head is None:
            head = short.read_head(line)
            if head is None:
                return None
            if head.comes_again:
                if len(self._heads) >= MOST_HEADS:
                    self._heads.clear()
                self._heads[line] = head
        return (head, body) if len(body) == head.size_bytes or (not body and head.is_followed) else None

    def whole(self, frames: bytes) -> bytes:
        """The answer to a command that has ended."""
        return b"%b%d\r\n\r\n%b" % (self._frames, len(frames), frames)

    def answer(self, status: str, headers: str, body: bytes | None) -> bytes:
        """Any answer."""
        size = "" if body is None else f"Content-Length: {len(body)}\r\n"
        return f"HTTP/1.1 {status}\r\n{headers}{self._common}{size}\r\n".encode("latin-1") + (body or b"")

    def error(self, error: AviatoError) -> bytes:
        """The answer to what came to no result, as aiohttp would give it."""
        response = error_response(error)
        body = response.body
        assert isinstance(body, bytes)
        lines = (f"{name}: {value}\r\n" for name, value in response.headers.items() if name != "Content-Length")
        return self.answer(f"{response.status} {response.reason}", "".join(lines), body)

    async def close(self, seconds: float) -> None:
        """Wait for what is answered here."""
        if self.answering:
            await asyncio.wait(self.answering, timeout=seconds)


class Door(asyncio.Protocol):
    """Of one connection.

    Args:
        desk: of all.
        inner: aiohttp's protocol of this connection.
    """

    def __init__(self, desk: Desk, inner: RequestHandler) -> None:
        self._desk = desk
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None
        self._body: asyncio.Future[bytes] | None = None
        """What follows a head that is known."""
        self._held: list[bytes] = []
        """What came before the answer to what came before it."""
        self._within = False
        """A request has begun to come of which aiohttp waits for the rest."""
        self._passed_at = 0.0
        self._pid: int | None = None
        """Of the client, where it has lent something."""

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._transport = None
        self._held = []
        if self._answering is not None:
            self._answering.cancel()
        self._inner.connection_lost(exc)
        self._forget()

    def pause_writing(self) -> None:
        """The client does not read."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """It does again."""
        self._inner.resume_writing()

    def eof_received(self) -> None:
        """The client sends no more."""
        self._inner.eof_received()

    def data_received(self, data: bytes) -> None:
        """A request, or a piece of one."""
        if self._answering is not None:
            if self._body is not None and not self._body.done():
                self._body.set_result(data[:1])
                data = data[1:]
                if not data:
                    return
            # Our client does not do so.
            self._held.append(data)
            if self._transport is not None:
                self._transport.pause_reading()
            return
        if self._is_idle():
            self._forget()
            if (known := self._desk.known(data)) is not None and self._may_answer() and self._begin(*known, data):
                return
        self._pass_on(data)

    # -- inside

    def _is_idle(self) -> bool:
        """Whether what comes now is the beginning of a request: aiohttp waits for one, and has no part of any."""
        waiter = getattr(self._inner, "_waiter", None)
        return waiter is not None and not waiter.done() and not self._within

    def _may_answer(self) -> bool:
        desk = self._desk
        return (
            self._transport is not None
            and desk.guard.knows(self._transport)
            and desk.service.is_ready
            and not desk.connection_limit.is_large
            and self._loop.time() - self._passed_at < AIOHTTP_SECONDS
        )

    def _pass_on(self, data: bytes) -> None:
        idle = self._is_idle()
        self._passed_at = self._loop.time()
        self._inner.data_received(data)
        if idle or self._within:
            waiter = getattr(self._inner, "_waiter", None)
            self._within = waiter is not None and not waiter.done()

    def _begin(self, head: short.Head, body: bytes, data: bytes) -> bool:
        """Begin with a request; False where aiohttp shall see what is wrong with it."""
        transport, service = self._transport, self._desk.service
        assert transport is not None
        answering: Coroutine[None, None, bytes | None]
        if head.kind == short.EXEC:
            feed = short.start_exec(service, head, body)
            if feed is None:
                return False
            answering = self._command(feed)
        elif head.kind in (short.CREATE, short.STOP):
            asked = short.create(service, body, transport) if head.kind == short.CREATE else short.stop(service, head, body)
            if asked is None:
                return False
            answering = self._short(asked)
        elif head.kind == short.READ:
            answering = self._short(short.read(service, head, self._lender(head, transport)))
        else:
            if not body and head.size_bytes:
                self._body = self._loop.create_future()
            given = body if self._body is None else self._following(self._body)
            answering = self._short(short.write(service, head, self._lender(head, transport), given))
        self._desk.connection_limit.take_in(self._inner, OPERATOR)
        self._answering = self._loop.create_task(self._answer(answering, data))
        self._desk.answering.add(self._answering)
        return True

    def _lender(self, head: short.Head, transport: asyncio.Transport) -> int | None:
        """The process that connected, which stays the same."""
        if self._pid is None and head.memory is not None:
            self._pid = peer_pid(transport)
        return self._pid

    async def _answer(self, answering: Coroutine[None, None, bytes | None], data: bytes) -> None:
        said: bytes | None = None
        try:
            try:
                said = await answering
            except AviatoError as error:
                said = self._desk.error(error)
            except Exception:
                log.exception("a request failed at the door, and goes to aiohttp")
            if self._body is not None:
                # Else it would be taken for what comes after the answer.
                data += await self._body
        finally:
            self._body = None
            self._over(said, data)

    async def _command(self, feed: ExecFeed | LeftFeed) -> bytes | None:
        goes_on = False
        try:
            held = await hold_back_exec(feed)
            if feed.over and len(held) <= HOLD_BACK_BYTES:
                return self._desk.whole(held)
            if self._transport is not None:
                self._desk.begun[self._inner] = Begun(feed, held)
                goes_on = True
            return None
        finally:
            if not goes_on:
                feed.close()

    async def _short(self, answering: Coroutine[None, None, short.Answer | None]) -> bytes | None:
        answer = await answering
        return None if answer is None else self._desk.answer(*answer)

    @staticmethod
    async def _following(body: asyncio.Future[bytes]) -> AsyncIterator[bytes]:
        yield await body

    def _over(self, said: bytes | None, data: bytes) -> None:
        if self._answering is not None:
            self._desk.answering.discard(self._answering)
            self._answering = None
        self._desk.connection_limit.end(self._inner)
        transport = self._transport
        if transport is None:
            self._forget()
            return
        if said is None:
            self._pass_on(data)
        elif not transport.is_closing():
            transport.write(said)
        if self._held:
            held, self._held = self._held, []
            transport.resume_reading()
            for piece in held:
                self.data_received(piece)

    def _forget(self) -> None:
        """What was begun here and nobody went on with."""
        if (begun := self._desk.begun.pop(self._inner, None)) is not None:
            begun.feed.close()
