"""Answers that are streams, and how they break off."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from aviato.exceptions import AviatoError, SandboxUnavailableError
from aviato.server.routes.table import OCTETS
from aviato.server.service.feed import error_frame
from aviato.trees import tar
from aviato.wire.errors import to_wire
from aviato.wire.execution import FRAMES_CONTENT_TYPE
from aviato.wire.files import ARCHIVE
from aviato.wire.frames import FrameError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aviato.server.service.feed import ExecFeed
    from aviato.server.service.left_feed import LeftFeed

log = logging.getLogger(__name__)

HOLD_BACK_SECONDS = 0.010
"""A command that ends in this time is answered by one response with its length."""
QUIET_SECONDS = 0.06
"""One that says nothing has so long: each answer that begins before the end wakes its client, and the server, twice."""
HOLD_BACK_BYTES = 256 << 10
RUN_HOLD_BACK_SECONDS = 0.25
"""Of a command that has a sandbox of its own nobody reads along."""
WHOLE_FILE_BYTES = 256 << 10
KEEPALIVE_SECONDS = 15.0


class Begun(NamedTuple):
    """A command that has begun, see `server.door`, and goes on with the request that comes over the same connection.

    Attributes:
        feed: of it; who answers the request closes it.
        held: what it has said so far.
    """

    feed: ExecFeed | LeftFeed
    held: bytes


BEGUN: web.AppKey[dict[object, Begun]] = web.AppKey("begun", dict)
"""By the connection's protocol."""


async def stream_exec(request: web.Request, feed: ExecFeed | LeftFeed, held: bytes | None = None) -> web.StreamResponse:
    """Send a command's frames: at once if it ends quickly, else as they come.

    Args:
        request: asks for it.
        feed: of the command.
        held: what it has said in the first moment, if that was waited for.
    """
    try:
        if held is None:
            held = await hold_back_exec(feed)
        if not feed.over or len(held) > HOLD_BACK_BYTES:
            return await _stream(request, feed, held)
        return await _send_whole(request, held)  # Here, so that the client need not wait for what is done at the end.
    finally:
        feed.close()


async def stream_run(request: web.Request, feed: ExecFeed | LeftFeed, left: Callable[[bool], None]) -> web.StreamResponse:
    """As `stream_exec`, of a command that has a sandbox of its own.

    Args:
        request: asks for it.
        feed: of the command.
        left: told whether that was the end: the result was sent whole, or there will be none. Else the caller was cut off, and
            may come back.
    """
    over = False
    try:
        held = await hold_back(feed, RUN_HOLD_BACK_SECONDS)
        response: web.StreamResponse
        if feed.over and len(held) <= HOLD_BACK_BYTES:
            response = await _send_whole(request, held)
        else:
            response = await _stream(request, feed, held)
        over = feed.over and not (request.transport is None or request.transport.is_closing())
    except AviatoError as error:
        over = not cuts(error)
        raise
    finally:
        feed.close()
        left(over)
    return response


async def _send_whole(request: web.Request, frames: bytes) -> web.Response:
    response = web.Response(body=frames, content_type=FRAMES_CONTENT_TYPE)
    await response.prepare(request)
    await response.write_eof()
    return response


