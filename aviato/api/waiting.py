"""Waiting for many operations: `wait`, `as_completed`, `results`.

Built on done-callbacks alone: no task, no hop over the loop, pending work untouched.
"""

from __future__ import annotations

import asyncio
import queue
import time
import weakref
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from aviato import defaults as checks
from aviato.bridge.loop import SLICE_SECONDS, running_loop_thread
from aviato.bridge.operation import OperationRef, check_blocking, deadline_of
from aviato.core.timeouts import not_all_ended
from aviato.progress import Progress
from aviato.values.parameters import suggests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aviato.exceptions import OperationTimeoutError
    from aviato.progress import Told

T = TypeVar("T")

MANY = 10
"""From so many items on it is shown how far an iteration is."""


class SupportsWait(Protocol):
    """Something that an operation stands for, as running stands for a sandbox."""

    def _waitable(self) -> OperationRef[Any]:
        """Start it if need be, and return the operation."""
        ...


@suggests
def wait(items: Iterable[T], num_returns: int | None = None, timeout: float | None = None) -> tuple[list[T], list[T]]:
    """Wait until some of the items have ended; a failed one has ended too, a `Sandbox` when it runs (it is started).

    A loop of `done, pending = wait(pending, num_returns=1)` over N items costs O(N) in all.

    Args:
        items: sandboxes, operations and processes.
        num_returns: how many to wait for; None, or more than there are, means all.
        timeout: seconds; None waits as long as it takes.

    Returns:
        `(done, pending)`: the same objects in the given order. `done` holds exactly `num_returns`, the first to end, and fewer
        only when the time ran out; others that have ended stay in `pending`.

    Raises:
        ValueError: `num_returns` is less than 1.
        TypeError: an item cannot be waited for.
        RuntimeError: on aviato's own loop, or when an item can never end: its loop is gone, or it is of the parent process.
    """
    if num_returns is not None and num_returns < 1:
        raise ValueError(f"num_returns must be at least 1, not {num_returns!r}")
    deadline = _deadline(timeout)
    batch = _Batch.of(items)
    count = len(batch.items) if num_returns is None else min(num_returns, len(batch.items))
    ended: list[int] = []
    while len(ended) < count and (key := batch.completions.get(deadline, "wait()")) is not None:
        ended.append(key)
    return batch.split(ended)


@suggests
def as_completed(items: Iterable[T], timeout: float | None = None, *, progress: Told = None) -> AsCompleted[T]:
    """Return the items in the order in which they end, for `for` and for `async for`.

    Args:
        items: sandboxes, operations and processes; failed ones come like others.
        timeout: seconds from this call; None waits as long as it takes.
        progress: how far it is, as of `evaluate`; None shows it of ten items or more. A callable is called with (items handed
            out, items in all), where the iteration is.

    Raises:
        OperationTimeoutError: from the iteration: the time ran out; what has not ended goes on. Its `status_reason` is that of
            the first, where its sandbox is still pending; infrastructure, where nothing of that has begun to run.
        TypeError: an item cannot be waited for.
    """
    return AsCompleted(items, timeout, progress)


@overload
def results(x: OperationRef[T]) -> T: ...
@overload
def results(x: Iterable[OperationRef[T]]) -> list[T]: ...
@overload
def results(x: SupportsWait | Iterable[Any]) -> Any: ...
def results(x: Any) -> Any:
    """Wait for one operation and return its value, or for several and return a list in the given order.

    Raises:
        Exception: the first failure in that order; the others go on, and each can still be asked.
        TypeError: an item cannot be waited for.
    """
    if _is_waitable(x):
        return _ref(x).result()
    return [ref.result() for ref in _refs(list(_iterate(x)))]


