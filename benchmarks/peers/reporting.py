"""What a comparison found: a table for each work, the question and its answer, and who was not measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.bench.report import Bars, Report, Table, milliseconds
from peers.catalogue import PEERS, WORKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from peers.measuring import Row

COLUMNS = ("", "isolation", "p50", "p95", "× aviato, sync (90 %)", "aviato is")
QUESTION = "ahead of every isolating peer that keeps a sandbox for several commands, on every row?"


def report(rows: Sequence[Row], sizes: Mapping[str, int]) -> Report:
    """All of it. Its ratios, the headline: beside each that has to be beaten, the work on which aviato stands worst."""
    found = Report("peers")
    names = dict.fromkeys(row.name for row in rows)
    found.tables.append(Table("who", ("", "package", "mode", "isolation"), [_who(name) for name in names]))
    for work in WORKS.values():
        shown = [row for row in rows if row.work is work and row.seconds]
        if shown:
            found.tables.append(Table(work.title, COLUMNS, [cells(row, sizes) for row in shown]))
            found.plots.append(Bars(work.title, "× aviato, sync", [_bar(row) for row in shown if row.ratio]))
    worst = {row.name: row for row in sorted(rivals(rows), key=lambda row: -row.ratio.value)}
    found.ratios = {f"beside {row.name}, its best work: {row.work.name}": row.ratio for row in worst.values()}
    if missing := reasons(rows):
        found.tables.append(Table("not measured", ("", "work", "why"), missing))
    found.tables.append(answer(rows))
    found.figures = {"sizes": dict(sizes), "rows": figures(rows)}
    ours = [row for row in rows if row.peer.kind == "aviato" and row.failure and not row.expected]
    found.problems = [f"{row.name}, {row.work.name}: {row.failure}" for row in ours]
    return found


def _who(name: str) -> list[object]:
    peer = PEERS[name]
    return [name, " ".join(peer.requirements) or "–", peer.mode or "–", peer.isolation]


def _bar(row: Row) -> tuple[str, float, float, float]:
    assert row.ratio is not None
    return row.name, row.ratio.value, row.ratio.low, row.ratio.high


def cells(row: Row, sizes: Mapping[str, int]) -> list[object]:
    """A row that has a figure, with its isolation."""
    return [row.name, row.isolation, *(figure(row, sizes, part) for part in (50, 95)), row.ratio or "", standing(row)]


def figure(row: Row, sizes: Mapping[str, int], percent: float) -> str:
    """A percentile, in the unit of its work."""
    value = row.percentile(percent)
    if row.work.name == "memory":
        return f"{value / 2**20:.2f} MiB"
    if row.work.name == "batch":
        return f"{sizes['batch'] / value:.1f} /s"
    if row.work.name == "output":
        return f"{sizes['output_bytes'] / value / 1e6:,.0f} MB/s"
    return f"{milliseconds(value)} ms"


def standing(row: Row) -> str:
    """What the last column says of a row."""
    if row.peer.kind != "peer":
        return "floor" if row.peer.kind == "floor" else ""
    return row.verdict if row.peer.isolates else "not comparable: no isolation"


def reasons(rows: Sequence[Row]) -> list[Sequence[object]]:
    """Who was not measured, on what, and why."""
    said: list[Sequence[object]] = []
    asked = {row.work.name for row in rows}
    for name in dict.fromkeys(row.name for row in rows):
        whys: dict[str, list[str]] = {}
        for row in rows:
            if row.name == name and row.failure:
                whys.setdefault(row.failure, []).append(row.work.name)
        said += [[name, "all" if len(works) == len(asked) else ", ".join(works), why] for why, works in whys.items()]
    return said


def rivals(rows: Sequence[Row]) -> list[Row]:
    """The rows on which aviato has to be ahead, as far as they were measured."""
    return [row for row in rows if row.peer.is_rival and row.ratio]


def answer(rows: Sequence[Row]) -> Table:
    """Whether aviato is ahead of everyone that it has to be ahead of, on every row."""
    found = {(row.work.name, row.name): row for row in rivals(rows)}
    names = list(dict.fromkeys(name for _, name in found))
    table = Table(QUESTION, ("aviato is", *names, "ahead of all"))
    for work in dict.fromkeys(row.work for row in rows):
        here = [found.get((work.name, name)) for name in names]
        ahead = all(row.verdict == "ahead" for row in here if row) if any(here) else None
        shown = [f"{row.verdict}: {row.ratio}" if row else "–" for row in here]
        table.rows.append([work.title, *shown, "–" if ahead is None else "yes" if ahead else "no"])
    said = [[row.verdict for (_, name), row in found.items() if name == each] for each in names]
    all_of = ["yes" if set(verdicts) == {"ahead"} else "no" for verdicts in said]
    table.rows.append(["on every row", *all_of, "nobody to compare with" if not all_of else "no" if "no" in all_of else "yes"])
    return table


def figures(rows: Sequence[Row]) -> list[dict[str, object]]:
    """For JSON."""
    return [
        {
            "work": row.work.name,
            "unit": row.work.unit,
            "name": row.name,
            "kind": row.peer.kind,
            "isolation": row.isolation,
            "mode": row.peer.mode,
            "requirements": row.peer.requirements,
            "keeps": row.peer.keeps,
            "measured": row.seconds,
            "ratio": row.ratio and vars(row.ratio),
            "verdict": row.verdict,
            "failure": row.failure,
        }
        for row in rows
    ]
