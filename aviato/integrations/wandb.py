"""Metrics of sessions in the active W&B run.

A run is never begun here, and wandb is never imported: a process that has a run has it loaded.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from functools import reduce
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError
from aviato.policy.counts import PREFIX

if TYPE_CHECKING:
    from aviato.policy.metrics import Snapshot

STEP = f"{PREFIX}step"


class WandbReporter:
    """Logs to `wandb.run`, so that no row is lost whatever else logs there.

    A run drops what is logged at a smaller step than its own, and trainers write many rows a step: so the metrics have an axis
    of their own, `aviato/step`, and go to the run's step where that is ahead. A row stays open until the run goes on; who logs
    into it again under the same names overwrites them. So what joins an open row of ours is added up with it.

    Raises:
        AviatoValidationError: wandb is not installed.
    """

    name = "wandb"

    def __init__(self) -> None:
        if not _is_installed():
            raise AviatoValidationError(
                "report_to names 'wandb', which is not installed: pip install 'aviato[wandb]'",
                field_violations={"report_to": "not installed"},
            )
        self._row = _Row()
        self._described: Any = None

    def log(self, metrics: Snapshot, step: int | None) -> bool:
        """Log a row to the run that is active in this process now; False if there is none."""
        run = _active_run()
        if run is None:
            return False
        if self._described is not run:
            run.define_metric(STEP)
            run.define_metric(f"{PREFIX}*", step_metric=STEP)
            self._described = run
        if not isinstance(run.step, int):
            run.log({**metrics} if step is None else {**metrics, STEP: step}, step=step)
            return True
        current = run.step
        row = self._row.next(run, current, step).joined(metrics)
        content = {**row.total(), STEP: row.step}
        if row.at > current and row.step == row.at:
            run.log(content, step=row.at)
        else:
            # Without a number, which would have it dropped if another thread has just moved the run on.
            if row.at > current:
                run.log({STEP: self._row.step}, commit=True)
            run.log(content, commit=False)
        self._row = row
        return True


@dataclass
class _Part:
    """What one session logged into a row: what was reset since, and its span that goes on."""

    reset: Snapshot | None
    latest: Snapshot

    def total(self) -> Snapshot:
        return self.latest if self.reset is None else self.reset.plus(self.latest)


@dataclass
class _Row:
    """A row of ours: where it stands in the run, what `aviato/step` it has, and whose counts are in it."""

    run: Any = None
    at: int = 0
    step: int = 0
    parts: dict[int, _Part] = field(default_factory=dict)

    def next(self, run: Any, current: int, step: int | None) -> _Row:
        """The row for what is logged now, with the run standing at `current`: this one as long as it is open and fits."""
        if self.run is not run or self.at != current:
            step = current if step is None else step
            return _Row(run, max(step, current), step)
        if step is None or step == self.step:
            return self
        if step > current:
            return _Row(run, step, step)
        if current > self.step:
            # Others are ahead and count by themselves: the next row is free.
            return _Row(run, current + 1, step)
        # An earlier step, where others may give the same steps as we: one row on, theirs would be dropped.
        return self

    def joined(self, metrics: Snapshot) -> _Row:
        """With these in place of what the same session logged here since its last reset, and beside all else."""
        before = self.parts.get(metrics.source)
        if before is None:
            part = _Part(None, metrics)
        elif before.latest.span == metrics.span:
            part = _Part(before.reset, metrics)
        else:
            part = _Part(before.total(), metrics)
        return _Row(self.run, self.at, self.step, {**self.parts, metrics.source: part})

    def total(self) -> Snapshot:
        return reduce(lambda both, more: both.plus(more), [part.total() for part in self.parts.values()])


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
