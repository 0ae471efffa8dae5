"""The outcome of work that one thread does and others wait for: set once, kept."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from aviato.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Outcome(Generic[T]):
    """What came of it, once that is known. A `concurrent.futures.Future` that only its maker resolves, in a tenth of the calls.

    Attributes:
        is_set: whether it is known.
        value: what it gave; not there if it failed.
        error: how it failed, or None.
    """

    __slots__ = ("_callbacks", "_latch", "error", "is_set", "value")

    def __init__(self) -> None:
        self.is_set = False
        self.value: T
        self.error: BaseException | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._latch = threading.Lock()  # Held until it is set; whoever gets it then lets the next one have it.
        self._latch.acquire()

    def set(self, error: BaseException | None) -> None:
        """It is known; `value` was set before where it is no error. Once."""
        self.error, self.is_set = error, True
        self._latch.release()
        if self._callbacks:
            self._call_back()

    def wait(self, seconds: float) -> bool:
        """Block for so long at most; whether it is known then."""
        if self._latch.acquire(timeout=seconds):
            self._latch.release()
        return self.is_set

    def when_set(self, callback: Callable[[], object]) -> None:
        """Call back once it is known, from whichever thread sets it; at once if it is."""
        self._callbacks.append(callback)
        if self.is_set:
            self._call_back()

    def result(self) -> T:
        """What it gave; once it is known.

        Raises:
            BaseException: how it failed.
        """
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            del self  # What is raised would hold this frame, and by it itself.

    def _call_back(self) -> None:
        # Of two threads that come here at once each takes its own: taking one out of a list is atomic.
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                callback()
            except Exception:
                logger.exception("a callback of an operation that has ended failed")
            except BaseException:
                self._call_back()  # Whoever else waits has nothing to do with it.
                raise
