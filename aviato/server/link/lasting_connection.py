"""A connection that may be cut while process 1 lives on: another one goes on where it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoError
from aviato.server.link.connection import Connection
from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.link.payload import as_json
from aviato.server.link.subscription import Subscription
from aviato.wire.frames import FramePieces, FrameType

if TYPE_CHECKING:
    import socket

log = logging.getLogger(__name__)

Reopen = Callable[[], Awaitable["socket.socket | None"]]

HELLO_SECONDS = 10.0
MOST_CONFIRMED = 256


class LastingConnection(Connection):
    """Where it can be made anew, commands go on over the next one, from the offsets that had come; all else is cut off."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(sandbox_id)
        self._reopen: Reopen | None = None
        """Gives another connection, or None where process 1 does not live on; where that is None, a lost one is its end."""
        self._coming_back: asyncio.Task[None] | None = None
        self._confirmed: dict[str, dict[str, Any]] = {}
        """What was said last of results that were received, which may not have arrived."""

    def detach(self) -> None:
        """See `Connection`."""
        if self._coming_back is not None:
            self._coming_back.cancel()
        super().detach()

    def _note(self, confirmed: dict[str, Any]) -> None:
        """Keep what is said of a result, for a connection after this one."""
        exec_id = confirmed["exec_id"]
        self._confirmed.pop(exec_id, None)
        self._confirmed[exec_id] = confirmed
        if len(self._confirmed) > MOST_CONFIRMED:
            del self._confirmed[next(iter(self._confirmed))]

    def _was_lost(self, message: str) -> None:
        if self._reopen is None or self._detached or self._ended_future.done():
            super()._was_lost(message)
        elif self._coming_back is None:
            self._away = Ended(reason="cut", message="its connection is being made anew")
            self._coming_back = self._loop.create_task(self._come_back(self._reopen, message))

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
                    await self._use(sock)
                    async with asyncio.timeout(HELLO_SECONDS):
                        await self._ready
                    break
                except (OSError, TimeoutError, SandboxGone, AviatoError) as error:
                    log.info("sandbox %s: a new connection came to nothing: %r", self.sandbox_id, error)
                    sock.close()
            self._is_back()
            for said in self._confirmed.values():
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

    def _is_back(self) -> None:
        self._coming_back = self._away = None

    def _cut(self, message: str) -> None:
        ended = Ended(reason="cut", message=message)
        for number, channel in list(self._channels.items()):
            if not isinstance(channel, Subscription):
                del self._channels[number]
                channel.gone(ended)
