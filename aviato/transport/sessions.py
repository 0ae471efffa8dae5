"""The sessions of one loop with one server: opened when something is asked, and closed when nothing was for a while."""

from __future__ import annotations

import asyncio
import mmap
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aviato.exceptions import SandboxRequestTimeoutError, SandboxUnavailableError
from aviato.transport.connecting import connect
from aviato.transport.faults import CONNECT, check_wire_version
from aviato.transport.session import RefusedError, Session
from aviato.wire.session import encode_opening

if TYPE_CHECKING:
    from aviato.exceptions import AviatoError
    from aviato.transport.server import Server

IDLE_SECONDS = 30.0
"""How long one is kept that nobody uses."""
OPENING_SECONDS = 10.0
"""How long a connection may take until it can be asked; then whoever asks next makes another. The one on whom it waits may have
gone: a server that was replaced behind its name or its proxy. A server gives a connection as long to bring its key."""
FULL = 4096
"""With so many requests under way on one the next one opens another."""
ROOM_BYTES = 256 << 10
UNKNOWN = (400, 404, 405)
"""What a server answers that knows no sessions."""
ASK_AGAIN_SECONDS = 60.0
"""So long a server that opens none is asked by HTTP; it may have been the answer of somebody on the way."""


class Sessions:
    """Those with a server: one, and more only while that one is full.

    Args:
        server: the server.
        name: of its Unix socket, as `connect` takes it; None where it has none.
        idle_seconds: how long one is kept that nobody uses.
    """

    def __init__(self, server: Server, name: str | None, idle_seconds: float) -> None:
        self._server = server
        self._name = name
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self._room = memoryview(mmap.mmap(-1, ROOM_BYTES))
        """What is read is taken from there at once; pages that nothing has come to take no memory."""
        self._all: set[Session] = set()
        self._current: Session | None = None
        self._opening: asyncio.Task[Session | None] | None = None
        """The last one."""
        self._waiting = 0
        """Those who have not got a session yet, or have not gone on since."""
        self._timer: asyncio.TimerHandle | None = None
        self._credentials: dict[str, str] = {}
        """Of the current one."""
        self._by_http_until = 0.0

    async def session(self, seconds: float, credentials: dict[str, str]) -> Session | None:
        """One that can be asked; None where the server opens none, and answers requests of HTTP.

        Those who wait for one get it in the order in which they came: of sandboxes that are asked for one after the other
        the first must not be the last in the server's queue.

        Args:
            seconds: how long it may take.
            credentials: headers that say who asks.

        Raises:
            SandboxUnavailableError: no connection could be made within this time.
            SandboxRequestTimeoutError: one was, over which the server said nothing.
            OSError: none can be made.
        """
        if credentials != self._credentials:
            self._credentials, self._current, self._opening, self._by_http_until = credentials, None, None, 0.0
        current = self._current
        has_room = current is not None and current.usable and len(current.channels) < FULL
        opening = self._opening
        if has_room and (not self._waiting or (opening is not None and not opening.done())):
            return current
        if self._loop.time() < self._by_http_until:
            return None
        if opening is None or (opening.done() and not has_room):
            opening = self._opening = self._loop.create_task(self._open(credentials))
            opening.add_done_callback(_opened)
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds) as limit:
                await asyncio.wait((opening,))  # One that is done is waited for, too: behind those who were there before.
                return opening.result()
        except TimeoutError:
            if not limit.expired():
                raise  # It is the opening's own.
            is_there = any(session.is_open and not session.opened.done() for session in self._all)
            raise self._late(seconds, is_there=is_there) from None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Close them all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._opening is not None:
            self._opening.cancel()
        for session in list(self._all):
            session.abort()

    # -- inside

    async def _open(self, credentials: dict[str, str]) -> Session | None:
        asked = urlsplit(self._server.endpoint.origin)
        opening = encode_opening(credentials, asked.netloc, asked.path)
        session: Session | None = None
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                session = await connect(self._server.endpoint, self._name, lambda: self._new(opening))
                await session.opened
            check_wire_version(self._server.endpoint.url, session.common, reached=self._server.reached)
        except TimeoutError:
            if session is not None:
                session.abort()
            raise self._late(OPENING_SECONDS, is_there=session is not None) from None
        except RefusedError as error:
            if error.status in UNKNOWN or not error.is_ours:
                self._by_http_until = self._loop.time() + ASK_AGAIN_SECONDS
            return None
        except BaseException:
            if session is not None:
                session.abort()
            raise
        if credentials == self._credentials:
            self._current = session
        if self._timer is None:
            self._timer = self._loop.call_later(self._idle_seconds, self._close_idle)
        return session

    def _late(self, seconds: float, *, is_there: bool) -> AviatoError:
        """What it means that none is open after so long; `is_there`: a connection is."""
        url = self._server.endpoint.url
        if is_there:
            return SandboxRequestTimeoutError(f"{url}: no answer within {seconds:g} s")
        return SandboxUnavailableError(f"{url}: no connection within {seconds:g} s", reason=CONNECT)

    def _new(self, opening: bytes) -> Session:
        session = Session(self._server, opening, self._room, self._all.discard)
        self._all.add(session)
        return session

    def _close_idle(self) -> None:
        self._timer = None
        since = self._loop.time() - self._idle_seconds
        for session in [one for one in self._all if one.is_idle and one.idle_since <= since]:
            session.abort()
        if busy := [one for one in self._all if one.is_open]:
            first = min(self._loop.time() if not one.is_idle else one.idle_since for one in busy)
            self._timer = self._loop.call_later(max(0.001, first - since), self._close_idle)


def _opened(opening: asyncio.Task[Session | None]) -> None:
    if not opening.cancelled():
        opening.exception()  # Those who wait hear of it; there may be none left.
