"""The Unix socket's door: a command of our own client is answered here if it ends at once, and everything else by aiohttp.

For a command that does nothing, aiohttp takes a third of what the server takes. Its client says the same head each time, so a
request is known by its whole head; what is not known, does not end at once, or fails, goes to aiohttp as it came.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from typing import TYPE_CHECKING, NamedTuple, cast

from aviato.exceptions import AviatoError
from aviato.server.callers import OPERATOR
from aviato.server.middlewares import error_response
from aviato.server.routes.streaming import BEGUN, HOLD_BACK_BYTES, HOLD_BACK_SECONDS, Begun, hold_back
from aviato.server.routes.table import parse_body
from aviato.wire.execution import FRAMES_CONTENT_TYPE, ExecRequest
from aviato.wire.ids import SANDBOX_ID
from aviato.wire.version import PID_HEADER, WIRE_HEADER, WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web
    from aiohttp.web_protocol import RequestHandler

    from aviato.server.crowd import Crowd
    from aviato.server.guard import Guard
    from aviato.server.service import Service
    from aviato.server.service.feed import ExecFeed
    from aviato.server.service.left_feed import LeftFeed

log = logging.getLogger(__name__)

MOST_HEADS = 1024
"""So many are remembered: of one sandbox's commands, those of the same size have the same."""
AIOHTTP_SECONDS = 600.0
"""After so long one goes to aiohttp again, which else would take the connection for one that nobody uses."""
_HEAD = re.compile(
    rf"POST /v1/sandboxes/({SANDBOX_ID.pattern})/execs HTTP/1\.1\r\nHost: localhost\r\n{WIRE_HEADER}: {WIRE_VERSION}\r\n"
    r"Content-Type: application/json\r\nContent-Length: ([1-9][0-9]{0,5})".encode()
)


class _Known(NamedTuple):
    sandbox_id: str
    size_bytes: int


class Desk:
    """What all doors of a server have in common.

    Args:
        app: answers what goes to aiohttp.
        service: does the work.
        guard: knows which connections were let in.
        crowd: counts the requests that are under way.
    """

    def __init__(self, app: web.Application, service: Service, guard: Guard, crowd: Crowd) -> None:
        self.service = service
        self.guard = guard
        self.crowd = crowd
        self.begun = app[BEGUN]
        self.answering: set[asyncio.Task[None]] = set()
        self._heads: dict[bytes, _Known] = {}
        self._common = f"{WIRE_HEADER}: {WIRE_VERSION}\r\n{PID_HEADER}: {os.getpid()}\r\nContent-Length: "
        self._whole = f"HTTP/1.1 200 OK\r\nContent-Type: {FRAMES_CONTENT_TYPE}\r\n{self._common}".encode()

    def doors(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """The maker of doors, each before a protocol of aiohttp's."""
        return lambda: Door(self, cast("RequestHandler", make()))

    def known(self, data: bytes) -> tuple[str, bytes] | None:
        """The sandbox and the body of a whole request for a command, said as our client does; None for whatever else."""
        head, end, body = data.partition(b"\r\n\r\n")
        if not end:
            return None
        known = self._heads.get(head)
        if known is None:
            found = _HEAD.fullmatch(head)
            if found is None:
                return None
            known = _Known(found[1].decode(), int(found[2]))
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            self._heads[head] = known
        return (known.sandbox_id, body) if len(body) == known.size_bytes else None

    def whole(self, frames: bytes) -> bytes:
        """The answer to a command that has ended."""
        return b"%b%d\r\n\r\n%b" % (self._whole, len(frames), frames)

    def error(self, error: AviatoError) -> bytes:
        """The answer to one that came to no result, as aiohttp would give it."""
        response = error_response(error)
        body = response.body
        assert isinstance(body, bytes)
        lines = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items() if name != "Content-Length")
        head = f"HTTP/1.1 {response.status} {response.reason}\r\n{lines}{self._common}{len(body)}\r\n\r\n"
        return head.encode("latin-1") + body

    async def close(self, seconds: float) -> None:
        """Wait for those that are answered here: they end at once, or go to aiohttp."""
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
        self._held: list[bytes] = []
        """What came before the answer to what came before it."""
        self._within = False
        """A request has begun to come of which aiohttp waits for the rest."""
        self._passed_at = 0.0

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended; what is answered here ends by itself, in a moment."""
        self._transport = None
        self._held = []
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
            and not desk.crowd.is_large
            and self._loop.time() - self._passed_at < AIOHTTP_SECONDS
        )

    def _pass_on(self, data: bytes) -> None:
        idle = self._is_idle()
        self._passed_at = self._loop.time()
        self._inner.data_received(data)
        if idle or self._within:
            waiter = getattr(self._inner, "_waiter", None)
            self._within = waiter is not None and not waiter.done()

    def _begin(self, sandbox_id: str, body: bytes, data: bytes) -> bool:
        """Begin the command; False where aiohttp shall see what is wrong."""
        desk = self._desk
        try:
            request = cast("ExecRequest", parse_body(ExecRequest, body))
            feed = desk.service.execs.start(sandbox_id, request)
        except AviatoError:
            return False
        desk.crowd.take_in(self._inner, OPERATOR)
        self._answering = self._loop.create_task(self._answer(feed, data))
        desk.answering.add(self._answering)
        return True

    async def _answer(self, feed: ExecFeed | LeftFeed, data: bytes) -> None:
        said: bytes | None = None
        try:
            held = await hold_back(feed, HOLD_BACK_SECONDS)
            if feed.over and len(held) <= HOLD_BACK_BYTES:
                said = self._desk.whole(held)
            else:
                self._desk.begun[self._inner] = Begun(feed, held)
        except AviatoError as error:
            said = self._desk.error(error)
        except Exception:
            log.exception("a command failed at the door, and is asked for again")
        finally:
            self._over(feed, said, data)

    def _over(self, feed: ExecFeed | LeftFeed, said: bytes | None, data: bytes) -> None:
        answering, self._answering = self._answering, None
        if answering is not None:
            self._desk.answering.discard(answering)
        self._desk.crowd.end(self._inner)
        transport = self._transport
        if said is not None and transport is not None and not transport.is_closing():
            transport.write(said)
        if self._inner not in self._desk.begun:
            feed.close()
        if transport is None:
            self._forget()
            return
        if said is None:
            self._pass_on(data)
        if self._held:
            held, self._held = self._held, []
            transport.resume_reading()
            for piece in held:
                self.data_received(piece)

    def _forget(self) -> None:
        """What was begun here and nobody went on with."""
        if (begun := self._desk.begun.pop(self._inner, None)) is not None:
            begun.feed.close()
