"""What a session counts, in the rows that the real wandb wrote."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import Session
from aviato.integrations.wandb import WandbReporter
from aviato.policy.metrics import Metrics
from tests.integrations import offline_run

wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install -e '.[wandb]'")

STEPS = 8
COUNTERS = (
    "executions",
    "exec_successes",
    "exec_failures",
    "exec_errors",
    "exec_cancelled",
    "exec_timeouts",
    "sandboxes_created",
)


@pytest.fixture
def served(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Begin an offline run, as a trainer would."""
    yield lambda: wandb.init(project="aviato-tests", dir=tmp_path)
    if wandb.run is not None:
        wandb.finish()


@pytest.fixture
def run(begin: Callable[[], Any]) -> Any:
    return begin()


def written(run: Any) -> list[dict[str, Any]]:
    """All rows; the run ends."""
    run.finish()
    return offline_run.rows(run.dir)


def ours(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Step and number of executions of each row that has metrics of ours."""
    return [(row["aviato/step"], row["aviato/executions"]) for row in rows if "aviato/executions" in row]


def commands(session: Session, count: int) -> None:
    sandbox = session.sandbox()
    aviato.results([sandbox.exec(["true"]) for _ in range(count)])


def alone(run: Any, step: int) -> None:
    """Nobody else logs."""


def many_rows(run: Any, step: int) -> None:
    """As TRL's profiler and trainer: no step of their own."""
    for number in range(8):
        run.log({"profiling/seconds": number, "train/global_step": step})


def same_steps(run: Any, step: int) -> None:
    """As ART: the training step, before and after."""
    run.log({"train/loss": step}, step=step)
    run.log({"train/reward": step}, step=step)


def far_ahead(run: Any, step: int) -> None:
    """Many rows before the training, and none while it goes on."""
    if step == 0:
        for number in range(100):
            run.log({"eval/seconds": number})


THEIRS = {
    alone: (None, 0),
    many_rows: ("profiling/seconds", 64),
    same_steps: ("train/loss", 8),
    far_ahead: ("eval/seconds", 100),
}


@pytest.mark.parametrize("others", THEIRS)
def test_rows_are_what_was_counted_whoever_else_logs(served: None, run: Any, others: Callable[[Any, int], None]) -> None:
    expected = []
    with Session() as session:
        for step in range(STEPS):
            others(run, step)
            seen: Counter[str] = Counter()
            sandboxes = [session.sandbox() for _ in range(1 + step % 2)]
            seen["sandboxes_created"] += len(sandboxes)
            processes = [sandboxes[n % len(sandboxes)].exec(["sh", "-c", f"exit {n % 3}"]) for n in range(2 + step)]
            if step == 3:
                processes.append(sandboxes[0].exec(["sleep", "60"], timeout_seconds=0.2))
            for process in processes:
                seen["executions"] += 1
                try:
                    code = process.result().returncode
                except aviato.SandboxCommandTimeoutError:
                    seen["exec_errors"] += 1
                    seen["exec_timeouts"] += 1
                else:
                    seen["exec_failures" if code else "exec_successes"] += 1
            if step == 5:
                cancelled = sandboxes[0].exec(["sleep", "60"])
                cancelled.cancel()
                assert isinstance(cancelled.exception(), aviato.OperationCancelledError)
                seen["exec_cancelled"] += 1
            assert session.log_metrics(step=step)
            others(run, step) if others is same_steps else None
            expected.append({"aviato/step": step, **{f"aviato/{name}": seen[name] for name in COUNTERS}})
    rows = written(run)
    mine = [row for row in rows if "aviato/executions" in row]
    assert [{name: row[name] for name in expected[0]} for row in mine] == expected
    assert [row["aviato/success_rate"] for row in mine] == [
        row["aviato/exec_successes"] / row["aviato/executions"] for row in expected
    ]
    name, count = THEIRS[others]
    assert sum(name in row for row in rows) == count
    axes = offline_run.step_metrics(run.dir)
    assert axes.pop("aviato/step") == ""
    assert axes["aviato/*"] == "aviato/step"
    assert {name: axis for name, axis in axes.items() if axis != "aviato/step"} == {}


def test_a_trainer_in_another_thread(run: Any) -> None:
    """By the number that the run had a moment ago, most rows would be dropped."""
    reporter, metrics, done, theirs = WandbReporter(), Metrics(), threading.Event(), 0

    def train() -> None:
        nonlocal theirs
        while not done.is_set():
            run.log({"loss": theirs})
            theirs += 1

    thread = threading.Thread(target=train)
    thread.start()
    for step in range(100):
        metrics.exec_ended("sb-1", "ok", 1.0)
        snapshot = metrics.take()
        assert reporter.log(snapshot, step)
        metrics.discard(snapshot)
        before, deadline = theirs, time.monotonic() + 10
        while theirs < before + 2 and time.monotonic() < deadline:
            time.sleep(0.0005)  # a step of training, in which it writes rows
    done.set()
    thread.join()
    rows = written(run)
    assert sum(executions for _, executions in ours(rows)) == 100
    assert sum("loss" in row for row in rows) == theirs


def test_what_follows_the_last_log_is_in_its_row_at_close(served: None, run: Any) -> None:
    with Session() as session:
        commands(session, 2)
        assert session.log_metrics(step=5)
        commands(session, 1)
        left = session.sandbox().exec(["sleep", "60"])
        aviato.wait([left], timeout=0.2)
    assert isinstance(left.exception(), aviato.SandboxNotRunningError)
    assert session.log_metrics() is True  # nothing is left: a row of zeros, added to the same one
    (row,) = [row for row in written(run) if "aviato/executions" in row]
    assert (row["aviato/step"], row["aviato/executions"], row["aviato/exec_cancelled"]) == (5, 3, 1)
    assert row["aviato/sandboxes_created"] == 3


def test_images_forks_resets_and_pools_are_in_the_row(served: None, run: Any) -> None:
    with Session() as session, session.pool(1) as pool:
        parent = session.sandbox()
        taken = parent.snapshot().result()
        aviato.results([child.exec(["true"]) for child in parent.fork(2)])
        parent.reset().result()
        pool.sandbox(resources={"limits": {"processes": 77}}).wait()
        session.prefetch(["oci:/none"]).result()
        assert session.log_metrics(step=1)
        aviato.Sandbox.delete_snapshot(taken.snapshot_id).result()
    (row,) = [row for row in written(run) if "aviato/executions" in row]
    expected = {"snapshots": 1, "forks": 2, "resets": 1, "pool_misses": 1, "image_pull_failures": 1}
    assert {name: row[f"aviato/{name}"] for name in expected} == expected


def test_close_logs_where_the_run_stands_when_no_step_was_given(served: None, run: Any) -> None:
    run.log({"loss": 1}, step=4)
    with Session() as session:
        commands(session, 2)
    with Session():
        pass  # nothing to tell
    assert ours(written(run)) == [(4, 2)]


def test_without_a_reset_counts_go_on(served: None, run: Any) -> None:
    with Session() as session:
        for step in (1, 1, 2):
            commands(session, 1)
            assert session.log_metrics(step=step, reset=False)
        assert session.get_metrics()["aviato/executions"] == 3
    assert ours(written(run)) == [(1, 2), (2, 3)]


def test_sessions_at_one_step_are_added_up(served: None, run: Any) -> None:
    with Session() as first, Session() as second, Session(report_to=[]) as silent:
        for session, count in ((first, 1), (second, 2), (silent, 4), (first, 8)):
            commands(session, count)
            assert session.log_metrics(step=3) is (session is not silent)
        assert silent.get_metrics()["aviato/executions"] == 4
        commands(first, 1)
        assert first.log_metrics(step=2)
    assert ours(written(run)) == [(3, 11), (2, 1)]


def test_the_run_is_looked_up_at_each_log(served: None, begin: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    with Session() as session, Session(report_to=["wandb"]) as asked:
        commands(session, 1)
        commands(asked, 1)
        for _ in range(2):
            assert session.log_metrics(step=1) is False
            assert asked.log_metrics(step=1) is False
        assert [record.levelno for record in caplog.records if "wandb" in record.getMessage()] == [logging.WARNING]
        first = begin()
        assert session.log_metrics(step=1)
        assert ours(written(first)) == [(1, 1)]
        commands(session, 2)
        assert session.log_metrics(step=2) is False
        assert asked.log_metrics(step=2) is False
        second = begin()
        assert session.log_metrics(step=0)
        assert asked.log_metrics(step=9)
        assert ours(written(second)) == [(0, 2), (9, 1)]
        assert offline_run.step_metrics(second.dir)["aviato/*"] == "aviato/step"


def test_a_disabled_run_takes_nothing(served: None, tmp_path: Path) -> None:
    wandb.init(project="aviato-tests", mode="disabled", dir=tmp_path)
    try:
        with Session() as session:
            commands(session, 1)
            assert session.log_metrics(step=1) is False
            assert session.get_metrics()["aviato/executions"] == 1
    finally:
        wandb.finish()


@pytest.mark.anyio
async def test_from_coroutines_and_threads(served: None, run: Any) -> None:
    async with Session() as session:
        sandbox = session.sandbox()
        for step in range(2):
            await sandbox.exec(["true"])
            assert session.log_metrics(step=step)
        await sandbox.exec(["true"])
        thread = threading.Thread(target=session.log_metrics, args=(2,))
        thread.start()
        thread.join()
        await sandbox.exec(["true"])
    assert ours(written(run)) == [(0, 1), (1, 1), (2, 2)]


@pytest.mark.parametrize("step", [1.0, "1", True])
def test_a_step_is_a_whole_number(step: Any) -> None:
    with Session() as session, pytest.raises(TypeError, match="step"):
        session.log_metrics(step=step)
