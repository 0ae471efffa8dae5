"""What an operation answers, whatever carries it: a status, headers, and a body, whole or as it comes."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError
from aviato.trees import tar
from aviato.wire.errors import to_wire
from aviato.wire.files import ARCHIVE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AsyncExitStack

    from pydantic import BaseModel

OCTETS = "application/octet-stream"
JSON = "application/json"


class Last(bytes):
    """The last piece of a body: it is sent in one with the end, and its reader wakes once less."""


@dataclass(slots=True)
class Reply:
    """An answer. Whoever sends it closes it, sent or not.

    Attributes:
        body: all of it; where it comes in pieces, nothing.
        status: of HTTP.
        content_type: of the body; None where there is none.
        headers: others than that.
        pieces: of a body that comes by and by. What they raise ends the connection, so that nobody takes a part for the whole.
        stack: what is held until it has been sent.
        sent: it was sent whole, over a connection that is still there.
    """

    body: bytes = b""
    _: KW_ONLY
    status: int = 200
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: AsyncIterator[bytes] | None = None
    stack: AsyncExitStack | None = None
    sent: bool = False

    async def close(self) -> None:
        """Let go of what it holds; idempotent."""
        stack, self.stack = self.stack, None
        if stack is not None:
            await stack.aclose()


def answer(model: BaseModel, status: int = 200) -> Reply:
    """A JSON answer."""
    return Reply(model.model_dump_json().encode(), status=status, content_type=JSON)


def done() -> Reply:
    """An empty answer."""
    return Reply(status=204)


async def ending(pieces: AsyncIterator[bytes], expected_bytes: int) -> AsyncIterator[bytes]:
    """Pieces, of which the last that is expected goes out with the end."""
    last = b""
    async for piece in pieces:
        if last:
            yield last
            last = b""
        expected_bytes -= len(piece)
        if expected_bytes:
            yield piece
        else:
            last = piece
    if last:
        yield Last(last)


async def chained(first: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces that were read already, and the others."""
    if first:
        yield b"".join(first)
    async for piece in rest:
        yield piece


async def archived(pieces: AsyncIterator[bytes], stack: AsyncExitStack) -> Reply:
    """An archive as it comes.

    Args:
        pieces: of it. What they raise at once is the answer's error; what they raise later has a place in the archive itself.
        stack: what is held meanwhile; it is the answer's from then on.

    Raises:
        AviatoError: it does not begin.
    """
    first = await anext(pieces, b"")
    return Reply(content_type=ARCHIVE, pieces=_archive(first, pieces), stack=stack.pop_all())


async def _archive(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    try:
        async for piece in rest:
            yield piece
    except AviatoError as error:
        yield tar.failure(to_wire(error).model_dump_json().encode())
