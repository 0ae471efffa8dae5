"""Our rows and a trainer's in one run, in every order: nothing of either is lost or overwritten."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aviato import Session
from aviato.integrations.wandb import WandbReporter
from aviato.policy.metrics import Metrics
from tests.integrations import offline_run

wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install -e '.[wandb]'")

STEPS = 6


class Ours:
    """Sessions that count, and what is to be found in the run in the end."""

    def __init__(self) -> None:
        self.sessions = [Session(), Session()]
        self.expected: list[tuple[int, int]] = []

    def log(self, step: int | None, count: int = 1, *, by: int = 0, reset: bool = True) -> None:
        """Count some executions and log them."""
        for _ in range(count):
            self.sessions[by]._metrics.exec_ended("sb-1", "ok", 1.0)
        assert self.sessions[by].log_metrics(step, reset=reset) is True

    def row(self, step: int, count: int = 1) -> None:
        """Log a row that is to be found as it is."""
        self.log(step, count)
        self.expected.append((step, count))


class Trainer:
    """Logs to the run, and knows in which rows its values are to be found."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.expected: list[tuple[int, dict[str, Any]]] = []

    def log(self, at: int, values: dict[str, Any], **how: Any) -> None:
        """Log values that are to be found in the row `at`."""
        self.run.log(values, **how)
        if self.expected and self.expected[-1][0] == at:
            self.expected[-1][1].update(values)
        else:
            self.expected.append((at, dict(values)))


def before(trainer: Trainer, ours: Ours) -> None:
    for step in range(STEPS):
        ours.row(step, 1 + step)
        trainer.log(step, {"loss": step}, step=step)


def after(trainer: Trainer, ours: Ours) -> None:
    for step in range(STEPS):
        trainer.log(step, {"loss": step}, step=step)
        ours.row(step, 1 + step)


def ahead(trainer: Trainer, ours: Ours) -> None:
    """All rollouts first, then the training."""
    for step in range(3):
        ours.row(step, 1 + step)
    for step in range(3):
        trainer.log(step, {"loss": step}, step=step)


def far_ahead(trainer: Trainer, ours: Ours) -> None:
    """Rollouts go on while the training is steps behind."""
    for step in range(STEPS):
        ours.row(100 + 10 * step)
        trainer.log(step, {"loss": step}, step=step)
        ours.row(101 + 10 * step)
        trainer.log(step, {"reward": step}, step=step)


def behind(trainer: Trainer, ours: Ours) -> None:
    for step in range(STEPS):
        trainer.log(step * 50, {"loss": step}, step=step * 50)
    for step in range(STEPS):
        ours.row(step)


def backwards(trainer: Trainer, ours: Ours) -> None:
    for step in range(STEPS):
        ours.row(STEPS - step)
        trainer.log(step, {"loss": step}, step=step)


def evaluated_again(trainer: Trainer, ours: Ours) -> None:
    """The trainer comes back to a step after we have gone on."""
    for step in range(STEPS):
        trainer.log(step, {"loss": step}, step=step)
        ours.row(step)
        ours.row(1000 + step)
        trainer.log(step, {"eval/reward": step}, step=step)


def without_steps(trainer: Trainer, ours: Ours) -> None:
    for step in range(STEPS):
        ours.row(step)
        trainer.log(step, {"loss": step})


def in_parts(trainer: Trainer, ours: Ours) -> None:
    for step in range(STEPS):
        trainer.log(step, {"loss": step}, commit=False)
        ours.row(step)
        trainer.log(step, {"grad_norm": step}, commit=False)
        ours.row(100 + step)
        trainer.log(step, {"reward": step})


def committed_at_once(trainer: Trainer, ours: Ours) -> None:
    for step in range(STEPS):
        trainer.log(step, {"loss": step}, step=step, commit=True)
        ours.row(step)


def left_open(trainer: Trainer, ours: Ours) -> None:
    """Nothing commits the trainer's last row but the end."""
    ours.row(7)
    ours.row(8)
    trainer.log(0, {"loss": 1}, commit=False)


