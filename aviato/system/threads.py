"""Blocking calls in the worker threads of a loop, for both sides."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Closable(Protocol):
    def close(self) -> None: ...


_O = TypeVar("_O", bound=_Closable)


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
