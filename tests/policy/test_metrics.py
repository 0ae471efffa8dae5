"""One row of the documented table per outcome, and no count lost."""

import os
import threading

import pytest

from aviato.policy import metrics as metrics_module
from aviato.policy.counts import Durations
from aviato.policy.metrics import ExecStats, Metrics
from aviato.results import ImageInfo

ZERO = {
    "aviato/executions": 0,
    "aviato/exec_successes": 0,
    "aviato/exec_completed_ok": 0,
    "aviato/exec_failures": 0,
    "aviato/exec_completed_nonzero": 0,
    "aviato/exec_errors": 0,
    "aviato/exec_cancelled": 0,
    "aviato/exec_timeouts": 0,
    "aviato/infrastructure_errors": 0,
    "aviato/output_truncations": 0,
    "aviato/retries": 0,
    "aviato/sandboxes_created": 0,
    "aviato/startup_count": 0,
}
ONE_EXEC = {"aviato/executions": 1, **{f"aviato/{what}_execs_per_sandbox": 1 for what in ("avg", "min", "max")}}
LASTED = {"aviato/avg_exec_seconds": 2.0, "aviato/p95_exec_seconds": 2.0}


def rates(success, error):
    return {
        "aviato/success_rate": success,
        "aviato/exec_completion_rate": success,
        "aviato/error_rate": error,
        "aviato/exec_failure_rate": error,
    }


def test_nothing_counted_has_zeros_and_no_rates():
    assert Metrics().snapshot() == ZERO


@pytest.mark.parametrize(
    ("outcome", "duration", "flags", "expected"),
    [
        ("ok", 2.0, {}, {"aviato/exec_successes": 1, "aviato/exec_completed_ok": 1, **ONE_EXEC, **LASTED, **rates(1, 0)}),
        (
            "ok",
            2.0,
            {"truncated": True},
            {
                "aviato/exec_successes": 1,
                "aviato/exec_completed_ok": 1,
                "aviato/output_truncations": 1,
                **ONE_EXEC,
                **LASTED,
                **rates(1, 0),
            },
        ),
        (
            "nonzero",
            2.0,
            {},
            {"aviato/exec_failures": 1, "aviato/exec_completed_nonzero": 1, **ONE_EXEC, **LASTED, **rates(0, 0)},
        ),
        (
            "error",
            2.0,
            {"timed_out": True},
            {"aviato/exec_errors": 1, "aviato/exec_timeouts": 1, **ONE_EXEC, **LASTED, **rates(0, 1)},
        ),
        (
            "error",
            None,
            {"infrastructure": True},
            {"aviato/exec_errors": 1, "aviato/infrastructure_errors": 1, **ONE_EXEC, **rates(0, 1)},
        ),
        ("error", None, {}, {"aviato/exec_errors": 1, **ONE_EXEC, **rates(0, 1)}),
        ("cancelled", 2.0, {"truncated": True}, {"aviato/exec_cancelled": 1}),
    ],
)
def test_each_outcome(outcome, duration, flags, expected):
    metrics = Metrics()
    metrics.exec_ended("sb-1", outcome, duration, **flags)
    assert metrics.snapshot() == {**ZERO, **expected}


def test_rates_of_a_mixture_leave_the_cancelled_out():
    metrics = Metrics()
    for outcome in ["ok", "ok", "nonzero", "error", "cancelled"]:
        metrics.exec_ended("sb-1", outcome, 1.0)
    snapshot = metrics.snapshot()
    assert snapshot["aviato/executions"] == 4
    assert snapshot["aviato/success_rate"] == 0.5
    assert snapshot["aviato/error_rate"] == 0.25


def test_startups_and_sandboxes():
    metrics = Metrics()
    for _ in range(3):
        metrics.sandbox_created()
    for seconds in (1.0, 2.0, 6.0):
        metrics.startup(seconds)
    metrics.retry()
    snapshot = metrics.snapshot()
    assert snapshot["aviato/sandboxes_created"] == 3
    assert snapshot["aviato/retries"] == 1
    assert [snapshot[f"aviato/{what}_startup_seconds"] for what in ("avg", "min", "max")] == [3.0, 1.0, 6.0]
    assert snapshot["aviato/startup_count"] == 3


