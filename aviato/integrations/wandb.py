"""Metrics of sessions in the active W&B run.

A run is never begun here, and wandb is never imported: a process that has a run has it loaded.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from aviato.exceptions import AviatoValidationError
from aviato.log import logger
from aviato.policy.counts import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.policy.metrics import Snapshot

STEP = f"{PREFIX}step"

_NONE_OUT = -1


class WandbReporter:
    """Logs to `wandb.run`, so that no row of anybody is lost or overwritten, in whatever order they log.

    A run drops what is logged at a smaller step than its own. So nothing here names a step of the run or moves it on: the
    metrics have an axis of their own, `aviato/step`, and join the row that is open in the run. That row goes out with what the
    trainer logs next. It takes one row of ours; further ones wait here until the run has moved on, or ends.

    Raises:
        AviatoValidationError: wandb is not installed.
    """

    name = "wandb"

    def __init__(self) -> None:
        if not _is_installed():
            from aviato.installation import extra_command

            raise AviatoValidationError(
                f"report_to names 'wandb', which is not installed; install it with: {extra_command('wandb')}",
                field_violations={"report_to": "not installed"},
            )
        self._runs: dict[int, _Rows] = {}

    def log(self, metrics: Snapshot, step: int | None) -> bool:
        """Log a row to the run that is active in this process now; False if there is none."""
        run = _active_run()
        return False if run is None else self._rows(run).log(metrics, step)

    def _rows(self, run: Any) -> _Rows:
        rows = self._runs.get(id(run))
        if rows is None or rows.run is not run:
            self._runs = {number: others for number, others in self._runs.items() if not others.finished}
            rows = self._runs[id(run)] = _rows_of(run)
        return rows


class _Rows(Protocol):
    """The rows of ours in one run."""

    run: Any
    finished: bool

    def log(self, metrics: Snapshot, step: int | None) -> bool: ...


class _JoiningRows:
    """Rows of ours that join the rows of a run; at most one of ours each.

    Whether the run has moved on is asked of its service, which takes all messages in their order: the `_step` of the summary
    is that of the last row that went out. What the run's own object counts is behind that while another thread logs.

    Args:
        run: the run.
        at_finish: makes a hook that the run calls when it begins to end and still takes rows.
    """

    def __init__(self, run: Any, at_finish: Callable[[Callable[[], None]], Any]) -> None:
        self.run = run
        self.finished = False
        self._is_ending = False
        self._axis = _Axis(run)
        self._has_summary = not getattr(run.settings, "x_server_side_derived_summary", False)
        self._open: _Row | None = None
        self._joined_after = self._open_until = _NONE_OUT
        self._waiting: dict[int, _Row] = {}
        self._pid = os.getpid()
        # A signal handler that ends the run may interrupt the thread that logs.
        self._lock = threading.RLock()
        run._teardown_hooks.append(at_finish(self._finish))
        # A run that nobody finishes calls no hooks: wandb ends it in a handler of its own, which is older and so comes later.
        atexit.register(self._at_exit)

    def log(self, metrics: Snapshot, step: int | None) -> bool:
        with self._lock:
            if self.finished:
                return False
            out = self._last_out()
            before = self._open if out <= self._open_until else None
            step = self._newest_step(before) if step is None else step
            waiting = {**self._waiting, step: self._waiting.get(step, _Row(step)).joined(metrics)}
            if before is None:
                self._join(waiting.pop(next(iter(waiting))), out)
            elif before.step == step:
                self._open = before.joined(metrics)
            self._waiting = waiting
            if self._is_ending:
                self._flush()
            return True

    def _newest_step(self, before: _Row | None) -> int:
        """Where the run stands; as long as it stays there, the step of the newest row."""
        if before is None:
            return self._stands()
        return next(reversed(self._waiting), before.step)

    def _stands(self) -> int:
        # The service begins a resumed run with its first row, and until then stands at 0.
        return max(int(self.run.step), int(self.run.starting_step))

    def _last_out(self) -> int:
        """The step of the last row of the run that nothing can join any more."""
        if not self._has_summary:
            return self._stands() - 1
        step = self.run.summary.get("_step")
        return step if isinstance(step, int) else _NONE_OUT

    def _join(self, row: _Row, out: int) -> None:
        self._axis.describe(row)
        self.run.log(row.content(), commit=False)
        self._open, self._joined_after = row, out
        # It has joined the row that is open now, or one that another thread has just sent out. No answer in time is none.
        self._open_until = max(out, self._last_out())

    def _finish(self) -> None:
        """Give the run what waits. From here on nobody's row can be dropped for it."""
        self._end()
        self.finished = True
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """The same, while sessions that are still there may log what is left."""
        self._end()

    def _end(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._is_ending = True
            try:
                self._flush()
            except Exception:
                logger.warning("%d rows of metrics did not reach the W&B run that ended", len(self._waiting), exc_info=True)

    def _flush(self) -> None:
        if self._waiting and self._open is not None and self._last_out() <= self._open_until:
            self._send_out(self._open)
        while self._waiting:
            step, row = next(iter(self._waiting.items()))
            self._axis.describe(row)
            self.run.log(row.content(), commit=True)
            del self._waiting[step]

    def _send_out(self, row: _Row) -> None:
        """End the open row of the run. Where it is sure to be the one with ours, all that was logged at its step is in it."""
        is_sure = self._joined_after == self._open_until
        self.run.log(row.content() if is_sure else {}, commit=True)
        if is_sure:
            self._waiting.pop(row.step, None)


class _SeparateRows:
    """Rows of ours in a run that drops none by its number, as in shared mode, where the service numbers them: one each time."""

    finished = False

    def __init__(self, run: Any) -> None:
        self.run = run
        self._axis = _Axis(run)
        self._step = 0

    def log(self, metrics: Snapshot, step: int | None) -> bool:
        row = _Row(self._stands() if step is None else step).joined(metrics)
        self._axis.describe(row)
        self.run.log(row.content())
        self._step = row.step
        return True

    def _stands(self) -> int:
        with suppress(Exception):  # It says so by an error if it has none.
            if isinstance(self.run.step, int):
                return self.run.step
        return self._step


class _Axis:
    """`aviato/step` as the axis of our metrics in a run, each by its name: a trainer may have given `*` one of its own."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._described: set[str] = set()

    def describe(self, row: _Row) -> None:
        if not self._described:
            self._run.define_metric(STEP)
            self._run.define_metric(f"{PREFIX}*", step_metric=STEP)
        for name in row.content().keys() - {STEP, *self._described}:
            self._run.define_metric(name, step_metric=STEP)
            self._described.add(name)


@dataclass
class _Part:
    """What one session logged into a row: what was reset since, and its span that goes on."""

    reset: Snapshot | None
    latest: Snapshot

    def total(self) -> Snapshot:
        return self.latest if self.reset is None else self.reset.plus(self.latest)


@dataclass(eq=False)
class _Row:
    """A row of ours: what `aviato/step` it has, and whose counts are in it."""

    step: int
    parts: dict[int, _Part] = field(default_factory=dict)

    def joined(self, metrics: Snapshot) -> _Row:
        """With these in place of what the same session logged here since its last reset, and beside all else."""
        before = self.parts.get(metrics.source)
        if before is None:
            part = _Part(None, metrics)
        elif before.latest.span == metrics.span:
            part = _Part(before.reset, metrics)
        else:
            part = _Part(before.total(), metrics)
        return _Row(self.step, {**self.parts, metrics.source: part})

    def content(self) -> dict[str, float | int]:
        total = reduce(lambda both, more: both.plus(more), [part.total() for part in self.parts.values()])
        return {**total, STEP: self.step}


def _rows_of(run: Any) -> _Rows:
    hooks, module = getattr(run, "_teardown_hooks", None), sys.modules.get(type(run).__module__)
    hook, stage = getattr(module, "TeardownHook", None), getattr(module, "TeardownStage", None)
    is_shared = getattr(getattr(run, "settings", None), "mode", None) == "shared"
    if is_shared or not isinstance(hooks, list) or hook is None or stage is None or not isinstance(run.step, int):
        return _SeparateRows(run)
    return _JoiningRows(run, lambda call: hook(call, stage.EARLY))


def _active_run() -> Any:
    """The run that was begun in this process, or None.

    A forked child sees its parent's run. What it logged there would move the run on behind the parent's back, whose own rows
    would be dropped from then on.
    """
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None or getattr(run, "disabled", False) is True:
        return None
    begun_in = getattr(run, "_init_pid", None)
    return None if isinstance(begun_in, int) and begun_in != os.getpid() else run


def _is_installed() -> bool:
    """A folder of that name, such as wandb leaves in the working directory, is no package."""
    if hasattr(sys.modules.get("wandb"), "run"):
        return True
    try:
        spec = find_spec("wandb")
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None
