"""Compares ratios with recorded ones: red where one has surely become slower.

A round measures each figure and its floor several times in alternation and takes the ratio of their lower quartiles. The figure
is the median of the rounds, with a bootstrap 90 % interval over rounds; it is red when even the lower end of that is above
1.2 × what was recorded for this class of machines. Rounds are added while the interval does not decide, and three times as
many are made before one is called red: what disturbs the machine for some seconds only is a part of them.

Only quiet rounds count: a machine whose processors are busy with other work lengthens what takes several processes far more
than it lengthens their floor, up to twice, which says nothing about aviato. Where it does not get quiet, nothing is decided.
"""

from __future__ import annotations

import json
import os
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aviato.bench import latency
from aviato.bench.floor import TRUE_ARGV, Floor, bwrap_argv
from aviato.bench.processes import others_seconds
from aviato.bench.series import Ratio, interval, quantile

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.bench.run import Run

    Cases = dict[str, Callable[[], float]]

ALLOWED = 1.2
"""Times what was recorded."""
MIN_ROUNDS = 7
RED_ROUNDS = 3 * MIN_ROUNDS
MAX_ROUNDS = 40
REPEATS = 12
"""Of each case in one round."""
PART = 0.25
"""Of the measurements of a round that lie below the one that counts."""
FOREIGN = 0.2
"""Of the machine's processors is the most that other work may have in a round that counts."""
PATIENCE_SECONDS = 150.0
BASELINE = Path(__file__).with_name("baseline.json")

TRUE, BWRAP = "true", "bwrap"


@dataclass(frozen=True)
class Figure:
    """One figure that is compared: its rounds, and what was recorded for it."""

    name: str
    rounds: list[float]
    recorded: float | None

    @property
    def ratio(self) -> Ratio:
        """To its floor."""
        return interval(self.rounds)

    @property
    def red(self) -> bool:
        """Whether it is surely slower."""
        return self.recorded is not None and self.ratio.low > ALLOWED * self.recorded

    @property
    def verdict(self) -> str:
        """In a word."""
        return "recorded" if self.recorded is None else "red" if self.red else "green"

    @property
    def decided(self) -> bool:
        """Whether more rounds would hardly change that."""
        if self.recorded is None:
            return len(self.rounds) >= MAX_ROUNDS
        limit, found = ALLOWED * self.recorded, self.ratio
        return found.high < limit or (found.low > limit and len(self.rounds) >= RED_ROUNDS)


@dataclass(frozen=True)
class Comparison:
    """All figures, and how often the machine was not quiet."""

    figures: list[Figure]
    quiet: int
    noisy: int

    @property
    def valid(self) -> bool:
        """Whether there were enough rounds."""
        return self.quiet >= MIN_ROUNDS

    @property
    def red(self) -> bool:
        """Whether anything has surely become slower."""
        return self.valid and any(figure.red for figure in self.figures)


def compare(
    run: Run,
    recorded: dict[str, float],
    *,
    rounds: int = MIN_ROUNDS,
    slow_down: float = 0.0,
    foreign: float = FOREIGN,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Comparison:
    """Measure, as often as it takes.

    Args:
        run: on which server.
        recorded: the ratios of the baseline; empty to record.
        rounds: at least.
        slow_down: busy-wait after each figure for such a part of its time: shows that the comparison finds it.
        foreign: how much of the processors other work stays under, for a round to count; 0 counts none.
        patience_seconds: to wait for a quiet machine, and for the rounds.
    """
    found: dict[str, list[float]] = {}
    quiet = noisy = 0
    deadline = time.monotonic() + patience_seconds
    with ExitStack() as stack:
        cases, floors = _cases(run, stack)
        for case in cases.values():
            case()
        cases |= {name: slowed(cases[name], slow_down) for name in floors if slow_down}
        while True:
            values, others = _round(cases, floors, run.server_pid())
            if others >= foreign:
                noisy += 1
            else:
                quiet += 1
                for name, value in values.items():
                    found.setdefault(name, []).append(value)
            figures = [Figure(name, some, recorded.get(name)) for name, some in found.items()]
            enough = quiet >= max(rounds, MIN_ROUNDS)
            decided = quiet >= MAX_ROUNDS or all(figure.decided for figure in figures)
            if (enough and decided) or time.monotonic() > deadline:
                return Comparison(figures, quiet, noisy)


def _cases(run: Run, stack: ExitStack) -> tuple[Cases, dict[str, str]]:
    """What is measured, and which floor belongs to what."""
    session = stack.enter_context(run.session())
    cases: Cases = {
        TRUE: stack.enter_context(Floor(TRUE_ARGV)),
        latency.EXEC: stack.enter_context(latency.executing(session)),
        latency.AWAIT: stack.enter_context(latency.awaiting(run)),
    }
    floors = {latency.EXEC: TRUE, latency.AWAIT: TRUE}
    bwrap = bwrap_argv()
    if bwrap is not None:
        cases[BWRAP] = stack.enter_context(Floor(bwrap))
        cases[latency.CREATE] = latency.creating(session)
        floors[latency.CREATE] = BWRAP
    return cases, floors


def _round(cases: Cases, floors: dict[str, str], server_pid: int | None) -> tuple[dict[str, float], float]:
    """The ratios of one round, and the part of the processors that others had meanwhile."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    order, before, begin = list(cases), others_seconds(server_pid), time.perf_counter()
    for _ in range(REPEATS):
        random.shuffle(order)
        for name in order:
            seconds[name].append(cases[name]())
    wall = (time.perf_counter() - begin) * (os.cpu_count() or 1)
    values = {name: quantile(seconds[name], PART) / quantile(seconds[floor], PART) for name, floor in floors.items()}
    return values, max(0.0, (others_seconds(server_pid) - before) / wall)  # Ticks are coarse.


def slowed(case: Callable[[], float], part: float) -> Callable[[], float]:
    """The case with a busy wait after it, of that part of its own time: a real slow-down, for the comparison to find."""

    def slow() -> float:
        seconds, begin = case(), time.perf_counter()
        while (waited := time.perf_counter() - begin) < part * seconds:
            pass
        return seconds + waited

    return slow


def read(path: Path = BASELINE) -> dict[str, dict[str, float]]:
    """The recorded ratios by class of machines."""
    if not path.exists():
        return {}
    classes: dict[str, dict[str, float]] = json.loads(path.read_text())
    return classes


def record(machines: str, figures: list[Figure], path: Path = BASELINE) -> None:
    """Write the ratios of one class of machines; those of others stay."""
    classes: dict[str, Any] = read(path)
    classes[machines] = {figure.name: round(figure.ratio.value, 3) for figure in figures}
    path.write_text(json.dumps(dict(sorted(classes.items())), indent=2, ensure_ascii=False) + "\n")
