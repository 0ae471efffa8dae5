"""Compares ratios with recorded ones: red, and status 1, where one has surely become slower.

    python benchmarks/baseline.py [--record] [--baseline FILE] [--rounds N] [--busy PART] [--patience S] [--slow-down PART]

A round measures each figure and its floor several times in alternation and takes the ratio of their lower quartiles. The figure
is the median of the rounds, with a bootstrap 90 % interval over rounds; it is red when even the lower end of that is above
1.2 × what was recorded for this class of machines. Rounds are added while the interval does not decide, and three times as
many are made before one is called red: what disturbs the machine for some seconds only is a part of them.

Only quiet rounds count: a machine whose processors are busy with other work lengthens what takes several processes far more
than it lengthens their floor, up to twice, which says nothing about aviato. Where it does not get quiet, nothing is decided,
and the status is 2, as where nothing was recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aviato.bench import latency
from aviato.bench.floor import TRUE_ARGV, Floor, bwrap_argv
from aviato.bench.machine import machine
from aviato.bench.processes import others_seconds
from aviato.bench.report import Table, grid
from aviato.bench.run import Run
from aviato.bench.script import console, describe_machine
from aviato.bench.series import Ratio, interval, quantile

if TYPE_CHECKING:
    from collections.abc import Callable

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
UNDECIDED = 2
"""Exit status where nothing was recorded to compare with, or the machine was too busy."""
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


def machine_class(facts: dict[str, Any]) -> str:
    """Machines whose ratios can be compared: the same processors, kernel, Python and kind of user."""
    kernel, python = (".".join(facts[name].split(".")[:2]) for name in ("kernel", "python"))
    return f"{facts['cpus']} × {facts['model']}, Linux {kernel}, Python {python}, {'root' if facts['uid'] == 0 else 'user'}"


def check(run: Run, path: Path, *, recording: bool, **asked: Any) -> int:
    """Compare with the baseline, or record one; the exit status.

    Args:
        run: on which server.
        path: of the recorded ratios.
        recording: write the ratios, compare with none.
        asked: see `compare`.
    """
    describe_machine()
    machines = machine_class(machine())
    recorded = {} if recording else read(path).get(machines)
    if recorded is None:
        console.print(f"{path} has no ratios of this class of machines ({machines}); --record writes them", soft_wrap=True)
        return UNDECIDED
    found = compare(run, recorded, **asked)
    console.print(f"{found.quiet} quiet rounds; {found.noisy} did not count, since other work had the processors")
    if not found.valid:
        console.print(f"undecided: {MIN_ROUNDS} quiet rounds are needed; try again when less else runs")
        return UNDECIDED
    shown = Table(f"{machines}: red above {ALLOWED} × the recorded", ("", "× floor (90 %)", "recorded", ""))
    shown.rows += [[figure.name, figure.ratio, figure.recorded or "", figure.verdict] for figure in found.figures]
    console.print(grid(shown))
    if recording:
        record(machines, found.figures, path)
    return 1 if found.red else 0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="record the ratios of this machine, and compare with none")
    parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="FILE", help="the recorded ratios")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS, metavar="N", help="at least")
    parser.add_argument("--busy", type=float, default=FOREIGN, metavar="PART", help="of the processors others may have")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE_SECONDS, metavar="S", help="for a quiet machine, and to measure"
    )
    parser.add_argument("--slow-down", type=float, default=0.0, metavar="PART", help="busy-wait in what is measured")
    parser.add_argument("--base-url", help="server to measure (default: AVIATO_BASE_URL, else the embedded one)")
    given = parser.parse_args()
    asked = {"rounds": given.rounds, "foreign": given.busy, "patience_seconds": given.patience, "slow_down": given.slow_down}
    sys.exit(check(Run({}, given.base_url), given.baseline, recording=given.record, **asked))


if __name__ == "__main__":
    main()
