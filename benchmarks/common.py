"""What the benchmarks that are no part of `aviato bench` share: its floors and statistics, tables, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aviato.bench.floor import TRUE_ARGV, Floor, bwrap_argv
from aviato.bench.machine import machine
from aviato.bench.report import Table, grid, milliseconds
from aviato.bench.script import console, describe_machine, results
from aviato.bench.series import Ratio, Series, alternate, ratio, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "TRUE_ARGV",
    "Floor",
    "Ratio",
    "Series",
    "alternate",
    "bwrap_argv",
    "console",
    "describe_machine",
    "milliseconds",
    "ratio",
    "table",
    "timed",
    "write_json",
]


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: first column to the left, the rest to the right."""
    console.print(grid(Table(title, columns, list(rows))))


def write_json(name: str, content: dict[str, Any], path: str | None = None) -> Path:
    """Write a result beside the benchmarks, or to `path`; the machine is added."""
    target = Path(path) if path else results() / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"benchmark": name, "machine": machine(), **content}, indent=2) + "\n")
    return target
