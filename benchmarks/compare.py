"""aviato beside what one would take in its place: the same work, in the same run, in turn.

    python benchmarks/compare.py [--rounds N] [--work NAME …] [--peer NAME …] [--json FILE]
    python benchmarks/compare.py --show sandlock

Each peer runs in a virtual environment of its own, made on first use below the user's cache, by a script of at most 40 lines
that `--show` prints. `--no-install` makes none: who is not there is listed with the reason, as everyone is who cannot be
measured here.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from common import console, describe_machine, table
from common import write_json as save
from peers import PEERS, WORKS, Sizes, measure, reporting


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="of works that take milliseconds")
    parser.add_argument("--work", action="append", choices=WORKS, help="only this one; may be repeated")
    parser.add_argument(
        "--peer", action="append", choices=PEERS, metavar="NAME", help="beside aviato only this one; may be repeated"
    )
    parser.add_argument("--show", choices=PEERS, metavar="NAME", help="print a peer's script and leave")
    parser.add_argument("--no-install", action="store_true", help="measure only what is installed")
    parser.add_argument("--json", default=None, help="where to write the figures (default: benchmarks/results/compare.json)")
    for name, value in asdict(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    arguments = parser.parse_args()
    if arguments.show:
        sys.stdout.write(PEERS[arguments.show].path.read_text())
        return
    sizes = Sizes(**{name: getattr(arguments, name) for name in asdict(Sizes())})
    ours = [name for name, peer in PEERS.items() if peer.kind == "aviato"]
    chosen = [name for name in PEERS if name in ours or not arguments.peer or name in arguments.peer]
    describe_machine()
    for name in chosen:
        peer = PEERS[name]
        console.print(f"{name}: {' '.join(peer.requirements) or 'no package'}; {peer.mode or 'as it is'}", highlight=False)
    rows = measure(
        arguments.rounds,
        peers=chosen,
        works=arguments.work or list(WORKS),
        sizes=sizes,
        install=not arguments.no_install,
        say=lambda text: console.print(f"… {text}", highlight=False, markup=False),
    )
    for work in WORKS.values():
        if cells := reporting.cells(sizes, [row for row in rows if row.work is work]):
            table(work.title, reporting.COLUMNS, cells)
    for line in [*reporting.reasons(rows), "", reporting.QUESTION, *reporting.answer(rows)]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    content = {"sizes": asdict(sizes), "rounds": arguments.rounds, "rows": reporting.figures(rows)}
    console.print("written to", str(save("compare", content, arguments.json)))


if __name__ == "__main__":
    main()
