"""The same work by others: `benchmarks/peers` of a checkout, where each has a script (`compare.py` there has more flags)."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aviato
from aviato.bench.report import Bars, Report, Table
from aviato.bench.run import Run, Size

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZES = {
    "rounds": Size(50, 2, "of works that take milliseconds"),
    "large_rounds": Size(7, 1, "of the others"),
    "batch": Size(256, 8, "items"),
    "output_bytes": Size(64 << 20, 1 << 20, "of a command's output"),
    "live": Size(32, 4, "sandboxes whose memory is measured"),
}

CHECKOUT = Path(aviato.__file__).resolve().parents[1] / "benchmarks"


def here() -> bool:
    """Whether this is a checkout."""
    return (CHECKOUT / "peers" / "__init__.py").exists()


def measure(run: Run) -> Report:
    """Everyone that is there; with `--quick` nothing is installed for it."""
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    others: Any = import_module("peers")
    sizes = others.Sizes(**{name: run[name] for name in SIZES if name != "rounds"})
    rows = others.measure(run["rounds"], sizes=sizes, base_url=run.base_url and run.url(), install=not run.quick)
    report, compare = Report("peers"), import_module("compare")
    for work in others.WORKS.values():
        _table(
            report, work, [row for row in rows if row.work is work], lambda value, work=work: compare.cell(work, sizes, value)
        )
    report.tables.append(_reasons(rows))
    _standings(report, [row for row in rows if row.peer.is_rival and row.ratio])
    report.figures["rows"] = compare.figures(rows)
    return report


def _table(report: Report, work: Any, rows: list[Any], cell: Any) -> None:
    table = Table(work.title, ("", "isolation", "p50", "p95", "× aviato, sync (90 %)"))
    bars = Bars(work.title, "× aviato, sync")
    for row in rows:
        if row.seconds:
            table.rows.append([row.name, row.isolation, *(cell(row.percentile(part)) for part in (50, 95)), row.ratio or ""])
        if row.ratio:
            bars.bars.append((row.name, row.ratio.value, row.ratio.low, row.ratio.high))
    report.tables.append(table)
    report.plots += [bars] if bars.bars else []


def _reasons(rows: Iterable[Any]) -> Table:
    """Who was not measured on what, and why."""
    works: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.failure:
            works.setdefault((row.name, row.failure), []).append(row.work.name)
    return Table("not measured", ("", "work", "why"), [[name, ", ".join(of), why] for (name, why), of in works.items()])


def _standings(report: Report, rows: Iterable[Any]) -> None:
    """The headline: beside each that has to be beaten, the work on which aviato stands worst."""
    worst: dict[str, Any] = {}
    for row in rows:
        if row.name not in worst or row.ratio.value < worst[row.name].ratio.value:
            worst[row.name] = row
    for name, row in worst.items():
        report.ratios[f"beside {name}, its best work: {row.work.name}"] = row.ratio
