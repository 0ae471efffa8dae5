"""What it costs to begin with something prepared: snapshots, forks, resets and pools, beside creates and floors.

    python benchmarks/prepared.py [--rounds N] [--children N] [--large] [--json PATH]

It has a server of its own, so that the disk that forks take can be seen; where AVIATO_BASE_URL names one, that is measured,
without the disk. `--large` adds 1 GiB in 10,000 files: minutes, and 5 GB of disk. What peers take for the same is in
`python benchmarks/compare.py --work image --work snapshot --work fork`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from common import Floor, Series, alternate, bwrap_argv, describe_machine, milliseconds, ratio, table, timed
from common import write_json as save

import aviato
from aviato.bench.floor import NO_BWRAP
from aviato.bench.latency import end_servers, run_true

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
Figures = dict[str, "list[float] | float"]
READY = 20
"""Sandboxes in the pool."""
SETTLED_SECONDS, MOST_SETTLING_SECONDS = 5.0, 60.0
"""Longer than a server keeps the places of ended sandboxes for others."""
RESOURCES = {"disk": "4Gi"}
"""Of what is forked, so of its children too."""
REST_SECONDS = 0.005
"""Before each beginning: a server at work has still to do what the operation before has left to be done."""
FORKED = 10
"""Rounds of small things for one of forks and of snapshots that take long."""


@dataclass(frozen=True)
class Tree:
    """What a sandbox has written: random bytes, since those of zeros need no place on the disk."""

    name: str
    files: int
    bytes_each: int

    def written(self, session: aviato.Session) -> aviato.Sandbox:
        """A sandbox with it, in its directory `tree`."""
        sandbox = session.sandbox(resources=RESOURCES)
        line = f"mkdir tree; for n in $(seq {self.files}); do head -c {self.bytes_each} /dev/urandom >tree/$n; done"
        sandbox.exec(["sh", "-c", line], check=True).result()
        return sandbox

    def copied(self, folder: Path) -> Path:
        """The same on this machine."""
        target = folder / f"tree-{self.files}"
        target.mkdir(exist_ok=True)
        for number in range(self.files):
            (target / str(number)).write_bytes(os.urandom(self.bytes_each))
        return target


SMALL = Tree("a file of 1 kB", 1, 1_000)
MEDIUM = Tree("100 MiB in 1,000 files", 1_000, 104_858)
LARGE = Tree("1 GiB in 10,000 files", 10_000, 107_374)


def undone(action: Callable[[], T], undo: Callable[[T], object]) -> Callable[[], float]:
    """A case that times one call and then takes back what that made."""

    def case() -> float:
        begin = time.perf_counter()
        made = action()
        elapsed = time.perf_counter() - begin
        undo(made)
        return elapsed

    return case


def running(sandboxes: Sequence[aviato.Sandbox]) -> Sequence[aviato.Sandbox]:
    """These, once all run."""
    for sandbox in sandboxes:
        sandbox.wait()
    return sandboxes


def stopped(sandboxes: Sequence[aviato.Sandbox]) -> None:
    """End these."""
    aviato.results([sandbox.stop() for sandbox in sandboxes])


def wake(session: aviato.Session) -> None:
    """Take a snapshot and forks of something small.

    Some machines take memory from programs that were idle, as all are while a gibibyte is written, and to have it back
    would be measured in place of what comes next.
    """
    with SMALL.written(session) as other:
        aviato.Sandbox.delete_snapshot(other.snapshot().result().snapshot_id).result()
        stopped(running(other.fork(2)))


def measure_snapshots(session: aviato.Session, tree: Tree, rounds: int, folder: Path) -> Figures:
    """Snapshots of sandboxes that have just written it, beside a copy of the same files."""
    taken, floor = Series(f"snapshot of {tree.name}"), Series("  floor: cp -a")
    source, target = tree.copied(folder), folder / "copy"
    with Floor(["/bin/cp", "-aT", str(source), str(target)]) as copy:

        def copying() -> float:
            shutil.rmtree(target, ignore_errors=True)
            return copy()

        def snapshot() -> float:
            with tree.written(session) as parent:
                wake(session)
                measured = undone(
                    lambda: parent.snapshot().result(), lambda one: aviato.Sandbox.delete_snapshot(one.snapshot_id).result()
                )
                return measured()

        alternate(rounds, (taken, snapshot), (floor, copying), warmup=1)
    rows = [[taken.name, milliseconds(taken.median), ratio(taken, floor)], [floor.name, milliseconds(floor.median), ""]]
    table("snapshot", ("", "ms", "× cp -a (90 %)"), rows)
    return {taken.name: taken.seconds, f"cp -a of {tree.name}": floor.seconds}


def mounts(source: Path, children: int, folder: Path) -> list[str] | None:
    """So many bare overlays over a tree, in a mount namespace; None where these cannot be mounted."""
    places = f"cd {shlex.quote(str(folder))} && for n in $(seq {children}); do mkdir -p m/$n/u m/$n/w m/$n/m && "
    mount = f"mount -t overlay o -o userxattr,lowerdir={source.name},upperdir=m/$n/u,workdir=m/$n/w m/$n/m || exit 1; done"
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", places + mount]
    return argv if subprocess.run(argv, capture_output=True, check=False).returncode == 0 else None


def measure_forks(session: aviato.Session, tree: Tree, rounds: int, children: int, folder: Path) -> Figures:
    """Forks until all children run, of sandboxes that have just written it and once more, beside creates and bare overlays.

    Creates come just after as much was written, too: meanwhile nobody asks for a sandbox, and what a server has ready goes.
    """
    forks, again = Series(f"fork({children}) of {tree.name}"), Series("  the same once more")
    creates = Series(f"{children} creates")
    floor = Series(f"  floor: {children} bare overlays")
    with ExitStack() as stack:
        parents: list[aviato.Sandbox] = []

        def first() -> float:
            stopped(parents)
            sweep(session)  # While the next tree is written, what the last one left is taken away.
            parents[:] = [tree.written(session)]
            wake(session)
            return once_more()

        def once_more() -> float:
            return undone(lambda: running(parents[0].fork(children)), stopped)()

        def created() -> float:
            with tree.written(session):
                wake(session)
                return undone(lambda: running([session.sandbox(resources=RESOURCES) for _ in range(children)]), stopped)()

        stack.callback(stopped, parents)
        cases = [
            (forks, first),
            (again, once_more),
            (creates, created),
        ]
        argv = mounts(tree.copied(folder), children, folder)
        if argv is None:
            print("bare overlays were not measured: an unprivileged mount is refused here")
        else:
            cases.append((floor, stack.enter_context(Floor(argv))))
        alternate(rounds, *cases, warmup=1)
    rows = [[one.name, milliseconds(one.median), ratio(one, creates) if one in (forks, again) else ""] for one, _ in cases]
    table("fork", ("", "ms", "× creates (90 %)"), rows)
    names = {again.name: f"{forks.name}, once more", creates.name: f"{creates.name} beside {forks.name}"}
    return {names.get(one.name, one.name): one.seconds for one, _ in cases}


def used_bytes(directory: Path) -> int:
    """What is allocated below a directory; a file with several names counts once."""
    said = subprocess.run(["du", "-sx", "--block-size=1", directory], capture_output=True, text=True, check=False)
    return int(said.stdout.split()[0])  # Its status is not 0 where something has gone meanwhile.


def settled_bytes(state: Path) -> int:
    """The same, once nothing is on its way out any more: what went later would be taken from what a fork adds."""
    os.sync()  # What was written and has no place on the disk yet is counted as it likes.
    seen, since = used_bytes(state), time.monotonic()
    deadline = since + MOST_SETTLING_SECONDS
    while time.monotonic() < min(since + SETTLED_SECONDS, deadline):
        time.sleep(0.2)
        now = used_bytes(state)
        if now != seen:
            seen, since = now, time.monotonic()
    return seen


def sweep(session: aviato.Session) -> None:
    """Have a server take away what earlier forks began with, which else goes some time after their last child."""
    with session.sandbox() as sandbox:
        aviato.Sandbox.delete_snapshot(sandbox.snapshot().result().snapshot_id).result()


def measure_disk(session: aviato.Session, parent: aviato.Sandbox, tree: Tree, children: int, state: Path) -> Figures:
    """What a fork adds to the disk, and one more of the same files, which are there by then."""
    sweep(session)
    size, rows = tree.files * tree.bytes_each, []
    live: list[aviato.Sandbox] = []
    figures: Figures = {}
    for name in (f"fork({children})", "the same once more"):
        before = settled_bytes(state)
        live += running(parent.fork(children))
        added = settled_bytes(state) - before
        rows.append([name, f"{added / 2**20:.2f}", f"{added / size:.3f}"])
        figures[f"disk bytes of {name}, {tree.name}"] = float(added)
    stopped(live)
    table(f"disk: {tree.name}", ("", "MiB", "× the tree"), rows)
    return figures


def measure_beginnings(session: aviato.Session, rounds: int) -> Figures:
    """A reset and a claim, beside a create and a command."""
    bwrap = bwrap_argv()
    create, reset, claim = Series("create"), Series("reset"), Series("claim of one that is ready")
    created, begun, claimed = Series("create + true"), Series("reset + true"), Series("claim + true")
    execute, floor = Series("exec of true"), Series("  floor: bwrap --unshare-all true")
    with ExitStack() as stack:
        pool = stack.enter_context(session.pool(READY))
        box = stack.enter_context(session.sandbox())

        def begun_by(take: Callable[[], aviato.Sandbox], operation: Callable[[aviato.Sandbox], object]) -> Callable[[], float]:
            def made() -> aviato.Sandbox:
                sandbox = take()
                operation(sandbox)
                return sandbox

            return undone(made, lambda sandbox: sandbox.stop().result())

        def rested(case: Callable[[], float]) -> Callable[[], float]:
            def after_rest() -> float:
                time.sleep(REST_SECONDS)
                while not pool.ready().result():
                    time.sleep(REST_SECONDS)
                return case()

            return after_rest

        def anew() -> None:
            box.reset().result()
            run_true(box)

        cases = [
            (create, begun_by(session.sandbox, lambda sandbox: sandbox.wait())),
            (reset, timed(lambda: box.reset().result())),
            (claim, begun_by(pool.sandbox, lambda sandbox: sandbox.wait())),
            (created, begun_by(session.sandbox, run_true)),
            (begun, timed(anew)),
            (claimed, begun_by(pool.sandbox, run_true)),
            (execute, timed(lambda: run_true(box))),
        ]
        if bwrap is None:
            print(NO_BWRAP)
        else:
            cases.append((floor, stack.enter_context(Floor(bwrap))))
        alternate(rounds, *((series, rested(case)) for series, case in cases))
        missed = session.get_metrics().get("aviato/pool_misses", 0)
    pairs = {reset.name: create, claim.name: execute, begun.name: created, claimed.name: created}
    rows = []
    for one, _ in cases:
        other = pairs.get(one.name)
        rows.append([one.name, milliseconds(one.median), ratio(one, other) if other else "", other.name if other else ""])
    table("reset and claim", ("", "ms", "× (90 %)", "of what"), rows)
    if missed:
        print(f"{missed} claims found none ready, and are creates")
    return {one.name: one.seconds for one, _ in cases}


def measure(arguments: argparse.Namespace, folder: Path, state: Path | None) -> Figures:
    """All of it."""
    figures: Figures = {}
    with aviato.Session() as session:
        for tree in (SMALL, MEDIUM, *((LARGE,) if arguments.large else ())):
            rounds = arguments.rounds if tree is SMALL else max(1, arguments.rounds // FORKED)
            if state is not None and tree is not SMALL:
                with tree.written(session) as parent:
                    figures |= measure_disk(session, parent, tree, arguments.children, state)
            figures |= measure_snapshots(session, tree, rounds, folder)
            figures |= measure_forks(session, tree, max(1, arguments.rounds // FORKED), arguments.children, folder)
        return figures | measure_beginnings(session, arguments.rounds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="of what takes milliseconds; a tenth of what takes longer")
    parser.add_argument("--children", type=int, default=100, help="of a fork, 2 and more")
    parser.add_argument("--large", action="store_true", help="also 1 GiB in 10,000 files")
    parser.add_argument("--json", default=None, help="where to write the figures (default: benchmarks/results/prepared.json)")
    arguments = parser.parse_args()
    describe_machine()
    with tempfile.TemporaryDirectory(prefix="aviato-prepared-", dir="/var/tmp", ignore_cleanup_errors=True) as name:
        folder, state = Path(name, "files"), Path(name, "state")
        folder.mkdir()
        state.mkdir()
        if "AVIATO_BASE_URL" in os.environ:
            print("the disk that forks add was not measured: AVIATO_BASE_URL names a server whose files are its own")
            figures = measure(arguments, folder, None)
        else:
            os.environ |= {"AVIATO_STATE_DIR": str(state), "AVIATO_IDLE_EXIT": "1"}
            try:
                figures = measure(arguments, folder, state)
            finally:
                end_servers(state)
    sizes = {"rounds": arguments.rounds, "children": arguments.children, "large": arguments.large}
    save("prepared", {**sizes, "figures": figures}, arguments.json)


if __name__ == "__main__":
    main()
