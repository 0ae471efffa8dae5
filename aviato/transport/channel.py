"""One request of a session, and its answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterable, Mapping
from typing import TYPE_CHECKING

from aviato.wire.flow import Incoming, Outgoing
from aviato.wire.frames import Frame, FrameType, head
from aviato.wire.session import LENGTH_HEADER, WHOLE, parse_head

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from aviato.transport.session import Session

    Take = Callable[[bytes | memoryview], bool | None]


class Channel:
    """A request under way, and its answer once the head of that is there.

    Args:
        session: carries it.
        number: in the session.
        head_seconds: how long the server may take nothing and say nothing until the head of its answer is there.
        silence_seconds: how long after that.

    Attributes:
        coming: is done once the head of the answer is there, or the error why none comes.
        status: of the answer, as in HTTP; 0 before it is there.
        headers: by their names as `aviato.wire` has them.
        length: of its body; None where the head does not say it.
    """

    __slots__ = (
        "_enough", "_error", "_failure", "_heard", "_incoming", "_is_over", "_outgoing", "_pieces", "_sending", "_session",
        "_silence", "_silence_of_body", "_take", "_waiter", "coming", "headers", "length", "number", "status",
    )  # fmt: skip

    def __init__(self, session: Session, number: int, head_seconds: float, silence_seconds: float) -> None:
        self.number = number
        self.coming: asyncio.Future[None] = session.loop.create_future()
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.length: int | None = None
        self._session = session
        self._silence = head_seconds
        self._silence_of_body = silence_seconds
        self._heard = session.loop.time()
        self._is_over = False
        """Nobody here wants more of it, or there is no more. Its number is the server's until that has said so too."""
        self._error: Exception | None = None
        """Why that is not the answer's end."""
        self._outgoing: Outgoing | None = None
        self._incoming: Incoming | None = None
        """Of bodies that go, or come, piece by piece."""
        self._sending = False
        """The body's source is to give the next piece."""
        self._pieces: list[bytes] = []
        """Of the answer's body, that nobody has read yet."""
        self._take: Take | None = None
        """Is given what comes, in place of that."""
        self._enough = False
        """It wants no more, or has failed: with this error."""
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

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

    # -- what the session has heard

    def take(self, frame: Frame) -> bool:
        """Take a frame; True when it was the last, and the number is free.

        Raises:
            ValueError: it cannot be one.
        """
        self._heard = self._session.loop.time()
        kind = frame.type
        if kind == FrameType.ANSWER:
            if self.status:
                raise ValueError("an answer that begins twice")
            said = parse_head(frame.payload[: frame.offset])
            if not said.first.isdigit():
                raise ValueError(f"status {said.first[:20]!r}")
            first = frame.payload[frame.offset :]
            self.status, self.headers = int(said.first), {**self._session.common, **said.headers}
            self._silence = self._silence_of_body
            if first and not self._is_over:
                self._pieces.append(first)
            whole = frame.stream == WHOLE
            if whole:
                self.length, self._is_over = len(first), True
                if self._outgoing is not None:
                    self._outgoing.close()
            else:
                length = said.headers.get(LENGTH_HEADER)
                self.length = int(length) if length is not None and length.isdigit() else None
                self._incoming = Incoming(self._session, self.number)
            if not self.coming.done():
                self.coming.set_result(None)
            return whole
        if kind == FrameType.DATA:
            self._feed(frame.payload)
        elif kind == FrameType.CREDIT:
            if self._outgoing is not None:
                self._outgoing.allow(frame.offset)
        elif kind == FrameType.END:
            self.end(None if self.status else ConnectionResetError("an answer without a head"))
            return True
        elif kind == FrameType.CUT:
            self.end(ConnectionResetError("the server cut the answer off"))
            return True
        else:
            raise ValueError(f"a frame of type {kind}")
        return False

    def end(self, error: Exception | None) -> None:
        """No more comes of it, or nobody wants more; of one that is over a no-op.

        Args:
            error: why that is not the answer's end.
        """
        if self._is_over:
            return
        self._is_over, self._error = True, error
        for body in (self._incoming, self._outgoing):
            if body is not None:
                body.close()
        if error is not None and not self.coming.done():
            self.coming.set_exception(error)
            self.coming.exception()  # Whoever waits hears of it; if nobody does, it is no news.
        self._wake()

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
        if self._sending or takes or self._pieces:
            self._heard = now
        left = self._heard + self._silence - now
        if left > 0:
            return left
        self._session.noticed_silence(self._heard)
        self._break_off(TimeoutError())
        return math.inf

    # -- the answer's body, for `http.HttpTransport` and whoever asks by it

    async def read(self) -> bytes:
        """The whole body; raises as `next`."""
        pieces = []
        while piece := await self.next():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def next(self) -> bytes:
        """What has arrived of the body since the last call, once there is something; nothing at its end.

        Raises:
            SandboxUnavailableError: the connection was cut.
            SandboxRequestTimeoutError: it was silent for too long.
        """
        while not self._pieces:
            if self._error is not None:
                self._session.server.failed(self._error, self._silence)
            if self._is_over:
                return b""
            self._waiter = self._session.loop.create_future()
            await self._waiter
        pieces, self._pieces = self._pieces, []
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._took(len(data))
        return data

    async def pour(self, take: Take) -> bool:
        """Give the body away as it arrives, without a copy: what `take` is given is good until it returns.

        What is left of it then is not read any more.

        Returns:
            Whether `take` said that this was all it needs; False at the end.

        Raises:
            Exception: what `take` raises, and what `next` raises.
        """
        pieces, self._pieces = self._pieces, []
        try:
            self._enough = any(map(take, pieces))
            if self._incoming is not None:
                self._took(sum(map(len, pieces)))
            self._take = take
            while not (self._is_over or self._enough):
                self._waiter = self._session.loop.create_future()
                await self._waiter
            if self._failure is not None:
                raise self._failure
            if self._error is not None and not self._enough:
                self._session.server.failed(self._error, self._silence)
            return self._enough
        finally:
            self._take = None  # It may hold this.
            if not self._is_over:
                self.close()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives; raises as `next`."""
        while chunk := await self.next():
            yield chunk

    @property
    def finished(self) -> bool:
        """Whether the body was read to its end."""
        return self._is_over and not self._pieces

    def close(self) -> None:
        """Read no more of it: nobody wants it any more; of one that is over a no-op."""
        if not self._is_over:
            self._break_off(ConnectionAbortedError("closed here"))

    # -- inside

    def _feed(self, data: bytes | memoryview) -> None:
        """More of the body has come; a view is good until this returns."""
        if self._is_over:
            return
        if not self.status:
            raise ValueError("a body without a head")
        if self._take is None:
            self._pieces.append(bytes(data))
            self._wake()
            return
        if not self._enough:
            try:
                self._enough = bool(self._take(data))
            except Exception as error:
                self._enough, self._failure = True, error
            if self._enough:
                self._wake()
        self._took(len(data))

    def _took(self, size_bytes: int) -> None:
        """So much more of it was read here."""
        self._heard = self._session.loop.time()
        if self._incoming is not None:
            self._incoming.take(size_bytes)

    def _break_off(self, error: Exception) -> None:
        self._session.write(head(FrameType.CUT, 0, channel=self.number))
        self.end(error)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
