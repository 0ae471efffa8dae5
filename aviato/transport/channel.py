"""One request of a session, and its answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING

from aviato.transport.answers import Answer
from aviato.wire.flow import Incoming, Outgoing
from aviato.wire.frames import FrameType, head
from aviato.wire.session import LENGTH_HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aviato.transport.session import Session
    from aviato.wire.session import Head


class Channel:
    """A request under way.

    Args:
        session: carries it.
        number: in the session.
        silence_seconds: how long the server may take nothing and say nothing.

    Attributes:
        coming: gets the answer once its head is there.
    """

    __slots__ = (
        "_answer", "_heard", "_incoming", "_is_over", "_outgoing", "_sending", "_session", "_silence", "coming", "number",
    )  # fmt: skip

    def __init__(self, session: Session, number: int, silence_seconds: float) -> None:
        self.number = number
        self.coming: asyncio.Future[Answer] = session.loop.create_future()
        self._session = session
        self._silence = silence_seconds
        self._heard = session.loop.time()
        self._answer: Answer | None = None
        self._is_over = False
        """Nobody here wants more of it, or there is no more. Its number is the server's until that has said so too."""
        self._outgoing: Outgoing | None = None
        self._incoming: Incoming | None = None
        """Of bodies that go, or come, piece by piece."""
        self._sending = False
        """The body's source is to give the next piece."""

    # -- the request's body

    async def send(self, body: Iterable[bytes] | AsyncIterable[bytes]) -> None:
        """Send the body as the server takes it; returns early when the answer is there, or will not come.

        Raises:
            Exception: what its source raises.
        """
        self._outgoing = Outgoing(self._session, self.number)
        sending = self._session.loop.create_task(self._send(body, self._outgoing))
        try:
            await asyncio.wait((sending, self.coming), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            sending.cancel()
            self._sending = False

    async def _send(self, body: Iterable[bytes] | AsyncIterable[bytes], outgoing: Outgoing) -> None:
        if isinstance(body, AsyncIterable):
            self._sending = True
            async for piece in body:
                self._sending, self._heard = False, self._session.loop.time()
                await outgoing.send(piece)
                self._sending = True
            self._sending = False
        else:
            for piece in body:
                await outgoing.send(piece)
        if not self._is_over:
            self._heard = self._session.loop.time()
            self._session.write(head(FrameType.END, 0, channel=self.number))

    def allow(self, taken_bytes: int) -> None:
        """The server has taken so much of the body."""
        self._heard = self._session.loop.time()
        if self._outgoing is not None:
            self._outgoing.allow(taken_bytes)

    # -- the answer

    def begin(self, said: Head, first: bytes, whole: bool) -> None:
        """Its head is there.

        Raises:
            ValueError: it cannot be one.
        """
        if self._answer is not None:
            raise ValueError("an answer that begins twice")
        if not said.first.isdigit():
            raise ValueError(f"status {said.first[:20]!r}")
        self._heard = self._session.loop.time()
        if whole:
            answer = Answer(self, int(said.first), said.headers, len(first), first, whole=True)
            self._is_over = True
            if self._outgoing is not None:
                self._outgoing.close()
            self._session.forget(self)
        else:
            length = said.headers.get(LENGTH_HEADER)
            size = int(length) if length is not None and length.isdigit() else None
            answer = Answer(self, int(said.first), said.headers, size, first)
            self._incoming = Incoming(self._session, self.number)
        self._answer = answer
        if not self.coming.done():
            self.coming.set_result(answer)

    def feed(self, data: bytes | memoryview) -> None:
        """More of its body.

        Raises:
            ValueError: its head did not come.
        """
        self._heard = self._session.loop.time()
        if self._is_over:
            return
        if self._answer is None:
            raise ValueError("a body without a head")
        self._answer.feed(data)

    def end(self, error: Exception | None = None) -> None:
        """The server says no more.

        Args:
            error: why that is not the answer's end.
        """
        self._over(error or ConnectionResetError("an answer without a head"), is_whole=error is None)
        self._session.forget(self)

    def took(self, size_bytes: int) -> None:
        """So much more of it was read here."""
        self._heard = self._session.loop.time()
        if self._incoming is not None:
            self._incoming.take(size_bytes)

    def abort(self) -> None:
        """Nobody wants it any more; of one that is over a no-op."""
        if not self._is_over:
            self._session.write(head(FrameType.CUT, 0, channel=self.number))
            self._over(ConnectionAbortedError("closed here"))

    def look(self, now: float, takes: bool) -> float:
        """Give it up if the server has been silent for too long.

        Args:
            now: by the loop's clock.
            takes: the server has taken something of what was sent since the last look.

        Returns:
            After how many seconds to look again.
        """
        if self._is_over or self._silence == math.inf:
            return math.inf
        if self._sending or takes or (self._answer is not None and self._answer.is_unread):
            self._heard = now
        left = self._heard + self._silence - now
        if left > 0:
            return left
        self._session.noticed_silence(self._heard)
        self._session.write(head(FrameType.CUT, 0, channel=self.number))
        self._over(TimeoutError())
        return math.inf

    # -- inside

    def _over(self, error: Exception, *, is_whole: bool = False) -> None:
        self._is_over = True
        if self._incoming is not None:
            self._incoming.close()
        if self._outgoing is not None:
            self._outgoing.close()
        if self._answer is not None:
            self._answer.end(None if is_whole else error)
        elif not self.coming.done():
            self.coming.set_exception(error)
            self.coming.exception()  # Whoever waits hears of it; if nobody does, it is no news.