class AsCompleted(Generic[T]):
    """An iterator for both worlds; see `as_completed`."""

    def __init__(self, items: Iterable[T], timeout: float | None, progress: Told = False) -> None:
        checks.progress(progress)
        self._timeout = timeout
        self._deadline = _deadline(timeout)
        listed = list(_iterate(items))
        self._total = len(listed)
        self._completions = _Completions(_refs(listed))
        self._items = dict(enumerate(listed))
        few = progress is None and len(listed) < MANY
        thread = running_loop_thread()
        loop = thread.loop if thread is not None and thread.usable else None
        self._progress = Progress("as_completed", self._total, False if few or not listed else progress, loop=loop)

    def __repr__(self) -> str:
        return f"<AsCompleted: {len(self._completions.refs)} of {self._total} to come>"

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> T:
        key = self._completions.get(self._deadline, "as_completed()")
        if key is None:
            left = self._close()
            raise self._end(left, left[0].told_why(*left[1:])) if left else StopIteration
        return self._hand_out(key)

    async def __anext__(self) -> T:
        key = await self._completions.get_async(self._deadline)
        if key is None:
            left = self._close()
            raise self._end(left, await left[0].told_why_async(*left[1:])) if left else StopAsyncIteration
        return self._hand_out(key)

    def _hand_out(self, key: int) -> T:
        self._progress.advance()
        return self._items.pop(key)

    def _close(self) -> list[OperationRef[Any]]:
        """It is over; what has not ended."""
        self._progress.close()
        return list(self._completions.refs.values())

    def _end(self, left: list[OperationRef[Any]], status_reason: str | None) -> OperationTimeoutError:
        assert self._timeout is not None
        has_begun = any(ref.has_begun for ref in left)
        return not_all_ended(len(left), self._total, self._timeout, status_reason, has_begun=has_begun)


class _Pending(list[T]):
    """A plain list to its user; it remembers where its items report, for the next `wait`."""

    batch: _Batch[T] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (list, (list(self),))


class _Batch(Generic[T]):
    """Items and where they report. One `wait` after the other uses it, each on what the last one left."""

    def __init__(self, items: list[T]) -> None:
        self.items = items
        self.keys = list(range(len(items)))
        self.completions = _Completions(_refs(items))

    @classmethod
    def of(cls, items: Iterable[T]) -> _Batch[T]:
        # Taken out of the list, so that no second call on it, from another thread even, reads from the same queue.
        batch: _Batch[T] | None = items.__dict__.pop("batch", None) if isinstance(items, _Pending) else None
        if batch is not None and batch.items == items:
            return batch
        return cls(list(_iterate(items)))

    def split(self, ended: list[int]) -> tuple[list[T], list[T]]:
        """Return what has ended and what is pending; slices, since work on each item would make a loop of waits quadratic."""
        places = [bisect_left(self.keys, key) for key in sorted(ended)]
        done = [self.items[place] for place in places]
        self.items = _without(self.items, places)
        self.keys = _without(self.keys, places)
        pending = _Pending(self.items)
        if pending:
            pending.batch = self
        return done, pending