def test_images_builds_and_what_is_made_of_others():
    metrics = Metrics()
    for status, seconds, count in (("here", 2.0, 100), ("here", 4.0, 11), ("here", None, 0), ("failed", None, 7)):
        metrics.image_prefetched(ImageInfo(reference="one", status=status, pull_seconds=seconds, done_bytes=count))
    for is_cached in (False, True, True):
        metrics.build_step(is_cached)
    metrics.snapshot_taken()
    metrics.forked()
    metrics.was_reset()
    metrics.startup(1.0, True, pooled=True)
    metrics.startup(1.0, True)
    metrics.startup(1.0, False, pooled=True)
    metrics.startup(1.0, False)
    snapshot = metrics.snapshot()
    expected = {
        "image_pulls": 2,
        "image_pull_bytes": 111,
        "avg_image_pull_seconds": 3.0,
        "max_image_pull_seconds": 4.0,
        "image_cache_hits": 1,
        "image_pull_failures": 1,
        "build_steps": 1,
        "build_steps_cached": 2,
        "snapshots": 1,
        "forks": 1,
        "resets": 1,
        "pool_claims": 2,
        "pool_misses": 1,
        "startup_count": 4,
    }
    assert {name: snapshot[f"aviato/{name}"] for name in expected} == expected
    metrics.reset()
    assert metrics.snapshot() == ZERO


def test_execs_per_sandbox_count_those_with_an_exec():
    metrics = Metrics()
    for _ in range(4):
        metrics.sandbox_created()
    for sandbox_id in ("a", "a", "a", "b"):
        metrics.exec_ended(sandbox_id, "ok", 1.0)
    metrics.exec_ended("c", "cancelled", None)
    snapshot = metrics.snapshot()
    assert [snapshot[f"aviato/{what}_execs_per_sandbox"] for what in ("avg", "min", "max")] == [2.0, 1, 3]


def test_sandboxes_that_nobody_has_any_more_are_counted_without_their_ids():
    metrics = Metrics()
    for number in range(1000):
        for _ in range(1 + number % 3):
            metrics.exec_ended(f"sb-{number}", "ok", 1.0)
        metrics.sandbox_let_go(f"sb-{number}")
    metrics.sandbox_let_go("without an exec")
    metrics.exec_ended("last", "ok", 1.0)
    assert len(metrics.snapshot()._counts.per_sandbox) == 1
    shown = [metrics.snapshot()[f"aviato/{what}_execs_per_sandbox"] for what in ("avg", "min", "max")]
    assert shown == [(334 + 333 * 2 + 333 * 3 + 1) / 1001, 1, 3]
    taken = metrics.take()
    metrics.sandbox_let_go("last")
    metrics.exec_ended("last", "ok", 1.0)
    assert [metrics.snapshot()[f"aviato/{what}_execs_per_sandbox"] for what in ("min", "max")] == [1, 3]
    metrics.discard(taken)
    assert metrics.snapshot()["aviato/avg_execs_per_sandbox"] == 1
    metrics.reset()
    assert metrics.snapshot() == ZERO


def test_percentile_is_of_the_nearest_rank():
    metrics = Metrics()
    for seconds in range(1, 101):
        metrics.exec_ended("a", "ok", float(seconds))
    assert metrics.snapshot()["aviato/p95_exec_seconds"] == 95.0


def test_a_sample_stays_bounded_and_fair_when_filled_and_merged():
    first, second = Durations(), Durations()
    for number in range(30_000):
        first.add(1.0 if number % 10 else 100.0)
    for _ in range(10_000):
        second.add(1000.0)
    both = first.merged(second)
    assert len(first.sample) == len(both.sample) == 1024
    assert first.percentile(50) == 1.0
    assert first.percentile(99) == 100.0
    assert both.count == 40_000
    assert both.sample.count(1000.0) == 256
    assert (both.shortest, both.longest) == (1.0, 1000.0)
    assert second.merged(Durations()).sample.count(1000.0) == 1024


