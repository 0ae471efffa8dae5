"""Retrying calls that may be repeated: which failures, how long apart, and until when."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, TypeVar

from aviato.exceptions import (
    AviatoError,
    SandboxRequestTimeoutError,
    SandboxResourceExhaustedError,
    SandboxUnavailableError,
)
from aviato.log import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import RetryCallState

T = TypeVar("T")

FIRST_DELAY_SECONDS = 0.05
LONGEST_DELAY_SECONDS = 2.0
_DISTINCT_ERRORS_SHOWN = 5

# A list of what may be retried, never of what may not: "everything but" would retry a cancelled task.
_RETRIED = (SandboxUnavailableError, SandboxRequestTimeoutError, SandboxResourceExhaustedError)


class RetryPolicy:
    """Repeats an idempotent call that failed by infrastructure, within a budget of time.

    Args:
        on_retry: called before each attempt but the first, on the loop that runs the call.
    """

    def __init__(self, on_retry: Callable[[], None] | None = None) -> None:
        self._on_retry = on_retry

    async def call(self, attempt: Callable[[], Awaitable[T]], *, budget_seconds: float, operation: str) -> T:
        """Return what `attempt()` returns, trying again while the failure is retryable and the budget lasts.

        The budget bounds when an attempt may begin; one that has begun is bounded by its own request timeout.

        Args:
            attempt: makes one attempt; called again for each.
            budget_seconds: how long after this call the last attempt may begin; zero or less means one attempt.
            operation: what is being tried, for the log and the error, such as `"create sandbox"`.

        Raises:
            AviatoError: the last failure itself, its message extended by what was tried.
        """
        from tenacity import AsyncRetrying, retry_if_exception

        run = _Run(budget_seconds, operation, self._on_retry)
        try:
            return await AsyncRetrying(
                retry=retry_if_exception(_may_retry),
                stop=run.is_over,
                wait=run.delay,
                before_sleep=run.note_sleep,
                sleep=run.sleep,
                reraise=True,
            )(attempt)
        except _RETRIED as error:
            if error.retryable:
                run.explain(error)
            raise


class _Run:
    """One call of the policy: its deadline and what it has tried so far."""

    def __init__(self, budget_seconds: float, operation: str, on_retry: Callable[[], None] | None) -> None:
        self._started = time.monotonic()
        self._deadline = self._started + budget_seconds
        self._operation = operation
        self._on_retry = on_retry
        self._attempts = 0
        self._errors: dict[str, int] = {}

    def is_over(self, state: RetryCallState) -> bool:
        error = _error_of(state)
        self._attempts = state.attempt_number
        text = f"{type(error).__name__}: {error}"
        self._errors[text] = self._errors.get(text, 0) + 1
        remaining = self._deadline - time.monotonic()
        return remaining <= 0 or _asked_delay(error) > remaining

    def delay(self, state: RetryCallState) -> float:
        error = _error_of(state)
        if isinstance(error, AviatoError) and error.reason == "rate_limit":
            # This time is the call's own turn, which another takes if nobody comes.
            wanted = _asked_delay(error) + random.uniform(0, FIRST_DELAY_SECONDS)
            return max(0.0, min(wanted, self._deadline - time.monotonic()))
        if isinstance(error, SandboxResourceExhaustedError) and _asked_delay(error) > 0:
            # The server knows when there will be room: who comes later than that leaves it empty.
            wanted = _asked_delay(error) * random.uniform(1.0, 1.5)
            return max(0.0, min(wanted, self._deadline - time.monotonic()))
        backoff = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(state.attempt_number - 1, 30))
        # Jitter also on top of what the server asked for: it tells all its clients the same number.
        wanted = _asked_delay(error) + random.uniform(backoff / 2, backoff)
        return max(0.0, min(wanted, self._deadline - time.monotonic()))

    def note_sleep(self, state: RetryCallState) -> None:
        logger.info("%s failed, trying again in %.2f s: %s", self._operation, state.upcoming_sleep, _error_of(state))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._on_retry is not None:
            self._on_retry()

    def explain(self, error: AviatoError) -> None:
        """Add what was tried to the message of the error that goes up."""
        if self._attempts < 2:
            return
        tried = f"{self._operation}: tried {self._attempts} times in {time.monotonic() - self._started:.1f} s"
        if len(self._errors) > 1:
            shown = [f"{text} ({count} times)" if count > 1 else text for text, count in self._errors.items()]
            left_out = len(shown) - _DISTINCT_ERRORS_SHOWN
            tried += ": " + "; ".join(shown[:_DISTINCT_ERRORS_SHOWN])
            tried += f"; and {left_out} more" if left_out > 0 else ""
        else:
            tried += ", with this error each time"
        error.args = (f"{error} ({tried})", *error.args[1:])


def _may_retry(error: BaseException) -> bool:
    return isinstance(error, _RETRIED) and error.retryable


def _error_of(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None


def _asked_delay(error: BaseException | None) -> float:
    asked = error.retry_delay_seconds if isinstance(error, AviatoError) else None
    return max(0.0, asked or 0.0)
