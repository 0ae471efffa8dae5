"""Answers of HTTP/1.1 as they come over a Unix socket: their heads, and their bodies."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from multidict import CIMultiDict, CIMultiDictProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Take = Callable[[bytes | memoryview], bool | None]

LONGEST_LINE_BYTES = 4 << 10
"""Of those between the chunks of a body."""
SHORT_LINE_BYTES = 32
KEPT_HEAD_BYTES = 1 << 10
_NO_BODY = (204, 304)
PAUSE_BYTES = 1 << 19
"""So much may lie here for who does not read as fast as it comes."""


class Source(Protocol):
    """Where an answer comes from."""

    def taken(self, answer: Answer) -> None:
        """What had come of it was read."""

    def abort(self) -> None:
        """Send no more of it."""


class Answer:
    """An answer whose head is there. It reads like one of aiohttp's, as far as `http.Response` needs.

    Args:
        source: its connection.
        status, headers, content_length: as the head says.

    Attributes:
        status: of HTTP.
        headers: whatever their case.
        content_length: None where the head does not say it.
    """

    def __init__(self, source: Source, status: int, headers: CIMultiDictProxy[str], content_length: int | None) -> None:
        self.status = status
        self.headers = headers
        self.content_length = content_length
        self._source = source
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._over = False
        self._error: BaseException | None = None
        self._take: Take | None = None
        self._enough = False
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
        pieces, self._pieces, self._held_bytes = self._pieces, [], 0
        self._source.taken(self)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read(self) -> bytes:
        """All of it."""
        pieces = []
        while piece := await self.readany():
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def pour(self, take: Take) -> tuple[bool, Exception | None]:
        """Give all of it to a function, each piece as it comes and not copied; whether that said that it has enough.

        What the function raises is given back, and nothing more is read.
        """
        pieces, self._pieces, self._held_bytes = self._pieces, [], 0
        failure: list[Exception] = []

        def taking(data: bytes | memoryview) -> bool:
            try:
                return bool(take(data))
            except Exception as error:
                failure.append(error)
                return True

        self._enough = any(map(taking, pieces))
        self._source.taken(self)
        self._take = taking
        while not (self._over or self._enough):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if failure:
            self.close()
        elif self._error is not None and not self._enough:
            raise self._error
        return self._enough, failure[0] if failure else None

    def at_eof(self) -> bool:
        """Whether all of it was taken."""
        return self._over and not self._pieces

    def close(self) -> None:
        """Read no more of it; its connection is closed if there was more to come."""
        if not self._over:
            self.end(ConnectionAbortedError("closed here"))
            self._source.abort()

    @property
    def full(self) -> bool:
        """Whether nobody reads as fast as it comes."""
        return self._held_bytes > PAUSE_BYTES

    def feed(self, data: memoryview) -> None:
        """More of it has come; the view is good until this returns."""
        if self._take is None:
            self._pieces.append(bytes(data))
            self._held_bytes += len(data)
            self._wake()
        elif not self._enough and not self._over and self._take(data):
            self._enough = True
            self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """No more will come."""
        if not self._over:
            self._over, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Chunks:
    """Takes a chunked body apart."""

    def __init__(self) -> None:
        self._left = 0
        """Of the chunk that is coming, its line end included."""
        self._line = b""
        self._trailer = False

    def feed(self, data: memoryview) -> Iterator[memoryview | None]:
        """The pieces in it; None is the end of the body."""
        position, end = 0, len(data)
        while position < end:
            if self._left:
                if self._left > 2:
                    piece = data[position : position + self._left - 2]
                    self._left -= len(piece)
                    position += len(piece)
                    yield piece
                else:
                    step = min(self._left, end - position)
                    if data[position : position + step] != b"\r\n"[2 - self._left :][:step]:
                        raise ValueError("a chunk that does not end where it should")
                    self._left -= step
                    position += step
                continue
            # A few bytes more than such a line has, so that it is seldom looked for twice.
            line, end_of_line, _ = bytes(data[position : position + SHORT_LINE_BYTES]).partition(b"\n")
            self._line += line + end_of_line
            position += len(line) + len(end_of_line)
            if len(self._line) > LONGEST_LINE_BYTES:
                raise ValueError("a line of a chunk that is too long")
            if not end_of_line:
                continue
            line, self._line = self._line, b""
            if self._trailer:
                if line == b"\r\n":
                    yield None
                    return
            elif size := number(line.partition(b";")[0].strip(), 16):
                self._left = size + 2
            else:
                self._trailer = True


class Head(NamedTuple):
    """The head of an answer.

    Attributes:
        status: of HTTP.
        headers: whatever their case.
        length: of the body; None where the head does not say it.
        chunked: whether the body comes in chunks.
        again: whether the connection can be used again.
    """

    status: int
    headers: CIMultiDictProxy[str]
    length: int | None
    chunked: bool
    again: bool


def parse_head(head: bytes) -> Head:
    """What a head says; those of the same requests are the same for a second, and are kept.

    Raises:
        ValueError: this is no head of an answer.
    """
    return _kept_head(head) if len(head) <= KEPT_HEAD_BYTES else _parse_head(head)


def _parse_head(head: bytes) -> Head:
    status, headers, version = _fields(head.decode("latin-1"))
    length, chunked = None, False
    if status in _NO_BODY:
        length = 0
    elif (coding := headers.get("Transfer-Encoding")) is not None:
        if coding.strip().lower() != "chunked":
            raise ValueError(f"Transfer-Encoding {coding!r}")
        chunked = True
    elif "Content-Length" in headers:
        (stated,) = set(headers.getall("Content-Length"))
        length = number(stated.encode("latin-1"), 10)
    until_end = length is None and not chunked
    again = not until_end and (
        "close" not in (said := headers.get("Connection", "").lower()) and (version == "1.1" or "keep-alive" in said)
    )
    return Head(status, CIMultiDictProxy(headers), length, chunked, again)


_kept_head = functools.lru_cache(maxsize=32)(_parse_head)


def _fields(text: str) -> tuple[int, CIMultiDict[str], str]:
    """Status, headers, and version of HTTP."""
    first, *lines = text.split("\r\n")
    protocol, _, rest = first.partition(" ")
    if protocol not in ("HTTP/1.1", "HTTP/1.0"):
        raise ValueError(f"it begins with {first[:40]!r}")
    status = number(rest[:3].encode("latin-1"), 10)
    if not 200 <= status < 600:
        raise ValueError(f"status {status}")
    headers: CIMultiDict[str] = CIMultiDict()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise ValueError(f"a header {line[:40]!r}")
        headers.add(name, value.strip(" \t"))
    return status, headers, protocol[5:]


def number(text: bytes, base: int) -> int:
    """A number that is nothing but digits: `int` would take signs and underscores too.

    Raises:
        ValueError: it is none.
    """
    if not text.isalnum() or len(text) > 16:
        raise ValueError(f"{text[:20]!r} where a number should be")
    return int(text, base)
