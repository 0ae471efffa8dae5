"""One request of a session: its body as it comes, and its answer as far as the client has room for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.operations.bodies import SMALL_BODY_BYTES
from aviato.server.operations.reply import Last, Reply
from aviato.wire.flow import Incoming, Outgoing
from aviato.wire.frames import HEAD, Frame, FrameError, FrameType, head
from aviato.wire.session import LENGTH_HEADER, PIECE_BYTES, TYPE_HEADER, WHOLE, WINDOW_BYTES, encode_head

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Mapping

    from aviato.server.callers import Caller
    from aviato.server.session.session import Session


class Channel:
    """A request and its answer. The session feeds it; a task of its own answers it.

    Args:
        session: carries it.
        number: in the session.
        headers: of the request.
        first: bytes of its body that came with them.
        whole: those are all.

    Attributes:
        task: answers it.
    """

    __slots__ = (
        "_coming", "_ended", "_held", "_held_bytes", "_in_hand", "_incoming", "_is_over", "_number", "_outgoing",
        "_session", "headers", "size_bytes", "task",
    )  # fmt: skip

    def __init__(self, session: Session, number: int, headers: Mapping[str, str], first: bytes, *, whole: bool) -> None:
        self.headers = headers
        self.size_bytes: int | None = len(first) if whole else _size(headers)
        self.task: asyncio.Task[None] | None = None
        self._session = session
        self._number = number
        self._held = [first] if first else []
        """Of the body, that has come and nobody has taken; the server's own user may have any number of bytes."""
        self._held_bytes = len(first)
        self._in_hand = 0
        """Of the piece that was taken last, until the next one is: whoever has it may wait with it."""
        self._ended = whole
        self._is_over = False
        """Its number is another's from then on."""
        self._coming: asyncio.Future[None] | None = None
        """Waits for more of the body."""
        self._incoming: Incoming | None = None
        self._outgoing: Outgoing | None = None
        """Of bodies that are taken, or sent, piece by piece."""

    # -- the request, as `operations.call.Incoming` has it

    @property
    def transport(self) -> asyncio.BaseTransport | None:
        """Of the session's connection."""
        return self._session.transport

    async def chunks(self, caller: Caller) -> AsyncIterator[bytes]:
        """Its body as it comes, as far as the caller may send it."""
        incoming = self._incoming = Incoming(self._session, self._number)
        if self._ended:
            incoming.close()
        while True:
            while not self._held:
                if self._ended:
                    return
                self._coming = self._session.loop.create_future()
                await self._coming
            piece = self._held.pop(0)
            self._held_bytes, self._in_hand = self._held_bytes - len(piece), len(piece)
            caller.check_size(incoming.taken + len(piece))
            incoming.take(len(piece))
            yield piece
            self._put_down()

    async def read(self, caller: Caller) -> bytes:
        """All of its body, where it is not large."""
        if self._ended and self._held_bytes <= SMALL_BODY_BYTES:
            if caller.max_body_bytes is not None:
                caller.check_size(self._held_bytes)
            pieces = self._taken()
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return await self._session.bodies.read(self.chunks(caller), self.size_bytes, caller)

    def cut(self) -> None:
        """Break it off, and end whoever answers it: the client sees that as the end of a connection, and comes back."""
        self.break_off()
        if self.task is not None:
            self.task.cancel()

    def break_off(self) -> None:
        """Send no more of the answer, and say so; of one that is over a no-op."""
        self._last(head(FrameType.CUT, 0, channel=self._number))

    # -- what the session has heard

    def take(self, frame: Frame) -> None:
        """Take a frame of it that is not its first.

        Raises:
            ValueError: it cannot be one, or there is no room for it.
        """
        if frame.type == FrameType.DATA:
            self._feed(frame.payload)
        elif frame.type == FrameType.END:
            self._ended = True
            if self._incoming is not None:
                self._incoming.close()
            _wake(self._coming)
        elif frame.type == FrameType.CREDIT:
            if self._outgoing is not None:
                self._outgoing.allow(frame.offset)
        elif frame.type == FrameType.CUT:
            self.cut()
        else:
            raise FrameError(f"a frame of type {frame.type}")

    def _feed(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        self.count(len(data))
        if self._held_bytes > 2 * WINDOW_BYTES:
            raise ValueError("a body that does not wait for room")
        _wake(self._coming)

    def count(self, size_bytes: int) -> None:
        """So much of its body is here: where its tenant has too much of such, it is cut."""
        tenant = self._session.tenant
        if tenant is not None and not self._session.bodies.hold(tenant, size_bytes):
            self.cut()

    def lost(self) -> None:
        """The connection is gone."""
        self._taken()

    # -- the answer

    async def send(self, reply: Reply) -> None:
        """Send an answer. Whether it was sent whole is said in it.

        Raises:
            Exception: what its pieces raise.
        """
        while self._session.is_paused:
            await self._session.drained()
        if self._is_over:
            return  # Its caller has gone, and its number may be another's.
        headers = dict(reply.headers)
        if reply.content_type is not None:
            headers[TYPE_HEADER] = reply.content_type
        whole = reply.pieces is None and len(reply.body) <= PIECE_BYTES
        if reply.pieces is None and not whole:
            headers[LENGTH_HEADER] = str(len(reply.body))
        first = encode_head(str(reply.status), headers)
        size = len(first) + (len(reply.body) if whole else 0)
        begin = HEAD.pack(FrameType.ANSWER, WHOLE if whole else 0, self._number, size, len(first)) + first
        if whole:
            self._last(begin + reply.body)
        else:
            self._session.write(begin)
            outgoing = self._outgoing = Outgoing(self._session, self._number)
            await (outgoing.send(reply.body) if reply.pieces is None else _send_pieces(outgoing, reply.pieces))
            self._last(head(FrameType.END, 0, channel=self._number))
        reply.sent = (connection := self._session.transport) is not None and not connection.is_closing()

    def _taken(self) -> list[bytes]:
        pieces, self._held = self._held, []
        if self._held_bytes and self._session.tenant is not None:
            self._session.bodies.hold(self._session.tenant, -self._held_bytes)
        self._held_bytes = 0
        if self._in_hand:
            self._put_down()
        return pieces

    def _put_down(self) -> None:
        in_hand, self._in_hand = self._in_hand, 0
        if in_hand and self._session.tenant is not None:
            self._session.bodies.hold(self._session.tenant, -in_hand)

    def _last(self, frame: bytes) -> None:
        """Send what ends the channel: from then on its number can be used again."""
        if not self._is_over:
            self._is_over = True
            if self._held or self._in_hand:
                self._taken()
            if self._incoming is not None:
                self._incoming.close()
            if self._outgoing is not None:
                self._outgoing.close()
            self._session.write(frame)
            del self._session.channels[self._number]


async def _send_pieces(outgoing: Outgoing, pieces: AsyncIterator[bytes]) -> None:
    try:
        async for piece in pieces:
            await outgoing.send(piece)
            if isinstance(piece, Last):
                break
    finally:
        if (close := getattr(pieces, "aclose", None)) is not None:
            await close()


def _size(headers: Mapping[str, str]) -> int | None:
    said = headers.get(LENGTH_HEADER)
    if said is None:
        return None
    if not (said.isascii() and said.isdigit() and len(said) <= 18):
        raise ValueError(f"a length {said[:20]!r}")
    return int(said)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