def seldom(trainer: Trainer, ours: Ours) -> None:
    """One row of the trainer's for many of ours, as with `logging_steps`."""
    for step in range(20):
        ours.row(step)
        if step % 5 == 4:
            trainer.log(step // 5, {"loss": step})


def like_hf_trainer(trainer: Trainer, ours: Ours) -> None:
    """An axis of its own, for whatever is logged."""
    trainer.run.define_metric("train/global_step")
    trainer.run.define_metric("*", step_metric="train/global_step", step_sync=True)
    for step in range(STEPS):
        ours.row(step)
        trainer.log(step, {"train/loss": step / 2, "train/global_step": step})


def like_trl_profiler(trainer: Trainer, ours: Ours) -> None:
    for step in range(STEPS):
        for number in range(4):
            trainer.log(8 * step + number, {"profiling/seconds": number})
        ours.row(step)
        for number in range(4, 8):
            trainer.log(8 * step + number, {"profiling/seconds": number})


def at_one_step(trainer: Trainer, ours: Ours) -> None:
    """Two sessions: the first of a step has a row, what comes until that is out is in a second one. None is counted twice."""
    for step in range(STEPS):
        trainer.log(step, {"loss": step}, step=step)
        ours.log(step, 1)
        ours.log(step, 2, by=1)
        ours.log(step, 4)
    ours.expected = [(0, 1), (0, 6), *((step, 7) for step in range(1, STEPS))]


def nobody_else(trainer: Trainer, ours: Ours) -> None:
    """What is logged at a step as long as its row is open or waits is added up in it."""
    for step in (0, 1, 2, 1, 0):
        ours.log(step, 1 + step)
        ours.log(step, 10, by=1)
    ours.expected = [(0, 22), (1, 24), (2, 13)]


def no_step_given(trainer: Trainer, ours: Ours) -> None:
    for step in range(STEPS):
        trainer.log(step, {"loss": step})
        ours.log(None)
        ours.log(None)
    ours.expected = [(1, 1), (1, 1), *((step, 2) for step in range(2, STEPS + 1))]


def without_reset(trainer: Trainer, ours: Ours) -> None:
    for step in range(3):
        for _ in range(2):
            ours.log(step, reset=False)
        trainer.log(step, {"loss": step}, step=step)
    ours.expected = [(0, 1), (0, 2), (1, 4), (2, 6)]


ORDERS = (
    *(before, after, ahead, far_ahead, behind, backwards, evaluated_again),
    *(without_steps, in_parts, committed_at_once, left_open, seldom),
    *(like_hf_trainer, like_trl_profiler, at_one_step, nobody_else, no_step_given, without_reset),
)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    yield lambda **settings: wandb.init(project="orders", dir=tmp_path, settings=wandb.Settings(**settings))
    if wandb.run is not None:
        wandb.finish()


def check(run: Any, trainer: Trainer, ours: Ours) -> None:
    """End the run, and compare what is in its file with what was logged."""
    run.finish()
    rows = offline_run.rows(run.dir)
    theirs = [(row["_step"], {name: value for name, value in row.items() if is_theirs(name)}) for row in rows]
    assert ours_of(rows) == ours.expected
    assert [(step, values) for step, values in theirs if set(values) - {"train/global_step"}] == trainer.expected
    assert all("aviato/step" in row or theirs[at][1] for at, row in enumerate(rows)), "a row of nobody's"
    axes = offline_run.step_metrics(run.dir)
    assert axes.pop("aviato/step") == ""
    mine = {name: axis for name, axis in axes.items() if name.startswith("aviato/")}
    assert set(mine.values()) == {"aviato/step"}
    assert {"aviato/executions", "aviato/success_rate"} <= set(mine)


def is_theirs(name: str) -> bool:
    return not name.startswith(("_", "aviato/"))


def ours_of(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["aviato/step"], row["aviato/executions"]) for row in rows if "aviato/executions" in row]


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_lost(begin: Callable[..., Any], order: Callable[[Trainer, Ours], None]) -> None:
    run = begin()
    trainer, ours = Trainer(run), Ours()
    order(trainer, ours)
    for session in ours.sessions:
        session.close().result()
    check(run, trainer, ours)


@pytest.mark.parametrize("order", [ahead, like_trl_profiler, in_parts])
def test_nothing_is_lost_where_the_service_makes_the_summary(
    begin: Callable[..., Any], order: Callable[[Trainer, Ours], None]
) -> None:
    run = begin(x_server_side_derived_summary=True)
    trainer, ours = Trainer(run), Ours()
    order(trainer, ours)
    check(run, trainer, ours)


