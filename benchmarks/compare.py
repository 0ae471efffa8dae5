"""aviato beside what one would take in its place: the same work, in the same run, in turn.

    python benchmarks/compare.py [--rounds N] [--work NAME …] [--peer NAME …] [--json FILE]
    python benchmarks/compare.py --show sandlock

Each peer runs in a virtual environment of its own, made on first
use below the user's cache, by a script of at most 40 lines that `--show` prints. `--no-install` makes none: who is not there is
listed with the reason, as everyone is who cannot be measured here. Each work has new processes and sandboxes, so that no row
depends on another one; with `--together` they share them, which says what a process that has done all that does next.
"""

from __future__ import annotations

import argparse
import signal
import sys

from peers import PEERS, SIZES, WORKS, report, rows

from aviato.bench.run import Run
from aviato.bench.script import add_sizes, console, describe_machine, publish, sizes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_sizes(parser, SIZES)
    parser.add_argument("--work", action="append", choices=WORKS, help="only this one, or these")
    parser.add_argument("--peer", action="append", choices=PEERS, metavar="NAME", help="beside aviato only this one, or these")
    parser.add_argument("--show", choices=PEERS, metavar="NAME", help="print a peer's script and leave")
    parser.add_argument(
        "--together", action="store_true", help="all works of a peer in one process and sandbox, in their order"
    )
    parser.add_argument("--no-install", action="store_true", help="measure only what is installed")
    given = vars(parser.parse_args())
    if given["show"]:
        sys.stdout.write(PEERS[given["show"]].path.read_text())
        return
    chosen = [name for name, peer in PEERS.items() if peer.kind == "aviato" or name in (given["peer"] or PEERS)]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # an end at which peers stop what they keep
    describe_machine()
    run = Run(sizes(SIZES, given["quick"], given), given["base_url"], given["quick"])
    measured = rows(
        run,
        peers=chosen,
        works=given["work"] or WORKS,
        install=not given["no_install"],
        together=given["together"],
        say=lambda text: console.print(f"… {text}", highlight=False, markup=False),
    )
    found = publish(report(measured, run.sizes), given["json"])
    sys.exit(1 if found.problems else 0)


if __name__ == "__main__":
    main()
