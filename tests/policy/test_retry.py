"""What is retried, how long, and what the last error says."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from aviato.exceptions import (
    AviatoAuthenticationError,
    AviatoError,
    AviatoValidationError,
    OperationTimeoutError,
    SandboxFailedError,
    SandboxNotFoundError,
    SandboxRequestTimeoutError,
    SandboxResourceExhaustedError,
    SandboxUnavailableError,
)
from aviato.policy.infrastructure import retried
from aviato.policy.retry import RetryPolicy


class Attempts:
    """Fails with each error in turn (the last one for ever, if `endless`), then returns "value"."""

    def __init__(self, *errors, endless=False):
        self.errors = list(errors)
        self.endless = endless
        self.times = []

    async def __call__(self):
        self.times.append(time.monotonic())
        await asyncio.sleep(0)
        if self.endless and len(self.errors) == 1:
            raise self.errors[0]()
        if self.errors:
            raise self.errors.pop(0)()
        return "value"


def call(attempts, budget_seconds=5.0, on_retry=None):
    policy = RetryPolicy(on_retry)
    return asyncio.run(policy.call(attempts, budget_seconds=budget_seconds, operation="create sandbox"))


def test_success_at_once_makes_one_attempt():
    attempts = Attempts()
    assert call(attempts) == "value"
    assert len(attempts.times) == 1


@pytest.mark.parametrize("error", [SandboxUnavailableError, SandboxRequestTimeoutError, SandboxResourceExhaustedError])
def test_infrastructure_failures_are_retried_and_counted(error):
    attempts = Attempts(error, error)
    retries = []
    assert call(attempts, on_retry=lambda: retries.append(1)) == "value"
    assert len(attempts.times) == 3
    assert len(retries) == 2


@pytest.mark.parametrize(
    "error",
    [
        AviatoValidationError,
        AviatoAuthenticationError,
        SandboxNotFoundError,
        SandboxFailedError,
        OperationTimeoutError,
        ValueError,
        lambda: SandboxUnavailableError("x", retryable=False),
        lambda: AviatoError("x", retryable=True),
        KeyboardInterrupt,
    ],
)
def test_others_are_raised_at_once_and_unchanged(error):
    raised = error()
    attempts = Attempts(lambda: raised)
    with pytest.raises(type(raised)) as caught:
        call(attempts)
    assert caught.value is raised
    assert len(attempts.times) == 1
    assert "tried" not in str(raised)


def test_cancelled_error_of_the_attempt_is_not_retried():
    attempts = Attempts(asyncio.CancelledError)
    with pytest.raises(asyncio.CancelledError):
        call(attempts)
    assert len(attempts.times) == 1


def test_cancelling_the_caller_ends_it_in_the_middle_of_a_delay():
    attempts = Attempts(lambda: SandboxResourceExhaustedError("full", retry_delay_seconds=30), endless=True)

    async def main():
        task = asyncio.ensure_future(RetryPolicy().call(attempts, budget_seconds=60, operation="x"))
        while not attempts.times:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    started = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - started < 5
    assert len(attempts.times) == 1


def test_cancelling_the_caller_ends_it_in_the_middle_of_an_attempt():
    calls = []

    async def attempt():
        calls.append(1)
        await asyncio.Event().wait()

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(RetryPolicy().call(attempt, budget_seconds=60, operation="x"), 0.05)

    asyncio.run(main())
    assert calls == [1]


def test_no_attempt_begins_after_the_budget():
    attempts = Attempts(lambda: SandboxUnavailableError("refused"), endless=True)
    started = time.monotonic()
    with pytest.raises(SandboxUnavailableError) as caught:
        call(attempts, budget_seconds=0.5)
    assert time.monotonic() - started < 1.0
    assert attempts.times[-1] - started <= 0.6
    assert len(attempts.times) >= 4
    assert str(caught.value).startswith(f"refused (create sandbox: tried {len(attempts.times)} times in 0.5 s")


def test_an_attempt_that_used_up_the_budget_is_not_repeated():
    async def attempt():
        calls.append(1)
        await asyncio.sleep(0.1)
        raise SandboxRequestTimeoutError("slow")

    calls = []
    with pytest.raises(SandboxRequestTimeoutError, match=r"^slow$"):
        call(attempt, budget_seconds=0.05)
    assert calls == [1]


def test_no_budget_means_one_attempt_and_the_plain_error():
    attempts = Attempts(lambda: SandboxUnavailableError("refused"), endless=True)
    with pytest.raises(SandboxUnavailableError, match=r"^refused$"):
        call(attempts, budget_seconds=0)
    assert len(attempts.times) == 1


@pytest.fixture
def delays(monkeypatch):
    """What is waited for in this thread, at once; loops of tests before wait as ever."""
    asked, here, real = [], threading.get_ident(), asyncio.sleep

    async def sleep(seconds, *result):
        if threading.get_ident() != here:
            return await real(seconds, *result)
        if seconds:
            asked.append(seconds)

    monkeypatch.setattr("aviato.policy.retry.asyncio.sleep", sleep)
    return asked


def test_delays_grow_and_vary(delays):
    errors = [SandboxUnavailableError] * 12

    async def attempt():
        if errors:
            raise errors.pop()()

    asyncio.run(RetryPolicy().call(attempt, budget_seconds=60, operation="x"))
    for number, delay in enumerate(delays):
        longest = min(2.0, 0.05 * 2**number)
        assert longest / 2 <= delay <= longest
    assert len(delays) == 12
    assert len({round(delay, 6) for delay in delays[-4:]}) > 1


def test_the_delay_that_the_server_asks_for_is_kept():
    attempts = Attempts(lambda: SandboxResourceExhaustedError("full", retry_delay_seconds=0.3))
    assert call(attempts) == "value"
    assert attempts.times[1] - attempts.times[0] >= 0.3


def test_who_is_told_when_there_is_room_comes_then_however_often_it_was_refused(delays):
    attempts = Attempts(*[lambda: SandboxResourceExhaustedError("full", retry_delay_seconds=0.3)] * 10)
    assert call(attempts) == "value"
    assert len(delays) == 10 and all(0.3 <= delay <= 0.45 for delay in delays) and len(set(delays)) > 1


def test_a_delay_longer_than_what_is_left_ends_it_at_once():
    attempts = Attempts(lambda: SandboxResourceExhaustedError("full", retry_delay_seconds=30), endless=True)
    started = time.monotonic()
    with pytest.raises(SandboxResourceExhaustedError) as caught:
        call(attempts, budget_seconds=5)
    assert time.monotonic() - started < 2
    assert caught.value.retry_delay_seconds == 30


def test_the_last_error_lists_the_distinct_ones():
    last = SandboxUnavailableError("refused", reason="gone", retry_delay_seconds=9)
    attempts = Attempts(
        lambda: SandboxRequestTimeoutError("slow"),
        lambda: SandboxUnavailableError("reset"),
        lambda: SandboxUnavailableError("reset"),
        lambda: last,
    )
    with pytest.raises(SandboxUnavailableError) as caught:
        call(attempts, budget_seconds=2)
    assert caught.value is last
    assert caught.value.reason == "gone"
    text = str(caught.value)
    assert "tried 4 times" in text
    assert (
        "SandboxRequestTimeoutError: slow; SandboxUnavailableError: reset (2 times); SandboxUnavailableError: refused" in text
    )


def test_a_failure_for_good_after_retries_stays_as_it_is():
    attempts = Attempts(SandboxUnavailableError, lambda: SandboxNotFoundError("no such sandbox"))
    with pytest.raises(SandboxNotFoundError, match=r"^no such sandbox$"):
        call(attempts)


@pytest.mark.parametrize("reason", ["configuration", "state_dir", "cannot_run", "wire_version"])
def test_what_somebody_has_to_change_first_is_not_met_again(reason):
    attempts = Attempts(lambda: SandboxUnavailableError("older", reason=reason, retryable=False))
    with pytest.raises(SandboxUnavailableError, match="older"):
        asyncio.run(retried(attempts, 60))
    assert len(attempts.times) == 1


@pytest.mark.parametrize("reason", ["sandbox_lost", "result_lost", "protocol", "tls"])
def test_what_another_sandbox_may_not_meet_is_tried_in_one(reason):
    attempts = Attempts(lambda: SandboxUnavailableError("gone", reason=reason, retryable=False))
    assert asyncio.run(retried(attempts, 60)) == "value"
    assert len(attempts.times) == 2


def test_importing_the_policy_does_not_import_tenacity():
    code = "import sys, aviato.policy.retry; print('tenacity' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
