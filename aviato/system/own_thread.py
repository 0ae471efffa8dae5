"""A thread for the blocking calls of one caller."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")

_Asked = tuple["Callable[[], Any]", asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class OwnThread:
    """Makes calls on a thread of its own, one after the other, from the first one until `end()`.

    For what may block for as long as it likes, such as code of a user's: the workers of a loop are few, and whoever holds one
    holds up all who need one. No end of the interpreter waits for it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._begun = False

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of a call. A caller that is cancelled leaves it to go on."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()
        if not self._begun:
            threading.Thread(target=_serve, args=(self._calls,), name=self._name, daemon=True).start()
            self._begun = True
        self._calls.put((partial(contextvars.copy_context().run, call, *args, **kwargs), loop, answer))
        return await answer

    def end(self) -> None:
        """The thread ends after the call that is under way."""
        self._calls.put(None)


def _serve(calls: queue.SimpleQueue[_Asked | None]) -> None:
    while (asked := calls.get()) is not None and _answer(*asked):
        del asked  # Nothing of a call is kept until the next one.


def _answer(call: Callable[[], Any], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any]) -> bool:
    """Make a call; False if the loop has closed, so that nobody calls again."""
    settle: Callable[[], None]
    try:
        settle = partial(answer.set_result, call())
    except BaseException as error:
        settle = partial(answer.set_exception, error)
    try:
        loop.call_soon_threadsafe(_settle, answer, settle)
    except RuntimeError:
        return False
    return True


def _settle(answer: asyncio.Future[Any], settle: Callable[[], None]) -> None:
    if not answer.done():
        settle()
