"""A connection that may be cut while process 1 lives on: another one goes on where it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoError
from aviato.server.link.connection import Connection
from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.link.payload import as_json
from aviato.server.link.subscription import Subscription
from aviato.wire.frames import FramePieces, FrameType

if TYPE_CHECKING:
    import socket

    from aviato.wire.frames import Frame

log = logging.getLogger(__name__)

Reopen = Callable[[], Awaitable["socket.socket | None"]]

HELLO_SECONDS = 10.0
PAUSE_SECONDS = 0.2
MOST_CONFIRMED = 256


class LastingConnection(Connection):
    """Where it can be made anew, commands go on over the next one, from the offsets that had come; all else is cut off."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(sandbox_id)
        self._reopen: Reopen | None = None
        """Gives another connection, or None where process 1 does not live on; where that is None, a lost one is its end."""
        self._coming_back: asyncio.Task[None] | None = None
        self._confirmed: dict[str, dict[str, Any]] = {}
        """What was said last of the output of commands that are not over, which may not have arrived."""
        self._forgotten: dict[str, dict[str, Any]] = {}
        """The same of the latest whole results."""
        self._unheard: list[bytes] = []
        """Requests without an answer that may not have arrived."""

    def detach(self) -> None:
        """See `Connection`."""
        if self._coming_back is not None:
            self._coming_back.cancel()
        super().detach()

    def _note(self, confirmed: dict[str, Any]) -> None:
        """Keep what is said of a result, for a connection after this one."""
        exec_id = confirmed["exec_id"]
        if not confirmed["done"]:
            self._confirmed[exec_id] = confirmed
            return
        self._confirmed.pop(exec_id, None)
        self._forgotten[exec_id] = confirmed
        if len(self._forgotten) > MOST_CONFIRMED:
            del self._forgotten[next(iter(self._forgotten))]

    def _say(self, request: bytes) -> None:
        """Send a request that has no answer; where a connection can be lost, over the next one too until it has arrived."""
        if self._away is None:
            self._send(FrameType.REQUEST, request)
        if self._reopen is not None and not (self._detached or self._ended_future.done()):
            self._until_heard(request)

    def _until_heard(self, request: bytes) -> None:
        """Say it again over other connections, until the answer to what is asked behind it says that it has arrived."""
        self._unheard.append(request)
        if self._away is None:
            self._look_whether_heard(request)

    def _look_whether_heard(self, request: bytes) -> None:
        channel = self._open(_Heard(lambda: self._unheard.remove(request)), at_end=True)
        self._send(FrameType.REQUEST, _PING, channel=channel)

    def _was_lost(self, message: str) -> None:
        if self._reopen is None or self._detached or self._ended_future.done():
            super()._was_lost(message)
        elif self._coming_back is None:
            self._away = Ended(reason="cut", message="its connection is being made anew")
            self._writable.set()  # Of a connection that is no more nobody says that it can be written to again.
            self._coming_back = self._loop.create_task(self._come_back(self._reopen, message))
        elif not self._ready.done():
            self._ready.set_exception(ConnectionResetError(message))

    async def _come_back(self, reopen: Reopen, message: str) -> None:
        """Go on over another connection: commands as they were, what else was under way is told that it was cut off."""
        try:
            while True:
                self._cut(message)
                try:
                    sock = await reopen()
                except SandboxGone as gone:
                    self._is_back()
                    return self._lose(gone.ended)
                if sock is None:
                    self._is_back()
                    return self._lose(Ended(reason="lost", message=message))
                self._ready, self._decoder = self._loop.create_future(), FramePieces()
                try:
                    self._transport = None
                    await self._use(sock)
                    async with asyncio.timeout(HELLO_SECONDS):
                        await self._ready
                    break
                except (OSError, TimeoutError, SandboxGone, AviatoError) as error:
                    log.info("sandbox %s: a new connection came to nothing: %r", self.sandbox_id, error)
                    self._leave(sock)
                    await asyncio.sleep(PAUSE_SECONDS)
            self._is_back()
            if self._ended_future.done():
                return
            for request in self._unheard:
                self._send(FrameType.REQUEST, request)
                self._look_whether_heard(request)
            self._active.difference_update(self._forgotten)  # It had not heard that they were received when it named them.
            for said in (*self._forgotten.values(), *self._confirmed.values()):
                self._send(FrameType.ACK, as_json(said))
            for exec_id, (channel, subscription) in self._subscriptions.items():
                if subscription.progress is not None:
                    self._send(FrameType.REQUEST, as_json(subscription.progress.again(exec_id)), channel=channel)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self._is_back()
            log.exception("sandbox %s cannot be gone on with", self.sandbox_id)
            self._lose(Ended(reason="lost", message=f"{message}; {type(error).__name__}"))

    def _leave(self, sock: socket.socket) -> None:
        """Have nothing to do any more with a new connection that came to nothing, whatever is heard of it later."""
        transport, self._transport = self._transport, None
        if transport is None:
            sock.close()
        else:
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
        self._close_second()

    def _is_back(self) -> None:
        self._coming_back = self._away = None

    def _cut(self, message: str) -> None:
        ended = Ended(reason="cut", message=message)
        for number, channel in list(self._channels.items()):
            if not isinstance(channel, Subscription):
                del self._channels[number]
                channel.gone(ended)


async def through_cuts(call: Callable[[], Awaitable[object]], is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Make a call, again as often as its connection is cut: for what nobody waits for.

    Args:
        call: has its effect once, however often it is made. What else goes wrong with it nobody hears.
        is_wanted: whether it still is, asked before each try.
    """
    with suppress(AviatoError):
        while is_wanted():
            try:
                await call()
            except SandboxGone as gone:
                if gone.ended.reason != "cut":
                    return
            else:
                return
            await asyncio.sleep(PAUSE_SECONDS)


class _Heard:
    """A request whose answer says that what was sent before it has arrived.

    Args:
        on_answer: told then.
    """

    def __init__(self, on_answer: Callable[[], None]) -> None:
        self._on_answer = on_answer

    def frame(self, frame: Frame) -> bool:
        """See `Channel`."""
        self._on_answer()
        return True

    def gone(self, ended: Ended) -> None:
        """See `Channel`."""


_PING = as_json({"op": "ping"})
