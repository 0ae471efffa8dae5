"""What a user would take in aviato's place, on the same work in the same run.

Every peer has an environment of its own and is driven by a script below `scripts/` of at most 40 lines, which
`benchmarks/compare.py --show NAME` prints. They do each work in turn by rounds, so that noise hits all alike; a figure is a
ratio to aviato's in the same run. Each work has new processes and depends on no other one. Who cannot be measured here is
listed with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peers.catalogue import PEERS, WORKS, Peer, Work
from peers.measuring import SIZES, Row, rows
from peers.reporting import report

if TYPE_CHECKING:
    from aviato.bench.report import Report
    from aviato.bench.run import Run

__all__ = ["PEERS", "SIZES", "WORKS", "Peer", "Row", "Work", "measure", "report", "rows"]


def measure(run: Run) -> Report:
    """Everyone that is there, on every work; with `--quick` nothing is installed for it."""
    return report(rows(run, install=not run.quick), run.sizes)