async def _stream(request: web.Request, feed: ExecFeed | LeftFeed, held: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": FRAMES_CONTENT_TYPE})
    if request.transport is not None:
        feed.cut = request.transport.abort
    try:
        await response.prepare(request)
        await _pour(response, feed, held)
    except Exception as error:
        break_off(request, error)
    return response


async def hold_back_exec(feed: ExecFeed | LeftFeed) -> bytes:
    """What a command of a sandbox that stays says in the first moment. What it prints is never held for longer than that."""
    held = await hold_back(feed, HOLD_BACK_SECONDS)
    if feed.is_quiet:
        held = await hold_back(feed, QUIET_SECONDS - HOLD_BACK_SECONDS, held, enough_bytes=1)
        if not feed.is_quiet:
            held = await hold_back(feed, HOLD_BACK_SECONDS, held)  # Most end with what they print.
    return held


async def hold_back(
    feed: ExecFeed | LeftFeed, seconds: float, held: bytes = b"", *, enough_bytes: int = HOLD_BACK_BYTES
) -> bytes:
    """What arrives in so many seconds. An error before anything else is raised, so that it gets a status of its own.

    Args:
        feed: where it comes from.
        seconds: for how long.
        held: what has arrived before.
        enough_bytes: of what arrives, that are not waited with. Of one that is fed anything is enough.
    """
    loop = asyncio.get_running_loop()
    deadline, enough_bytes = loop.time() + seconds, min(len(held) + (1 if feed.is_fed else enough_bytes), HOLD_BACK_BYTES)
    while not (feed.over or feed.by_memory) and len(held) < enough_bytes and (left := deadline - loop.time()) > 0:
        try:
            held += await feed.next(left, enough_bytes - len(held))
        except AviatoError as error:
            if not held or cuts(error):
                raise
            feed.over = True
            return held + error_frame(error)
    return held


async def _pour(response: web.StreamResponse, feed: ExecFeed | LeftFeed, data: bytes) -> None:
    while not feed.over:
        if data:
            with feed.sending(len(data)):
                await response.write(data)
        try:
            data = await feed.next(KEEPALIVE_SECONDS) or feed.keepalive()
        except AviatoError as error:
            if cuts(error):
                raise
            feed.over = True
            data = error_frame(error)
    # In one piece with the end, after which the client uses the connection again.
    with feed.sending(len(data)):
        await response.write_eof(data)


def cuts(error: AviatoError) -> bool:
    """Whether the client shall come back for the rest."""
    return isinstance(error, SandboxUnavailableError) and error.retryable


async def stream_octets(
    request: web.Request, pieces: AsyncIterator[bytes], headers: dict[str, str] | None = None, expected_bytes: int = 0
) -> web.StreamResponse:
    """Send bytes as they come. What fails after the head breaks the connection, so that nobody takes a part for the whole.

    Where so many are expected, the last of them go out with the end: the client wakes once less.
    """
    response = web.StreamResponse(headers={"Content-Type": OCTETS, **(headers or {})})
    try:
        await response.prepare(request)
        last = b""
        async for piece in pieces:
            if last:
                await response.write(last)
                last = b""
            expected_bytes -= len(piece)
            if expected_bytes:
                await response.write(piece)
            else:
                last = piece
        await response.write_eof(last)
    except Exception as error:
        break_off(request, error)
    return response


async def stream_archive(request: web.Request, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send an archive as it comes. An error after the head has a place in the archive itself."""
    first = await anext(pieces, b"")

    async def all_pieces() -> AsyncIterator[bytes]:
        yield first
        try:
            async for piece in pieces:
                yield piece
        except AviatoError as error:
            yield tar.failure(to_wire(error).model_dump_json().encode())

    return await stream_octets(request, all_pieces(), {"Content-Type": ARCHIVE})


async def stream_file(
    request: web.Request, pieces: AsyncIterator[bytes], headers: dict[str, str], size_bytes: int
) -> web.StreamResponse:
    """Send a file as it is read; a short one whole, so that an error in it gets a status of its own.

    What `stat` says of its size is no promise: it may grow or shrink meanwhile.
    """
    held: list[bytes] = []
    size = 0
    async for piece in pieces:
        held.append(piece)
        size += len(piece)
        if max(size, size_bytes) > WHOLE_FILE_BYTES:
            return await stream_octets(request, _chain(held, pieces), headers, size_bytes)
    return web.Response(body=b"".join(held), content_type=OCTETS, headers=headers)


async def _chain(held: list[bytes], pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield b"".join(held)
    async for piece in pieces:
        yield piece


def break_off(request: web.Request, error: Exception) -> None:
    """Cut the connection: the client sees a break and resumes, or fails, by itself."""
    if not isinstance(error, (ConnectionError, AviatoError, FrameError)):
        log.error("a stream broke off", exc_info=error)
    if request.transport is not None:
        request.transport.abort()
