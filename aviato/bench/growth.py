"""Sandboxes that become more and more and all stay: what each further one costs, and what all of them hold."""

from __future__ import annotations

import random
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aviato.bench.floor import STAYING_ARGV, TRUE_ARGV, Floor, Staying, bwrap_argv
from aviato.bench.init_floor import STAY, init_floor
from aviato.bench.processes import descendants
from aviato.bench.series import Series, timed
from aviato.bench.use import Use, used

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import aviato
    from aviato.bench.floor import Asked
    from aviato.bench.init_floor import Floors
    from aviato.bench.report import Report
    from aviato.bench.run import Run

EVERY = 5
"""Creates for one bwrap between them."""
EXECS = 20
"""Commands at each size."""
BWRAP, ALONE = "bwrap", "aviato-init alone"


@dataclass
class Stage:
    """From one size to the next.

    Attributes:
        live: sandboxes at its end.
        creates: each with its first command.
        floors: bwrap, in between.
        alone: the init floor, in between; each stays, too.
        executes: a command in one of all that live, at the end.
        use: of client and server, for the creates alone.
        server_bytes: proportional memory of the server and all below it at the end; None where it cannot be read.
        available_bytes: of the machine's memory at the end.
    """

    live: int
    creates: Series
    floors: Series
    alone: Series
    executes: Series
    use: Use = field(default_factory=Use)
    server_bytes: int | None = None
    available_bytes: int = 0


@dataclass
class Growth:
    """All stages, and their end."""

    stages: list[Stage] = field(default_factory=list)
    stops: Series = field(default_factory=lambda: Series("stop"))
    floor_argv: list[str] | None = None
    empty_bytes: int | None = None
    """The server's memory with one sandbox that had come and gone."""
    empty_available_bytes: int = 0

    def add(self, other: Growth) -> None:
        """Another round: all its times, and what was held in it."""
        self.stops.seconds += other.stops.seconds
        self.stops.errors += other.stops.errors
        self.empty_bytes, self.empty_available_bytes = other.empty_bytes, other.empty_available_bytes
        if not self.stages:
            self.stages = other.stages
            return
        for stage, more in zip(self.stages, other.stages, strict=True):
            for mine, new in (
                (stage.creates, more.creates),
                (stage.floors, more.floors),
                (stage.alone, more.alone),
                (stage.executes, more.executes),
            ):
                mine.seconds += new.seconds
                mine.errors += new.errors
            stage.use.add(more.use)
            stage.server_bytes, stage.available_bytes = more.server_bytes, more.available_bytes


def grown(run: Run, report: Report, count: int) -> Growth:
    """So many sandboxes, alive all at once, and then stopped one after the other; as often as there are rounds."""
    growth = Growth(floor_argv=bwrap_argv())
    for _ in range(run["rounds"]):
        with init_floor(run, report, count // EVERY + len(lives(count, run["step"]))) as made:
            growth.add(_grown(run, count, run["step"], growth.floor_argv, made))
    return growth


def _grown(run: Run, count: int, step: int, floor_argv: list[str] | None, made: Floors | None) -> Growth:
    growth, pid = Growth(), run.server_pid()
    with ExitStack() as stack:
        session = stack.enter_context(run.session())
        with session.sandbox() as sandbox:
            sandbox.exec(TRUE_ARGV).result()
        growth.empty_bytes, growth.empty_available_bytes = tree_bytes(pid), available_bytes()
        floor = None if floor_argv is None else stack.enter_context(Floor(floor_argv))
        staying = None if made is None else stack.enter_context(made.floor(STAY))
        live: list[aviato.Sandbox] = []
        while len(live) < count:
            growth.stages.append(_stage(run, session, live, min(step, count - len(live)), floor, staying))
            growth.stages[-1].server_bytes, growth.stages[-1].available_bytes = tree_bytes(pid), available_bytes()
        for sandbox in live:
            growth.stops.take(timed(lambda sandbox=sandbox: sandbox.stop(0).result()))  # type: ignore[misc]
    return growth


def _stage(
    run: Run, session: aviato.Session, live: list[aviato.Sandbox], more: int, *floors: Callable[[], float] | None
) -> Stage:
    name = f"up to {len(live) + more:,}"
    names = (name, f"  floor: bwrap, {name}", f"  floor: aviato-init alone, {name}", f"exec of true at {len(live) + more:,}")
    creates, bwraps, alone, executes = map(Series, names)
    stage = Stage(len(live) + more, creates, bwraps, alone, executes)

    def create() -> None:
        sandbox = session.sandbox()
        live.append(sandbox)
        sandbox.exec(TRUE_ARGV).result()

    with used(run) as use:
        for index in range(more):
            stage.creates.take(timed(create))
            if index % EVERY == 0:
                begin = time.perf_counter()
                for series, floor in zip((stage.floors, stage.alone), floors, strict=True):
                    if floor is not None:
                        series.take(floor)
                use.wall_seconds -= time.perf_counter() - begin
    stage.use = use
    for index in range(EXECS):
        sandbox = live[index * len(live) // EXECS]
        stage.executes.take(timed(lambda sandbox=sandbox: sandbox.exec(TRUE_ARGV).result()))  # type: ignore[misc]
    return stage


def floors_grown(run: Run, report: Report, count: int) -> dict[str, list[Series]]:
    """As many in bwrap and of the init floor, alive all at once, each kind by itself; what each took, by steps."""
    argv, found = bwrap_argv(STAYING_ARGV), dict[str, list[Series]]()
    for _ in range(run["rounds"]):
        with init_floor(run, report, count) as made:
            floors: dict[str, Asked] = {} if argv is None else {BWRAP: Staying(argv)}
            if made is not None:
                floors[ALONE] = made.floor(STAY)
            for name, floor in random.sample(list(floors.items()), len(floors)):
                report.floors[f"{name}, staying"] = argv if name == BWRAP and argv is not None else floor.command
                steps = found.setdefault(name, [Series(f"{name}, up to {live:,}") for live in lives(count, run["step"])])
                with floor:
                    for index in range(count):
                        steps[index // run["step"]].take(floor)
    return found


def lives(count: int, step: int) -> list[int]:
    """How many live at the end of each step."""
    return [*range(step, count, step), count]


def rate(creates: Series) -> float:
    """Creates a second."""
    return len(creates.seconds) / max(sum(creates.seconds), 1e-9)


def tree_bytes(pid: int | None) -> int | None:
    """Proportional memory (PSS) of a process and all below it; None where that may not be read."""
    if pid is None:
        return None
    try:
        return sum(_proportional_bytes(each) for each in (pid, *descendants(pid)))
    except PermissionError:
        return None


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # gone meanwhile
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def available_bytes() -> int:
    """What the machine's memory has left."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def drift(steps: Sequence[Series]) -> tuple[Series, Series]:
    """The measurements of the first and of the last third of the steps."""
    third = max(1, len(steps) // 3)
    first, last = Series("first third"), Series("last third")
    for step in steps[:third]:
        first.seconds += step.seconds
    for step in steps[-third:]:
        last.seconds += step.seconds
    return first, last


def median(values: list[float]) -> float:
    """For a table; nothing measured is no number."""
    return statistics.median(values) if values else float("nan")
