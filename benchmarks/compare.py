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

from common import console, describe_machine, milliseconds, table
from common import write_json as save
from peers import PEERS, WORKS, Row, Sizes, Work, measure


def cell(work: Work, sizes: Sizes, value: float) -> str:
    """A median, in the unit of its work."""
    if work.name == "memory":
        return f"{value / 2**20:.2f} MiB"
    if work.name == "batch":
        return f"{sizes.batch / value:.1f} /s"
    if work.name == "output":
        return f"{sizes.output_bytes / value / 1e6:,.0f} MB/s"
    return f"{milliseconds(value)} ms"


def print_rows(work: Work, sizes: Sizes, rows: list[Row]) -> None:
    """The table of one work: aviato, peers, floors, each with its isolation."""
    cells = []
    for row in rows:
        if row.seconds:  # who has none has a reason below the tables
            figures = [cell(work, sizes, row.percentile(part)) for part in (50, 95)]
            cells.append([row.name, row.isolation, *figures, row.ratio or "", standing(row)])
    table(work.title, ["", "isolation", "p50", "p95", "× aviato, sync (90 %)", "aviato is"], cells)


def standing(row: Row) -> str:
    """What the last column says of a row."""
    if row.peer.kind != "peer":
        return "floor" if row.peer.kind == "floor" else ""
    return row.verdict if row.peer.isolates else "not comparable: no isolation"


def print_reasons(rows: list[Row]) -> None:
    """Who was not measured, and why."""
    for name in dict.fromkeys(row.name for row in rows):
        whys: dict[str, list[str]] = {}
        for row in rows:
            if row.name == name and row.failure:
                whys.setdefault(row.failure, []).append(row.work.name)
        for why, works in whys.items():
            what = "" if len(works) == len({row.work.name for row in rows}) else f" ({', '.join(works)})"
            console.print(f"not measured: {name}{what}: {why}", highlight=False, markup=False)


def print_answer(rows: list[Row]) -> None:
    """Whether aviato is ahead of everyone that it has to be ahead of, row by row."""
    console.print("\nahead of every isolating peer that keeps a sandbox for several commands, on every row?", highlight=False)
    rivals = [row for row in rows if row.peer.is_rival and row.ratio]
    for name in dict.fromkeys(row.name for row in rivals):
        said = ", ".join(f"{row.work.name} {row.verdict} {row.ratio}" for row in rivals if row.name == name)
        console.print(f"  {name}: {said}", highlight=False)
    behind = [f"{row.work.name} ({row.name})" for row in rivals if row.verdict != "ahead"]
    answer = f"no: {', '.join(behind)}" if behind else "yes" if rivals else "nobody to compare with"
    console.print(f"  {answer}", highlight=False)


def figures(rows: list[Row]) -> list[dict[str, object]]:
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
        if found := [row for row in rows if row.work is work]:
            print_rows(work, sizes, found)
    print_reasons(rows)
    print_answer(rows)
    content = {"sizes": asdict(sizes), "rounds": arguments.rounds, "rows": figures(rows)}
    console.print("written to", str(save("compare", content, arguments.json)))


if __name__ == "__main__":
    main()