def test_taking_resets_nothing_until_it_is_discarded():
    metrics = Metrics()
    metrics.exec_ended("a", "ok", 1.0)
    metrics.startup(3.0)
    before = metrics.snapshot()
    assert metrics.take() == before
    taken = metrics.take()
    assert taken == before == metrics.snapshot()
    metrics.discard(taken)
    assert metrics.snapshot() == ZERO


def test_what_arrives_while_logging_is_kept():
    metrics = Metrics()
    metrics.exec_ended("a", "ok", 1.0)
    metrics.startup(3.0)
    taken = metrics.take()
    metrics.exec_ended("a", "nonzero", 5.0)
    metrics.startup(7.0)
    assert metrics.snapshot()["aviato/executions"] == 2
    assert metrics.snapshot()["aviato/max_execs_per_sandbox"] == 2
    metrics.discard(taken)
    metrics.discard(taken)
    snapshot = metrics.snapshot()
    assert snapshot["aviato/executions"] == snapshot["aviato/exec_failures"] == 1
    assert snapshot["aviato/min_startup_seconds"] == 7.0
    assert snapshot["aviato/max_execs_per_sandbox"] == 1
    assert snapshot["aviato/avg_exec_seconds"] == 5.0


def test_an_older_discards_nothing():
    metrics = Metrics()
    metrics.retry()
    older = metrics.take()
    metrics.retry()
    newer = metrics.take()
    metrics.discard(older)
    assert metrics.snapshot()["aviato/retries"] == 2
    metrics.discard(newer)
    assert metrics.snapshot()["aviato/retries"] == 0


def test_reset_forgets_everything_taken_or_not():
    metrics = Metrics()
    metrics.retry()
    taken = metrics.take()
    metrics.retry()
    metrics.reset()
    assert metrics.snapshot() == ZERO
    metrics.retry()
    metrics.discard(taken)
    assert metrics.snapshot()["aviato/retries"] == 1


def test_counts_are_exact_under_threads_that_log():
    metrics, stats = Metrics(), ExecStats()
    logged = []
    finished = threading.Event()

    def work(number):
        for _ in range(500):
            metrics.exec_ended(f"sb-{number % 8}", "ok", 0.1)
            metrics.retry()
            stats.exec_ended("ok")

    def log():
        while not finished.is_set():
            snapshot = metrics.take()
            logged.append(snapshot)
            metrics.discard(snapshot)

    logger = threading.Thread(target=log)
    workers = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in [logger, *workers]:
        thread.start()
    for thread in workers:
        thread.join()
    finished.set()
    logger.join()
    logged.append(metrics.snapshot())
    assert sum(row["aviato/executions"] for row in logged) == 16_000
    assert sum(row["aviato/retries"] for row in logged) == 16_000
    assert stats.execution_stats["total"] == 16_000


def test_both_dicts_of_a_sandbox():
    stats = ExecStats()
    assert stats.execution_stats == {"total": 0, "successes": 0, "failures": 0, "errors": 0}
    for outcome in ["ok", "ok", "ok", "nonzero", "nonzero", "error", "cancelled"]:
        stats.exec_ended(outcome)
    assert stats.execution_stats == {"total": 6, "successes": 3, "failures": 2, "errors": 1}
    assert stats.exec_stats == {"exec_count": 6, "completed_ok": 3, "completed_nonzero": 2, "failures": 1}


def test_news_is_what_no_log_has_taken():
    metrics = Metrics()
    assert not metrics.has_news
    metrics.take()
    metrics.log_failed()
    assert not metrics.has_news
    metrics.retry()
    assert metrics.has_news
    metrics.take()
    assert not metrics.has_news
    metrics.log_failed()
    assert metrics.has_news


def test_a_child_counts_its_own_even_where_a_lock_was_held():
    metrics, stats = Metrics(), ExecStats()
    metrics.exec_ended("a", "ok", 1.0)
    with metrics_module._lock:
        child = os.fork()
        if child == 0:
            metrics.exec_ended("a", "nonzero", 1.0)
            stats.exec_ended("ok")
            counted = metrics.snapshot()
            os._exit(0 if (counted["aviato/executions"], counted["aviato/exec_failures"]) == (1, 1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert metrics.snapshot()["aviato/executions"] == 1
