"""What a benchmark found: tables, figures for JSON, a plot."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table as Grid

from aviato.bench.machine import machine
from aviato.bench.series import Ratio, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from aviato.bench.series import Series

TIMES = ("", "p50 ms", "p95 ms", "p99 ms", "succeeded", "× floor (90 %)")
"""The columns of `Report.times`."""

MOST_SHOWN = 20
"""Problems; JSON has them all."""


@dataclass
class Table:
    """Rows under a title: the first column to the left, the rest to the right."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[object]] = field(default_factory=list)


@dataclass
class Bars:
    """A plot of values with their intervals, one bar each."""

    title: str
    unit: str
    bars: list[tuple[str, float, float, float]] = field(default_factory=list)
    """Label, value, and the ends of its interval."""


@dataclass
class Lines:
    """A plot of lines."""

    title: str
    across: str
    up: str
    lines: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)


@dataclass
class Report:
    """What one benchmark found.

    Attributes:
        ratios: the headline, by name.
        values: other figures that targets are about, by name.
        costs: what the floor of a ratio or value took in this run, by the same name.
        init: what stands in a ratio's place if aviato-init alone makes the sandboxes, by the same name; see `init_floor.py`.
        figures: all else that goes to JSON, single measurements included.
        floors: their argvs by name, printed with the tables.
        notes: what a reader has to know, such as what is not there to measure.
        problems: what failed; a benchmark with any ends with status 1.
    """

    name: str
    tables: list[Table] = field(default_factory=list)
    ratios: dict[str, Ratio] = field(default_factory=dict)
    values: dict[str, float | Ratio] = field(default_factory=dict)
    costs: dict[str, str] = field(default_factory=dict)
    init: dict[str, Ratio] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    floors: dict[str, list[str]] = field(default_factory=dict)
    plots: list[Bars | Lines] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def times(self, title: str, rows: Sequence[tuple[Series, Series | None]]) -> Table:
        """Add a table of times, each beside its floor, and with it their figures, their ratios and a plot of these."""
        table, bars = Table(title, TIMES), Bars(title, "× floor")
        for series, floor in rows:
            quotient = ratio(series, floor) if floor is not None and floor.seconds and series.seconds else None
            self.problems += [f"{series.name}: {error}" for error in series.errors]
            table.rows.append([*cells(series), quotient or ""])
            self.figures[series.name] = {"seconds": series.seconds, "failed": len(series.errors)}
            if floor is not None and quotient is not None:
                self.ratios[series.name] = quotient
                self.costs[series.name] = f"{milliseconds(floor.median)} ms"
                self.figures[series.name]["ratio"] = vars(quotient)
                bars.bars.append((series.name, quotient.value, quotient.low, quotient.high))
        self.tables.append(table)
        if bars.bars:
            self.plots.append(bars)
        return table

    def show(self, console: Console) -> None:
        """Print floors and tables."""
        for name, argv in self.floors.items():
            console.print(f"floor: {name}: {shlex.join(argv)}", highlight=False, soft_wrap=True)
        for table in self.tables:
            console.print(grid(table))
        for note in self.notes:
            console.print("note:", note, highlight=False, soft_wrap=True)
        for problem in self.problems[:MOST_SHOWN]:
            console.print("failed:", problem, highlight=False, soft_wrap=True)

    def write(self, path: Path) -> None:
        """As JSON, with the machine."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "benchmark": self.name,
            "machine": machine(),
            "ratios": {name: vars(quotient) for name, quotient in self.ratios.items()},
            "values": {name: value if isinstance(value, float) else vars(value) for name, value in self.values.items()},
            "floor_costs": self.costs,
            "init_floors": {name: vars(quotient) for name, quotient in self.init.items()},
            "floors": self.floors,
            "notes": self.notes,
            "problems": self.problems,
            "figures": self.figures,
        }
        path.write_text(json.dumps(content, indent=2) + "\n")


def cells(series: Series) -> list[str]:
    """A series' name, percentiles and successes, for a table."""
    if not series.seconds:
        return [series.name, "–", "–", "–", percent(0.0)]
    times = [milliseconds(series.percentile(part)) for part in (50, 95, 99)]
    return [series.name, *times, percent(series.success)]


def grid(table: Table) -> Grid:
    """A table to print."""
    shown = Grid(title=table.title, title_justify="left")
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in table.rows:
        shown.add_row(*(str(cell) for cell in row))
    return shown


def milliseconds(seconds: float) -> str:
    """For a table."""
    return f"{seconds * 1_000:.2f}"


def percent(part: float) -> str:
    """For a table; all is all, and nothing less is rounded to it."""
    return "100 %" if part == 1.0 else f"{min(part * 100, 99.9):.1f} %"
