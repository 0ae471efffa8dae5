"""Answers that come over a session, and how their bodies are read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Take = Callable[[bytes | memoryview], bool | None]


class Source(Protocol):
    """Where an answer comes from."""

    def took(self, size_bytes: int) -> None:
        """So much more of it was read."""

    def abort(self) -> None:
        """Send no more of it."""


class Answer:
    """An answer whose head is there. It reads like one of aiohttp's, as far as `http.Response` needs.

    Args:
        source: its channel.
        status, headers: as the head says.
        content_length: of its body; None where the head does not say it.
        first: of the body, what came with the head.
        whole: that is all.

    Attributes:
        status: of HTTP.
        headers: by their names as `aviato.wire` has them.
        content_length: None where the head does not say it.
    """

    def __init__(
        self,
        source: Source,
        status: int,
        headers: Mapping[str, str],
        content_length: int | None,
        first: bytes = b"",
        *,
        whole: bool = False,
    ) -> None:
        self.status = status
        self.headers = headers
        self.content_length = content_length
        self._source = source
        self._pieces = [first] if first else []
        self._over = whole
        self._error: BaseException | None = None
        self._take: Take | None = None
        self._enough = False
        self._failure: Exception | None = None
        """Of what takes it."""
        self._waiter: asyncio.Future[None] | None = None

    @property
    def content(self) -> Self:
        """Of itself; as an attribute it would be a cycle, which only the collector takes apart."""
        return self

    async def readany(self) -> bytes:
        """What has arrived since the last call, once there is something; nothing at the end."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._over:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        pieces, self._pieces = self._pieces, []
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._source.took(len(data))
        return data

    async def read(self) -> bytes:
        """All of it."""
        pieces = []
        while piece := await self.readany():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def pour(self, take: Take) -> tuple[bool, Exception | None]:
        """Give all of it to a function, each piece as it comes and not copied; whether that said that it has enough.

        What the function raises is given back. Nothing more is read then, nor after this was left.
        """
        pieces, self._pieces = self._pieces, []
        try:
            try:
                self._enough = any(map(take, pieces))
            except Exception as error:
                self._enough, self._failure = True, error
            if not self._over:
                self._source.took(sum(map(len, pieces)))
            self._take = take
            while not (self._over or self._enough):
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            if self._error is not None and not self._enough:
                raise self._error
            return self._enough, self._failure
        finally:
            if not self._over:
                self.close()

    def at_eof(self) -> bool:
        """Whether all of it was taken."""
        return self._over and not self._pieces

    @property
    def is_unread(self) -> bool:
        """Whether something of it lies here that nobody has read."""
        return bool(self._pieces)

    def close(self) -> None:
        """Read no more of it."""
        if not self._over:
            self.end(ConnectionAbortedError("closed here"))
            self._source.abort()

    def feed(self, data: bytes | memoryview) -> None:
        """More of it has come; a view is good until this returns."""
        if self._take is None:
            self._pieces.append(bytes(data))
            self._wake()
            return
        if not self._enough and not self._over:
            try:
                self._enough = bool(self._take(data))
            except Exception as error:
                self._enough, self._failure = True, error
            if self._enough:
                self._wake()
        self._source.took(len(data))

    def end(self, error: BaseException | None = None) -> None:
        """No more will come."""
        if not self._over:
            self._over, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
