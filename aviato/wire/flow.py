"""How bodies of a framed session flow: no more of one is on its way than its reader has room for. See `wire.session`."""

from __future__ import annotations

import asyncio
from typing import Protocol

from aviato.wire.frames import FrameType, head
from aviato.wire.session import PIECE_BYTES, WINDOW_BYTES


class Carrier(Protocol):
    """A session, as bodies see it."""

    loop: asyncio.AbstractEventLoop

    def write(self, *data: bytes | memoryview) -> None:
        """Send bytes of whole frames."""

    async def drained(self) -> None:
        """Wait until the other side reads as fast as it is sent to."""


class Writing:
    """What a protocol of asyncio's sends, and is told of its socket: for both ends of a session.

    Attributes:
        loop: of the protocol.
        transport: of its connection; None before that is there, and after its end.
        is_paused: what lies here waits for the socket.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.loop = asyncio.get_running_loop()
        self.is_paused = False
        self._paused: asyncio.Future[None] | None = None
        """Waits until the socket has taken what lies here."""

    def pause_writing(self) -> None:
        """The socket takes no more."""
        self.is_paused = True
        if self._paused is None:
            self._paused = self.loop.create_future()

    def resume_writing(self) -> None:
        """It has taken what there was."""
        self.is_paused = False
        paused, self._paused = self._paused, None
        if paused is not None and not paused.done():
            paused.set_result(None)

    def write(self, *data: bytes | memoryview) -> None:
        """Send bytes of whole frames. uvloop sends what one turn has to say together."""
        if self.transport is not None:
            if len(data) == 1:
                self.transport.write(data[0])
            else:
                self.transport.writelines(data)

    async def drained(self) -> None:
        """Wait until the other side reads as fast as it is sent to."""
        if self._paused is not None:
            await asyncio.shield(self._paused)


class Outgoing:
    """A body that is sent.

    Args:
        carrier: sends it.
        channel: its number.
    """

    __slots__ = ("_allowed", "_carrier", "_channel", "_is_over", "_room", "_sent")

    def __init__(self, carrier: Carrier, channel: int) -> None:
        self._carrier = carrier
        self._channel = channel
        self._sent, self._allowed = 0, WINDOW_BYTES
        self._room: asyncio.Future[None] | None = None
        """Waits until the reader has room for more."""
        self._is_over = False

    async def send(self, data: bytes) -> None:
        """Send more of it, in frames that leave room for others; once it is over a no-op."""
        view = memoryview(data)
        while view and not self._is_over:
            if (room := self._allowed - self._sent) <= 0:
                self._room = self._carrier.loop.create_future()
                await self._room
                continue
            piece = view[: min(room, PIECE_BYTES)]
            view = view[len(piece) :]
            frame = head(FrameType.DATA, len(piece), channel=self._channel, offset=self._sent)
            self._sent += len(piece)
            self._carrier.write(frame, piece)
            await self._carrier.drained()

    def allow(self, taken_bytes: int) -> None:
        """The reader has taken so much of it."""
        self._allowed = max(self._allowed, taken_bytes + WINDOW_BYTES)
        self._wake()

    def close(self) -> None:
        """Send no more of it: the channel is over."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)


class Incoming:
    """A body that comes: its sender hears how much of it was taken.

    Args:
        carrier: brings it.
        channel: its number.

    Attributes:
        taken: how many bytes, so far.
    """

    __slots__ = ("_carrier", "_channel", "_credited", "_is_over", "taken")

    def __init__(self, carrier: Carrier, channel: int) -> None:
        self._carrier = carrier
        self._channel = channel
        self.taken = self._credited = 0
        self._is_over = False

    def take(self, size_bytes: int) -> None:
        """So much more of it was taken."""
        self.taken += size_bytes
        if not self._is_over and self.taken - self._credited >= WINDOW_BYTES // 2:
            self._credited = self.taken
            self._carrier.write(head(FrameType.CREDIT, 0, channel=self._channel, offset=self.taken))

    def close(self) -> None:
        """No more of it comes: nothing is said any more."""
        self._is_over = True
