"""The same work by others: `benchmarks/peers` of a checkout, a script for each (`benchmarks/compare.py` has more flags)."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aviato
from aviato.bench.run import Run, Size

if TYPE_CHECKING:
    from aviato.bench.report import Report

SIZES = {
    "rounds": Size(50, 2, "of works that take milliseconds"),
    "large_rounds": Size(7, 1, "of batch, output, snapshot, fork and memory"),
    "batch": Size(256, 4, "sandboxes in a batch"),
    "at_once": Size(8, 2, "of them at the same time"),
    "output_bytes": Size(64 << 20, 1 << 20, "that one command writes to stdout"),
    "file_bytes": Size(1 << 20, 1 << 16, "of the file that is written and read"),
    "files": Size(1_000, 10, "of 100 kB each, in a snapshot and a fork"),
    "children": Size(100, 2, "of a fork"),
    "live": Size(32, 2, "sandboxes whose memory is measured"),
}

CHECKOUT = Path(aviato.__file__).resolve().parents[1] / "benchmarks"


def here() -> bool:
    """Whether this is a checkout."""
    return (CHECKOUT / "peers" / "__init__.py").exists()


def measure(run: Run) -> Report:
    """Everyone that is there, on every work; with `--quick` nothing is installed for it."""
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    others: Any = import_module("peers")
    report: Report = others.report(others.rows(run, install=not run.quick), run.sizes)
    return report
