"""What a comparison found, in words: tables, reasons, and the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from peers.measuring import Row, Sizes

COLUMNS = ("", "isolation", "p50", "p95", "× aviato, sync (90 %)", "aviato is")
QUESTION = "ahead of every isolating peer that keeps a sandbox for several commands, on every row?"


def cells(sizes: Sizes, rows: Sequence[Row]) -> list[list[object]]:
    """The rows of one work that have a figure: aviato, peers, floors, each with its isolation."""
    return [
        [row.name, row.isolation, *(shown(row, sizes, part) for part in (50, 95)), row.ratio or "", standing(row)]
        for row in rows
        if row.seconds
    ]


def shown(row: Row, sizes: Sizes, percent: float) -> str:
    """A percentile, in the unit of its work."""
    value = row.percentile(percent)
    if row.work.name == "memory":
        return f"{value / 2**20:.2f} MiB"
    if row.work.name == "batch":
        return f"{sizes.batch / value:.1f} /s"
    if row.work.name == "output":
        return f"{sizes.output_bytes / value / 1e6:,.0f} MB/s"
    return f"{milliseconds(value)} ms"


def standing(row: Row) -> str:
    """What the last column says of a row."""
    if row.peer.kind != "peer":
        return "floor" if row.peer.kind == "floor" else ""
    return row.verdict if row.peer.isolates else "not comparable: no isolation"


def reasons(rows: Sequence[Row]) -> list[str]:
    """Who was not measured, and why."""
    said = []
    for name in dict.fromkeys(row.name for row in rows):
        whys: dict[str, list[str]] = {}
        for row in rows:
            if row.name == name and row.failure:
                whys.setdefault(row.failure, []).append(row.work.name)
        for why, works in whys.items():
            what = "" if len(works) == len({row.work.name for row in rows}) else f" ({', '.join(works)})"
            said.append(f"not measured: {name}{what}: {why}")
    return said


def rivals(rows: Sequence[Row]) -> list[Row]:
    """The rows on which aviato has to be ahead, as far as they were measured."""
    return [row for row in rows if row.peer.is_rival and row.ratio]


def answer(rows: Sequence[Row]) -> list[str]:
    """Whether aviato is ahead of everyone that it has to be ahead of, row by row, and in one line at the end."""
    found = rivals(rows)
    said = [
        f"{name}: " + ", ".join(f"{row.work.name} {row.verdict} {row.ratio}" for row in found if row.name == name)
        for name in dict.fromkeys(row.name for row in found)
    ]
    short = [
        f"{row.work.name} ({row.name} is {'ahead' if row.verdict == 'behind' else 'even'})"
        for row in found
        if row.verdict != "ahead"
    ]
    return [*said, f"no: {', '.join(short)}" if short else "yes" if found else "nobody to compare with"]


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