class _Completions:
    """Keys of operations in the order in which they end: fed from any thread, read in any thread or on any loop.

    Attributes:
        refs: the operations not handed out yet, by key.
    """

    def __init__(self, refs: Sequence[OperationRef[Any]]) -> None:
        self.refs = dict(enumerate(refs))
        self._ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._wakers: dict[int, Callable[[], None]] = {}
        self._has_waited = False
        self._check_can_end()
        weak = weakref.ref(self)
        for key, ref in enumerate(refs):
            _Watch.on(ref).listen(ref, weak, key)

    def put(self, key: int) -> None:
        self._ended.put(key)
        for wake in list(self._wakers.values()):
            wake()

    def get(self, deadline: float | None, what: str) -> int | None:
        """Return the next key; None at the deadline, or when there are no more."""
        checked = False
        while self.refs:
            remaining = _remaining(deadline)
            try:
                key = self._ended.get(block=checked and remaining > 0, timeout=remaining)
            except queue.Empty:
                if remaining <= 0:
                    return None
                if not checked:
                    check_blocking(what)
                if checked or not self._has_waited:
                    self._look_up()
                checked = True
                continue
            if self._hand_out(key):
                return key
        return None

    async def get_async(self, deadline: float | None) -> int | None:
        """As `get`, on the caller's own loop."""
        loop = asyncio.get_running_loop()
        while self.refs:
            waiter: asyncio.Future[None] = loop.create_future()
            self._wakers[id(waiter)] = partial(_wake, loop, waiter)
            try:
                if (key := self._take()) is not None:
                    return key
                if (remaining := _remaining(deadline)) <= 0:
                    return None
                if not self._has_waited:
                    self._look_up()
                await asyncio.wait((waiter,), timeout=remaining)
            finally:
                del self._wakers[id(waiter)]
            if not waiter.done():
                self._look_up()
        return None

    def _take(self) -> int | None:
        while True:
            try:
                key = self._ended.get_nowait()
            except queue.Empty:
                return None
            if self._hand_out(key):
                return key

    def _hand_out(self, key: int) -> bool:
        # A key may be reported twice: by an end and by a registration that ran into it.
        return self.refs.pop(key, None) is not None

    def _look_up(self) -> None:
        """Before the first wait, and then once a second: at each of many waits for the same it would make them quadratic."""
        self._has_waited = True
        self._check_can_end()
        for ref in list(self.refs.values()):
            ref.leave_streams()

    def _check_can_end(self) -> None:
        for ref in list(self.refs.values()):
            ref.check_can_end()


class _Watch:
    """The one callback on an operation, for all who wait for it: who polls with a timeout must not leave one each time."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: dict[tuple[weakref.ref[_Completions], int], None] = {}

    @staticmethod
    def on(ref: OperationRef[Any]) -> _Watch:
        watch = _watches.get(ref)
        if watch is None:
            created = _Watch()
            watch = _watches.setdefault(ref, created)
            if watch is created:
                ref._when_done(watch._tell)
        return watch

    def listen(self, ref: OperationRef[Any], completions: weakref.ref[_Completions], key: int) -> None:
        for listener in list(self._listeners):
            if listener[0]() is None:
                self._listeners.pop(listener, None)
        self._listeners[completions, key] = None
        # After the listener is in place, so that an end is told here or by the callback, whichever comes second.
        if ref.done() and (listening := completions()) is not None:
            listening.put(key)

    def _tell(self, _: object) -> None:
        for completions, key in list(self._listeners):
            listening = completions()
            if listening is not None:
                listening.put(key)


_watches: weakref.WeakKeyDictionary[OperationRef[Any], _Watch] = weakref.WeakKeyDictionary()


def _is_waitable(item: object) -> bool:
    return isinstance(item, OperationRef) or callable(getattr(item, "_waitable", None))


def _ref(item: Any) -> OperationRef[Any]:
    ref: OperationRef[Any] = item if isinstance(item, OperationRef) else item._waitable()
    return ref


def _refs(items: list[Any]) -> list[OperationRef[Any]]:
    for item in items:  # all of them before the first is started
        if not _is_waitable(item):
            raise TypeError(f"only sandboxes, operations and processes can be waited for, not {item!r}")
    return [_ref(item) for item in items]


def _iterate(items: Iterable[T]) -> Iterable[T]:
    if _is_waitable(items):
        raise TypeError("a list of items is needed, not a single one: write [item]")
    return items


def _without(values: list[T], places: list[int]) -> list[T]:
    kept: list[T] = []
    start = 0
    for place in places:
        kept += values[start:place]
        start = place + 1
    kept += values[start:]
    return kept


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else deadline_of(timeout)


def _remaining(deadline: float | None) -> float:
    """Seconds until the deadline, and at most those after which a waiter looks up."""
    return SLICE_SECONDS if deadline is None else max(0.0, min(SLICE_SECONDS, deadline - time.monotonic()))


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_resolve, waiter)
    except RuntimeError:  # the reader's loop has closed; nobody waits any more
        pass


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
