"""The handle of an operation: `.result()` for blocking code, `await` for any event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
import weakref
from numbers import Real
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from aviato.bridge.loop import SLICE_SECONDS, loop_thread
from aviato.bridge.loop import check_blocking as check_blocking
from aviato.bridge.outcome import Outcome
from aviato.core.shared import ended
from aviato.core.timeouts import not_ended
from aviato.exceptions import AviatoError, OperationCancelledError
from aviato.log import logger
from aviato.values.handles import Handle
from aviato.values.representation import cut
from aviato.values.text import line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable

    from aviato.bridge.stream import StreamReader

T = TypeVar("T")

INTERRUPT_SECONDS = 5.0
"""How long a first Ctrl-C waits for the clean-up of the work that it cancels."""
WHY_SECONDS = 2.0
"""How long who waits no longer waits to be told why it was in vain."""


class Startable(Protocol):
    """What an operation is of, a sandbox, and may have to wait for before anything inside can hold it up."""

    @property
    def may_have_run(self) -> bool:
        """Whether it has begun to run, or may have, as far as is known here; from any thread."""
        ...

    async def why_pending(self) -> str | None:
        """What keeps it pending, asked now, in a second or so; None: nothing does, or nothing is said of that."""
        ...


class OperationRef(Handle, Generic[T]):
    """An operation under way. Wait with `.result()` or `await`, as often and from wherever you like; the outcome is kept."""

    # Subclasses call _start() from their own __init__; before that, or without it, collection must find these.
    _name: str = "operation"
    _seen: bool = True
    _state: Startable | None = None
    _streams: tuple[StreamReader[Any], ...] = ()
    """What it writes: whoever waits for it cannot also go on reading."""

    @classmethod
    def start(
        cls, coroutine: Coroutine[Any, Any, T], *, name: str, shared: bool = False, state: Startable | None = None
    ) -> Self:
        """Start a coroutine on the loop thread.

        Args:
            coroutine: the work.
            name: for messages, such as `"read_file '/tmp/x'"`.
            shared: several callers wait for the same work, so a cancelled waiter leaves and the work goes on.
            state: of its sandbox, which is asked on the loop thread, for whoever waits no longer, what keeps it pending.
        """
        ref = cls.__new__(cls)
        ref._state = state
        ref._start(coroutine, name=name, shared=shared)
        return ref

    def _start(self, coroutine: Coroutine[Any, Any, T], *, name: str, shared: bool = False) -> None:
        self._name = name
        self._shared = shared
        self._pid = os.getpid()
        self._task: asyncio.Task[None] | None = None
        self._not_begun: Coroutine[Any, Any, T] | None = coroutine
        self._outcome: Outcome[T] = Outcome()
        self._seen = False
        for attempt in range(2):
            try:
                self._thread = loop_thread()
                self._thread.loop.call_soon_threadsafe(self._begin)
                return
            except RuntimeError as error:
                if attempt == 0:  # it was closing; a new one is started
                    continue
                coroutine.close()
                self._seen = True
                raise RuntimeError(f"{name}: aviato's event loop cannot be started ({error})") from error
            except AviatoError:
                coroutine.close()
                self._seen = True
                raise

    def _begin(self) -> None:
        self._task = self._thread.loop.create_task(self._carry(), name=self._name)

    async def _carry(self) -> None:
        """Do the work, and tell whoever waits as its last step: a callback of the task would come a turn of the loop later."""
        error: BaseException | None = None
        work, self._not_begun = self._not_begun, None
        try:
            if work is None:
                raise asyncio.CancelledError
            self._outcome.value = await work
        except (asyncio.CancelledError, GeneratorExit):
            error = OperationCancelledError(f"{self._title()} was cancelled")
        except BaseException as raised:
            # Without this frame, which has this handle: nobody could ever forget both.
            error = raised.with_traceback(None if raised.__traceback__ is None else raised.__traceback__.tb_next)
        if error is not None:
            # What was cancelled, or waited for what was, is no news to whoever did it.
            self._seen = self._seen or isinstance(error, OperationCancelledError) or self._thread.leaving
        self._task = None
        try:
            self._settle(error)
        finally:
            self._outcome.set(error)

    def _settle(self, error: BaseException | None) -> None:
        """Called on the loop thread at its end, before anyone learns of it."""

    def _title(self) -> str:
        """What it is, in messages."""
        return self._name

    # -- looking

    def done(self) -> bool:
        """Whether it has ended, its clean-up included."""
        return self._outcome.is_set

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error it ended with, or None; waits like `result`."""
        self._wait(timeout)
        self._seen = True
        return self._outcome.error

    def _when_done(self, callback: Callable[[Self], object]) -> None:
        """Call back with this handle when it has ended, from whichever thread ends it; at once if it has."""
        # Holding the handle, they would keep a forgotten failure from being logged.
        weak = weakref.ref(self)

        def call() -> None:
            ref = weak()
            if ref is not None:
                callback(ref)

        self._outcome.when_set(call)

    # -- waiting

    def result(self, timeout: float | None = None) -> T:
        """Wait for the outcome.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            OperationTimeoutError: the time ran out; the work goes on.
            OperationCancelledError: it was cancelled.
        """
        self._wait(timeout)
        self._seen = True
        return self._outcome.value if self._outcome.error is None else self._outcome.result()

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait_async().__await__()

    @property
    def _outlives_waiters(self) -> bool:
        """Whether a waiter that is cancelled leaves the work to go on."""
        return self._shared

    def _timeout_error(self, timeout: float) -> Exception:
        reason = self.told_why()
        return not_ended(self._title(), timeout, reason, has_begun=self.has_begun)

    @property
    def has_begun(self) -> bool:
        """Whether what runs inside may hold it up, as far as is known here."""
        return self._state is None or self._state.may_have_run

    def told_why(self, *others: OperationRef[Any]) -> str | None:
        """What keeps its sandbox pending, asked now; None: nothing does, or nobody says so in time. Blocking.

        Args:
            others: whose sandboxes are asked, too, so that `has_begun` is right for them.
        """
        asked = self._ask_why(others)
        try:
            return None if asked is None else asked.result(WHY_SECONDS)
        except (TimeoutError, concurrent.futures.CancelledError):
            return None

    async def told_why_async(self, *others: OperationRef[Any]) -> str | None:
        """As `told_why`, on the caller's own loop."""
        asked = self._ask_why(others)
        if asked is None:
            return None
        waiter = asyncio.wrap_future(asked)
        await asyncio.wait((waiter,), timeout=WHY_SECONDS)
        return waiter.result() if waiter.done() and not waiter.cancelled() else None

    def _ask_why(self, others: Iterable[OperationRef[Any]]) -> concurrent.futures.Future[str | None] | None:
        states = {id(state): state for ref in (self, *others) if (state := ref._asked_state) is not None}
        if not states:
            return None
        asked = _asked(list(states.values()), of_first=self._asked_state is not None)
        try:
            return asyncio.run_coroutine_threadsafe(asked, self._thread.loop)
        except RuntimeError:  # The interpreter is ending.
            asked.close()
            return None

    @property
    def _asked_state(self) -> Startable | None:
        """Who can say what it waits for."""
        return self._state

    def check_can_end(self) -> None:
        """Refuse to wait for what never ends here; called before a wait, and about once a second during it.

        Raises:
            RuntimeError: it was started before a fork by the parent, or the loop thread is gone.
        """
        if self._outcome.is_set:
            return
        if self._pid != os.getpid():
            raise RuntimeError(
                f"{self._title()} was started by process {self._pid} before the fork; only that process can wait for it"
            )
        if not self._thread.is_alive() and not self._outcome.is_set:
            raise RuntimeError(f"{self._title()} will never end: aviato's event loop is gone, the interpreter is ending")

    def leave_streams(self) -> None:
        """Before a wait: detach what this very thread or task holds half read of it, so that it cannot wait for itself."""
        for stream in self._streams:
            stream.detach_own()

    def _wait(self, timeout: float | None) -> None:
        for stream in self._streams:  # As `leave_streams`; every command comes this way, and hardly any is read.
            if stream.reading:
                stream.detach_own()
        if self._outcome.is_set:
            return
        if self._pid != os.getpid() or self._thread.closing:
            self.check_can_end()
        if asyncio._get_running_loop() is not None:
            check_blocking(f"waiting for {self._title()}")
        try:
            if not self._wait_in_slices(timeout):
                assert timeout is not None
                raise self._timeout_error(timeout)
        except KeyboardInterrupt:
            if not self._outlives_waiters:
                self.cancel()
                self._wait_in_slices(INTERRUPT_SECONDS)
            self._seen = True
            raise

    async def _wait_async(self) -> T:
        self.leave_streams()
        if not self._outcome.is_set:
            try:
                await self._wake_up()
            except asyncio.CancelledError:
                if not self._outlives_waiters:
                    self.cancel()
                    self._seen = True
                    # Whoever cancelled the waiter may go on once the work is really over.
                    await self._wake_up()
                raise
        self._seen = True
        return self._outcome.result()

    def _wait_in_slices(self, timeout: float | None) -> bool:
        """Block until it has ended; False when the time is over first."""
        deadline = None if timeout is None else deadline_of(timeout)
        while True:
            remaining = SLICE_SECONDS if deadline is None else min(SLICE_SECONDS, deadline - time.monotonic())
            if remaining <= 0:
                return self._outcome.is_set
            if self._outcome.wait(remaining):
                return True
            self.check_can_end()

    async def _wake_up(self) -> None:
        """Wait on the caller's own loop until it has ended."""
        loop = asyncio.get_running_loop()
        task = self._task
        if task is not None and threading.get_ident() == self._thread.ident:
            await ended(task)  # No thread has to be woken, and the outcome is set before the task ends.
            return
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(_resolve, waiter)
            except RuntimeError:  # the waiter's loop has closed; nobody waits any more
                pass

        timer: asyncio.TimerHandle

        def look_up() -> None:
            nonlocal timer
            if self._outcome.is_set:
                _resolve(waiter)  # Who was to wake it was interrupted.
                return
            try:
                self.check_can_end()
            except RuntimeError as error:
                if not waiter.done():
                    waiter.set_exception(error)
            else:
                timer = loop.call_later(SLICE_SECONDS, look_up)

        self.check_can_end()
        self._outcome.when_set(wake)
        timer = loop.call_later(SLICE_SECONDS, look_up)
        try:
            await waiter
        finally:
            timer.cancel()

    # -- ending

    def cancel(self) -> bool:
        """End the work for all its waiters; `done()` is True once its clean-up is over.

        Returns:
            False if it had ended already, or if it is shared (a start, a stop) and goes on.
        """
        if self._outcome.is_set or self._shared or self._pid != os.getpid():
            return False
        try:
            self._thread.loop.call_soon_threadsafe(self._cancel_task)
        except RuntimeError:
            return False
        return True

    def _cancel_task(self) -> None:
        if self._not_begun is not None:
            self._not_begun.close()  # A task that is cancelled before its first step takes none, and nobody would be told.
            self._not_begun = None
        # Once: waiters that are cancelled together must not cancel the clean-up that each of them waits for.
        elif self._task is not None and not self._task.cancelling():
            self._task.cancel()

    def _no_attribute(self, name: str) -> str:
        if name == "add_done_callback":
            # `asyncio.wait` takes whatever has it for a future of its own loop, and would wait for ever.
            return (
                f"{type(self).__name__!r} object has no attribute {name!r}; it is a handle and no future of a loop: "
                "use `aviato.wait()` or `aviato.as_completed()`, or `await` it"
            )
        return super()._no_attribute(name)

    def __repr__(self) -> str:
        return cut(f"<{type(self).__name__} {line(self._title())}: {self._state_shown()}>")

    def _state_shown(self) -> str:
        if not self._outcome.is_set:
            return "running"
        error = self._outcome.error
        return "done" if error is None else type(error).__name__

    def __del__(self) -> None:
        if self._seen or not self._outcome.is_set or self._pid != os.getpid():
            return
        error = self._outcome.error
        if error is not None:
            logger.error("%s failed and nobody looked at it: %s: %s", self._title(), type(error).__name__, error)


async def _asked(states: list[Startable], *, of_first: bool) -> str | None:
    """Ask what each of them waits for, all at once; what the first says, if that is wanted."""
    reasons = await asyncio.gather(*(state.why_pending() for state in states))
    return reasons[0] if of_first else None


def deadline_of(timeout: float) -> float:
    """When so many seconds from now are over, by the monotonic clock.

    Raises:
        TypeError: no number.
        ValueError: NaN.
    """
    if not isinstance(timeout, Real):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if timeout != timeout:
        raise ValueError("timeout must be a number of seconds or None, not NaN")
    return time.monotonic() + min(timeout, threading.TIMEOUT_MAX)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
