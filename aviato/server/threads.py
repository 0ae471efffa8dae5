"""Blocking calls, in the loop's own executor: a fixed set of threads, made at the start.

A set that grew and shrank with the load would make it impossible to tell a leak from a burst.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 6

_P = ParamSpec("_P")
_T = TypeVar("_T")


def fix_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Give a loop its threads, all of them at once."""
    executor = ThreadPoolExecutor(THREADS, thread_name_prefix="aviato-server")
    together = threading.Barrier(THREADS)
    for _ in range(THREADS):
        executor.submit(together.wait)
    loop.set_default_executor(executor)


async def in_thread(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """The result of a blocking call. A caller that is cancelled still waits for it: nothing it uses is pulled from under it."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise
