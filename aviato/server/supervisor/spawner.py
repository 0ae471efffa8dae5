"""The thread that starts commands where control groups limit them. Standard library only.

What a thread starts is in the thread's group. The rest of process 1 stays outside: at the limit it must be able to look, and to
kill. The thread works only while the main one waits for it, so nothing else has to know of it.
"""

from __future__ import annotations

import _thread
import os
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

STACK_BYTES = 512 << 10
NUMBER = 3
"""Of the thread: process 1 starts it right after who mapped its ids. The filter keeps others from it by this number."""


class Spawner:
    """A thread in groups.

    Args:
        tasks: descriptors of the groups' `tasks`; they are closed.

    Raises:
        OSError: the thread cannot enter them.
    """

    def __init__(self, tasks: list[int]) -> None:
        self._asked = _thread.allocate_lock()
        self._done = _thread.allocate_lock()
        self._asked.acquire()
        self._done.acquire()
        self._work: Callable[[], Any] = lambda: _begin(tasks)
        self._value: Any = None
        self._error: BaseException | None = None
        before = _thread.stack_size(STACK_BYTES)
        _thread.start_new_thread(self._run, ())
        _thread.stack_size(before)
        self(self._work)

    def __call__(self, work: Callable[[], T]) -> T:
        """Do this in the thread, and wait for it."""
        self._work = work
        self._asked.release()
        self._done.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error
        value: T = self._value
        self._value = None
        return value

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            try:
                self._value = self._work()
            except BaseException as error:
                self._error = error
            self._done.release()


def directly(work: Callable[[], T]) -> T:
    """Where there are no groups."""
    return work()


def _begin(tasks: list[int]) -> None:
    if _thread.get_native_id() != NUMBER:
        raise RuntimeError(f"the thread that starts commands has number {_thread.get_native_id()}, which no filter knows")
    for fd in tasks:
        os.write(fd, b"0")
        os.close(fd)