def test_the_next_run_begins_anew(begin: Callable[..., Any]) -> None:
    ours = Ours()
    for _ in range(2):
        run = begin()
        trainer, ours.expected = Trainer(run), []
        ahead(trainer, ours)
        check(run, trainer, ours)
    assert ours.sessions[0].log_metrics(step=9) is False


def test_two_runs_at_a_time(begin: Callable[..., Any]) -> None:
    """Each keeps what waits for it, whichever ends first."""
    first, ours = begin(), Ours()
    for step in range(3):
        ours.log(step)
    second = begin(reinit="create_new")
    wandb.run, kept = second, wandb.run
    for step in range(10, 13):
        ours.log(step)
    wandb.run = kept
    ours.log(3)
    first.finish()
    second.finish()
    assert ours_of(offline_run.rows(first.dir)) == [(step, 1) for step in range(4)]
    assert ours_of(offline_run.rows(second.dir)) == [(step, 1) for step in range(10, 13)]


def test_a_row_that_another_thread_sends_out_at_that_moment(begin: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell whether ours went with it, so it is neither written over nor written again."""
    run, ours = begin(), Ours()
    log = run.log

    def raced(values: dict[str, Any], **how: Any) -> None:
        log(values, **how)
        log({"loss": 1})

    with monkeypatch.context() as patch:
        patch.setattr(run, "log", raced)
        ours.log(0, 1)
    ours.log(0, 2)
    run.log({"grad_norm": 1}, commit=False)
    run.finish()
    rows = offline_run.rows(run.dir)
    assert ours_of(rows) == [(0, 1), (0, 2)]
    assert [("loss" in row, "grad_norm" in row) for row in rows] == [(True, False), (False, True), (False, False)]


class UnknownRun:
    """No run of a wandb that is known: it has neither a step nor hooks."""

    step = "unknown"

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def define_metric(self, name: str, **axis: Any) -> None: ...

    def log(self, values: dict[str, Any], **how: Any) -> None:
        self.calls.append((values, how))


def test_a_run_of_another_kind_gets_each_row_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run, ours = UnknownRun(), Ours()
    monkeypatch.setattr(wandb, "run", run)
    for step in (5, 3, None, 3):
        ours.log(step)
    assert [(values["aviato/step"], values["aviato/executions"], how) for values, how in run.calls] == [
        (step, 1, {}) for step in (5, 3, 3, 3)
    ]


def none(run: Any, number: int) -> None:
    run.log({"loss": number})


def every(run: Any, number: int) -> None:
    run.log({"loss": number}, step=number)


def tenth(run: Any, number: int) -> None:
    run.log({"loss": number}, step=10 * number)


def parts(run: Any, number: int) -> None:
    run.log({"grad_norm": number}, commit=False)
    run.log({"loss": number})


@pytest.mark.parametrize("pause_seconds", [0, 0.001])
@pytest.mark.parametrize("log", [none, every, tenth, parts])
def test_a_trainer_in_another_thread(begin: Callable[..., Any], log: Callable[[Any, int], None], pause_seconds: float) -> None:
    run, done, theirs = begin(), threading.Event(), 0
    reporter, metrics = WandbReporter(), Metrics()

    def train() -> None:
        nonlocal theirs
        while not done.is_set():
            log(run, theirs)
            theirs += 1
            time.sleep(random.random() * pause_seconds)

    thread = threading.Thread(target=train)
    thread.start()
    for step in range(150):
        for _ in range(1 + step % 2):
            metrics.exec_ended("sb-1", "ok", 1.0)
            snapshot = metrics.take()
            assert reporter.log(snapshot, step)
            metrics.discard(snapshot)
        time.sleep(random.random() * pause_seconds)
    done.set()
    thread.join()
    run.finish()
    rows = offline_run.rows(run.dir)
    assert [row["loss"] for row in rows if "loss" in row] == list(range(theirs))
    assert log is not parts or all(row["grad_norm"] == row["loss"] for row in rows if "loss" in row)
    found: dict[int, int] = {}
    for step, count in ours_of(rows):
        found[step] = found.get(step, 0) + count
    assert found == {step: 1 + step % 2 for step in range(150)}
