"""The answer to one who runs a command or reads it: whole where it is short, else as it comes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, SandboxUnavailableError
from aviato.server.operations.reply import Last, Reply
from aviato.server.service.output.feed import error_frame
from aviato.wire.execution import FRAMES_CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aviato.server.operations.call import Call
    from aviato.server.service.output.feed import ExecFeed

HOLD_BACK_SECONDS = 0.010
"""A command that ends in this time is answered by one response with its length."""
QUIET_SECONDS = 0.06
"""One that says nothing has so long: each answer that begins before the end wakes its client, and the server, twice."""
HOLD_BACK_BYTES = 256 << 10
RUN_HOLD_BACK_SECONDS = 0.25
"""Of a command that has a sandbox of its own nobody reads along."""
KEEPALIVE_SECONDS = 15.0


async def exec_reply(call: Call, feed: ExecFeed) -> Reply:
    """A command's frames: at once if it ends quickly, else as they come. What it prints is held for a moment at most."""
    try:
        held = await _hold_back(feed, HOLD_BACK_SECONDS)
        if feed.is_quiet:
            held = await _hold_back(feed, QUIET_SECONDS - HOLD_BACK_SECONDS, held, enough_bytes=1)
            if not feed.is_quiet:
                held = await _hold_back(feed, HOLD_BACK_SECONDS, held)  # Most end with what they print.
    except BaseException:
        feed.close()
        raise
    if feed.over and len(held) <= HOLD_BACK_BYTES:
        feed.close()
        return Reply(held, content_type=FRAMES_CONTENT_TYPE)
    stack = AsyncExitStack()
    stack.callback(feed.close)
    return _reply(call, feed, held, stack)


async def run_reply(call: Call, feed: ExecFeed, left: Callable[[bool], None]) -> Reply:
    """As `exec_reply`, of a command that has a sandbox of its own.

    Args:
        call: asks for it.
        feed: of the command.
        left: told whether that was the end: the result was sent whole, or there will be none. Else the caller was cut off, and
            may come back.
    """
    over = False
    reply: Reply | None = None

    def end() -> None:
        feed.close()
        left(over if reply is None else feed.over and reply.sent)

    async with AsyncExitStack() as stack:
        stack.callback(end)
        try:
            held = await _hold_back(feed, RUN_HOLD_BACK_SECONDS)
        except AviatoError as error:
            over = not _cuts(error)
            raise
        reply = _reply(call, feed, held, stack.pop_all())
        return reply


def _reply(call: Call, feed: ExecFeed, held: bytes, stack: AsyncExitStack) -> Reply:
    if feed.over and len(held) <= HOLD_BACK_BYTES:
        return Reply(held, content_type=FRAMES_CONTENT_TYPE, stack=stack)
    feed.cut = call.request.cut
    return Reply(content_type=FRAMES_CONTENT_TYPE, pieces=_pieces(feed, held), stack=stack)


async def _hold_back(feed: ExecFeed, seconds: float, held: bytes = b"", *, enough_bytes: int = HOLD_BACK_BYTES) -> bytes:
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
            if not held or _cuts(error):
                raise
            feed.over = True
            return held + error_frame(error)
    return held


async def _pieces(feed: ExecFeed, data: bytes) -> AsyncIterator[bytes]:
    while not feed.over:
        if data:
            with feed.sending(len(data)):
                yield data
        try:
            data = await feed.next(KEEPALIVE_SECONDS) or feed.keepalive()
        except AviatoError as error:
            if _cuts(error):
                raise
            feed.over = True
            data = error_frame(error)
    # In one piece with the end, after which the client uses the connection again.
    with feed.sending(len(data)):
        yield Last(data)


def _cuts(error: AviatoError) -> bool:
    """Whether the client shall come back for the rest."""
    return isinstance(error, SandboxUnavailableError) and error.retryable
