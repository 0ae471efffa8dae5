"""What a user would take in aviato's place, on the same work in the same run.

Every peer has an environment of its own and is driven by a script below `scripts/` of at most 40 lines, which
`benchmarks/compare.py --show NAME` prints. They do each work in turn by rounds, so that noise hits all alike; a figure is a
ratio to aviato's in the same run. Who cannot be measured here is listed with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.bench.run import Size
from peers.catalogue import PEERS, WORKS, Peer, Work
from peers.measuring import Row, rows
from peers.reporting import report

if TYPE_CHECKING:
    from aviato.bench.report import Report
    from aviato.bench.run import Run

__all__ = ["PEERS", "SIZES", "WORKS", "Peer", "Row", "Work", "measure", "report", "rows"]

SIZES = {
    "rounds": Size(50, 2, "of works that take milliseconds"),
    "large_rounds": Size(7, 1, "of batch, output and memory"),
    "batch": Size(256, 4, "sandboxes in a batch"),
    "at_once": Size(8, 2, "of them at the same time"),
    "output_bytes": Size(64 << 20, 1 << 20, "that one command writes to stdout"),
    "file_bytes": Size(1 << 20, 1 << 16, "of the file that is written and read"),
    "live": Size(32, 2, "sandboxes whose memory is measured"),
}


def measure(run: Run) -> Report:
    """Everyone on everything. With `--quick` no environment is made: who is not installed is not measured."""
    return report(rows(run, install=not run.quick), run.sizes)
