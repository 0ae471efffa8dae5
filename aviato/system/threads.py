"""Blocking calls in the worker threads of a loop, for both sides."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Closable(Protocol):
    def close(self) -> None: ...


_O = TypeVar("_O", bound=_Closable)


async def in_thread(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of a blocking call. A caller that is cancelled still waits for it: nothing it uses is pulled from under it."""
    # No task, such as `asyncio.to_thread` would need here: a loop that is closed cancels all of them, and the thread goes on.
    work = partial(copy_context().run, call, *args, **kwargs)
    running = asyncio.get_running_loop().run_in_executor(None, work)
    await until_done(running)
    return running.result()


async def until_done(work: asyncio.Future[Any]) -> None:
    """Wait until it has ended, however it did, and however often the waiter is cancelled meanwhile; that is raised then.

    A task that is cancelled may be cancelled again while it cleans up, by anyio at each turn of the loop.
    """
    cancelled: asyncio.CancelledError | None = None
    try:
        while not work.done():
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError as error:
                cancelled = error
        if not work.cancelled():
            work.exception()  # Looked at: whoever is cancelled does not ask.
        if cancelled is not None:
            raise cancelled
    finally:
        cancelled = None  # It holds this frame.


async def opened_in_thread(call: Callable[_P, _O | None], *args: _P.args, **kwargs: _P.kwargs) -> _O | None:
    """Like `in_thread`, for a call that opens something: a caller that is cancelled has it closed."""
    opened: list[_O] = []

    def run() -> _O | None:
        one = call(*args, **kwargs)
        if one is not None:
            opened.append(one)
        return one

    try:
        return await in_thread(run)
    except asyncio.CancelledError:
        for one in opened:
            one.close()
        raise
