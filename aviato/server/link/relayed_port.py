"""A connection to a port inside whose bytes go over the link: one end of a relay."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

from aviato.wire.frames import Frame, FrameType

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aviato.server.link.ended import Ended
    from aviato.server.port_relay import End

WINDOW_BYTES = 128 << 10
"""So much may be ahead of what the other side has taken, each way; process 1 breaks off who sends more."""


class RelayedPort:
    """To its link it is a `Channel`; to `relay` it is an `End`, which is one of the two sides.

    Args:
        loop: of the link.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lost = False
        self.received = 0
        self.answer: asyncio.Future[None] = loop.create_future()
        """Done once it has come about, or has not."""
        self.answer.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._send: Callable[[int, bytes, int], None]
        self._give_up: Callable[[], None]
        self._other: End | None = None
        self._over: asyncio.Future[None]
        self._early: list[bytes] = []
        """What has come before there was another end."""
        self._waiting = b""
        """What the window has no room for: less than one read of the other end, which waits meanwhile."""
        self._sent = self._taken = self._credited = 0
        self._is_held = self._holds = self._closing = False
        self._finished = self._said_end = self._ended = False

    def use(self, send: Callable[[int, bytes, int], None], give_up: Callable[[], None]) -> None:
        """Its channel: how a frame goes out, by type, payload and offset, and how it is given up."""
        self._send, self._give_up = send, give_up

    async def connected(self) -> None:
        """Return once it has come about.

        Raises:
            ConnectionRefusedError: nobody listens.
            TimeoutError: whoever listens does not accept.
            OSError: it cannot be had.
        """
        await self.answer

    # -- Channel

    def frame(self, frame: Frame) -> bool:
        """See `Channel`."""
        if frame.type == FrameType.DATA:
            self._came(bytes(frame.payload))
        elif frame.type == FrameType.CREDIT:
            self._taken = max(self._taken, frame.offset)
            self._flush()
        elif frame.type == FrameType.END:
            self._ended = True
            if self._other is not None:
                self._pass_end(self._other)
        elif frame.type == FrameType.REPLY:
            number = json.loads(frame.payload).get("errno")
            return self._answered(None if number is None else OSError(number, os.strerror(number)))
        elif frame.type == FrameType.ERROR:
            self._break()
            return True
        return False

    def gone(self, ended: Ended) -> None:
        """See `Channel`."""
        self._break()

    def _answered(self, error: OSError | None) -> bool:
        if error is not None:
            self.lost = True
            if not self.answer.done():
                self.answer.set_exception(error)
        elif not self.answer.done():
            self.answer.set_result(None)
        return self.lost

    def _came(self, data: bytes) -> None:
        self.received += len(data)
        if self._other is None:
            self._early.append(data)
        else:
            self._other.send(data)
            self._credit()

    def _credit(self) -> None:
        """Let more come, unless what has come waits for a slow reader."""
        if not self._is_held and self.received - self._credited >= WINDOW_BYTES // 4:
            self._credited = self.received
            self._send(FrameType.CREDIT, b"", self._credited)

    def _pass_end(self, other: End) -> None:
        other.finish()
        if self._finished:
            self.close()
            other.close()

    def _break(self) -> None:
        """It is cut off: the channel is no more."""
        self._answered(ConnectionResetError(errno.ECONNRESET, "the connection into the sandbox is cut off"))
        self._lose()
        if self._other is not None:
            self._other.abort(reset=True)

    def _lose(self) -> None:
        self.lost = True
        self._waiting = b""
        if self._other is not None and self._other.lost and not self._over.done():
            self._over.set_result(None)

    # -- End

    def join(self, other: End, over: asyncio.Future[None]) -> None:
        """See `End`."""
        self._other, self._over = other, over

    async def begin(self) -> None:
        """See `End`."""
        assert self._other is not None
        for data in self._early:
            self._other.send(data)
        self._early.clear()
        if self.lost:
            self._other.abort(reset=True)
            return
        self._credit()
        if self._ended:
            self._pass_end(self._other)

    def send(self, data: bytes) -> None:
        """See `End`."""
        if not self.lost:
            self._waiting = self._waiting + data if self._waiting else data
            self._flush()

    def finish(self) -> None:
        """See `End`."""
        self._finished = True
        if not self.lost:
            self._flush()

    def hold(self, paused: bool) -> None:
        """See `End`."""
        self._is_held = paused
        if not paused and not self.lost:
            self._credit()

    def close(self) -> None:
        """See `End`."""
        if self._other is None:
            self.abort()
        elif not self.lost:
            self._closing = True
            self._flush()

    def abort(self, *, reset: bool = False) -> None:
        """See `End`."""
        if not self.lost:
            self._give_up()
            self._lose()
            self.answer.cancel()

    def _flush(self) -> None:
        """Send what there is room for; then say the end, and once all was taken on both sides give the channel back."""
        room = WINDOW_BYTES - (self._sent - self._taken)
        if self._waiting and room > 0:
            piece, self._waiting = self._waiting[:room], self._waiting[room:]
            self._send(FrameType.DATA, piece, self._sent)
            self._sent += len(piece)
        if self._other is not None and bool(self._waiting) != self._holds:
            self._holds = bool(self._waiting)
            self._other.hold(self._holds)
        if self._finished and not self._waiting and not self._said_end:
            self._said_end = True
            self._send(FrameType.END, b"", self._sent)
        if self._closing and self._said_end and self._ended and self._taken >= self._sent:
            self.abort()
