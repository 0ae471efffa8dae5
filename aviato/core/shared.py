"""Work that many wait for, and whose failure is remembered."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aviato.exceptions import AviatoError

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


async def ended(task: asyncio.Future[Any]) -> None:
    """Wait until a task of this loop has ended, however it did, and the callbacks that it had before have run.

    Who is cancelled leaves it running. As `asyncio.wait` for one, which does more than all the rest of a short wait.
    """
    waiter: asyncio.Future[None] = task.get_loop().create_future()

    def wake(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)


class SharedTask(Generic[T]):
    """Work that begins now. Its failure reaches whoever waits, as an object of their own, and nobody has to wait.

    An exception holds the frames that it went through, and those hold whatever their callers have in them. The one that is
    remembered went through none: remembered with a sandbox it would keep that in use, and nobody could ever let go of it.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], name: str) -> None:
        self._task: asyncio.Task[T] | None = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._task.add_done_callback(self._end)
        self._error: AviatoError | None = None

    def _end(self, task: asyncio.Task[T]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AviatoError):
            self._error, self._task = copy.copy(error), None

    def done(self) -> bool:
        """Whether it has ended."""
        return self._task is None or self._task.done()

    def error(self) -> BaseException | None:
        """How it failed, if it has."""
        if self._task is None:
            return self._error
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None

    async def ended(self) -> None:
        """Wait until it has, however it did; who is cancelled leaves it running."""
        if self._task is not None:
            await ended(self._task)

    async def outcome(self) -> T:
        """Wait for what it gives; who is cancelled leaves it running."""
        task = self._task
        if task is not None:
            await ended(task)
            error = None if task.cancelled() else task.exception()
            if not isinstance(error, AviatoError):
                return task.result()
            own = copy.copy(error).with_traceback(error.__traceback__)
            own.__cause__, own.__context__ = error.__cause__, error.__context__
            own.__suppress_context__ = error.__suppress_context__
            raise own
        assert self._error is not None
        raise copy.copy(self._error)
