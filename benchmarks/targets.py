"""The targets, and what a run has of them: measures what they are about, the peers too, and prints their table.

python benchmarks/targets.py [--rounds N] [--quick] [--base-url URL] [--json DIR]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import peers

from aviato.bench import latency, memory, script, streams, throughput
from aviato.bench.report import Report, Table, grid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aviato.bench.series import Ratio

PEERS = "peers"
BUSY = 0.2
"""What others may have of one processor before the table says so."""


@dataclass(frozen=True)
class Target:
    """One figure and where it has to be.

    Attributes:
        name: as the table says it.
        benchmark: whose figure it is.
        figure: a name in the ratios or the values of its report.
        aim, stretch: bounds.
        unit: of figure and bounds.
        least: the bounds are lower ones.
    """

    name: str
    benchmark: str
    figure: str
    aim: float
    stretch: float
    unit: str
    least: bool = False

    def reaches(self, value: float, bound: float) -> bool:
        """Whether a value is within a bound."""
        return value >= bound if self.least else value <= bound

    def says(self, floor: Ratio) -> str:
        """What it means for the bounds that aviato-init alone takes so much; that is so if all of its interval is."""
        best, worst = (floor.high, floor.low) if self.least else (floor.low, floor.high)

        def beside(bound: float) -> str:
            if not self.reaches(best, bound):
                return "alone exceeds"
            return "leaves room for" if self.reaches(worst, bound) else "cannot be told from"

        sign = "≥" if self.least else "≤"
        bounds = (
            f"{beside(bound)} the {name} ({sign} {bound:g})" for name, bound in (("aim", self.aim), ("stretch", self.stretch))
        )
        return f"{self.name}: the init floor, {floor} {self.unit}, {', '.join(bounds)}"


TARGETS = (
    Target(latency.CREATE, "latency", latency.CREATE, 2.0, 1.5, "× bwrap --unshare-all true"),
    Target(latency.EXEC, "latency", latency.EXEC, 3.0, 2.5, "× subprocess.run true"),
    Target(latency.AWAIT, "latency", latency.AWAIT, 2.5, 2.0, "× subprocess.run true"),
    Target(
        "batch of 256, a fresh sandbox each",
        "throughput",
        throughput.BATCH,
        0.9,
        1.0,
        "× rate of bwrap … python3 -I -c",
        least=True,
    ),
    Target("1,000 live sandboxes, server included", "memory", memory.EACH, 3.0, 2.0, "MiB (PSS) each"),
    Target("the same: failures", "memory", memory.FAILED, 0.0, 0.0, "of them"),
    Target("the same: create rate, last third", "memory", memory.RATE, 0.9, 1.0, "× the first third", least=True),
    Target("stdout of 1 GiB", "streams", streams.STDOUT, 350.0, 600.0, "MB/s", least=True),
    Target("first result of all, no server running, p95", "latency", f"{latency.FIRST}, p95 seconds", 1.0, 0.5, "s"),
)


def needed() -> list[str]:
    """The benchmarks that have these figures."""
    return list(dict.fromkeys(target.benchmark for target in TARGETS))


def table(reports: Mapping[str, Report], failures: Iterable[str] = (), *, quick: bool = False) -> Table:
    """Every target: what was measured, and whether that is enough.

    Args:
        reports: of the benchmarks that ran.
        failures: the benchmarks that broke off.
        quick: sizes were small.
    """
    shown = Table(
        "targets, by small sizes: they say nothing" if quick else "targets",
        ("", "measured (90 %)", "aim", "stretch", "unit", "floor", "init floor (90 %)", "others' CPU", ""),
    )
    missing = dict.fromkeys(failures, "failed")
    for target in TARGETS:
        sign = "≥" if target.least else "≤"
        bounds = [f"{sign} {target.aim:g}", f"{sign} {target.stretch:g}", target.unit]
        absent = missing.get(target.benchmark, "not measured")
        shown.rows.append([target.name, *_found(target, reports.get(target.benchmark), bounds, absent)])
    beside = reports[PEERS].ratios if PEERS in reports else {}
    bounds = ["> 1", "≥ 3", "× as good as the peer", ""]
    for name, quotient in beside.items():  # ahead is what is surely so: an interval above 1
        verdict = _said(quotient.low > 1, quotient.low >= 3)
        shown.rows.append([name, str(quotient), *bounds, "", _others(reports[PEERS]), verdict])
    if not beside:
        shown.rows.append(["against every isolating peer", "–", *bounds, "", "", missing.get(PEERS, "not measured")])
    return shown


def notes(reports: Mapping[str, Report]) -> list[str]:
    """What a reader of the table has to know: what the init floors say of the targets, and of other work on the machine."""
    said = []
    for target in TARGETS:
        floor = reports[target.benchmark].init.get(target.figure) if target.benchmark in reports else None
        if floor is not None:
            sign = "≥" if target.least else "≤"
            said.append(f"{target.name}: the init floor, {floor} {target.unit}, {target.says(floor)} ({sign} {target.aim:g})")
    busy = [name for name, report in reports.items() if (_others_part(report) or 0.0) > BUSY]
    if not busy:
        return said
    return [
        *said,
        f"others had more than {BUSY:.0%} of a processor during {', '.join(busy)}: measure again when less else runs",
    ]


def _found(target: Target, report: Report | None, bounds: list[str], absent: str) -> list[str]:
    found = (report.ratios | report.values).get(target.figure) if report else None
    if report is None or found is None:
        return ["–", *bounds, "", "", "", absent]
    value = found if isinstance(found, float) else found.value
    measured = str(found) if not isinstance(found, float) else f"{value:.2f}"
    further = target.stretch != target.aim and target.reaches(value, target.stretch)
    said = _said(target.reaches(value, target.aim), further)
    floors = [report.costs.get(target.figure, ""), str(report.init.get(target.figure, ""))]
    return [measured, *bounds, *floors, _others(report), said]


def _others(report: Report) -> str:
    part = _others_part(report)
    return "–" if part is None else f"{part:.0%}"


def _others_part(report: Report) -> float | None:
    """What all else on the machine had of one processor while it ran."""
    meanwhile = report.figures.get("meanwhile")
    return None if meanwhile is None else float(meanwhile["others_seconds"] / meanwhile["wall_seconds"])


def _said(aim: bool, stretch: bool) -> str:
    return "beyond stretch" if stretch else "met" if aim else "not met"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="of each benchmark (default: each its own)")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it runs")
    parser.add_argument("--base-url", help="server to measure (default: AVIATO_BASE_URL, else the embedded one)")
    parser.add_argument("--json", type=Path, help="folder for the figures and the plots (default: benchmarks/results)")
    given = parser.parse_args()
    chosen = {**{name: script.load(name) for name in needed()}, PEERS: peers}
    reports, failures = script.several(
        chosen, base_url=given.base_url, rounds=given.rounds, quick=given.quick, folder=given.json
    )
    script.console.print(grid(table(reports, failures, quick=given.quick)))
    for note in notes(reports):
        script.console.print("note:", note, highlight=False, soft_wrap=True)
    sys.exit(script.status(reports, failures))


if __name__ == "__main__":
    main()
