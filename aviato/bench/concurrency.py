"""Many sandboxes that live at once: one after the other, staggered, in a burst; from threads, a loop, several processes.

Each level makes so many, runs a command in each, and stops them only when all have had theirs. What is timed is a sandbox's way
to its first result. Clients are processes of their own, and levels come in a new order each round. The floor is bwrap, started
as often, twice as many at once as there are processors.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aviato.bench.client import ASYNC, BURST, SEQUENTIAL, STAGGERED, THREADS
from aviato.bench.floor import NO_BWRAP, Floor, bwrap_argv
from aviato.bench.report import Bars, Lines, Report, Table, milliseconds, percent
from aviato.bench.run import Run, Size
from aviato.bench.series import Series, quantile
from aviato.bench.use import Use, used

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = {
    "rounds": Size(3, 1, "of each level of up to 100 sandboxes; larger ones are made once"),
    "most": Size(1_000, 10, "sandboxes of the largest level; the others are a tenth of the next"),
    "processes": Size(4, 2, "clients, where there are several"),
    "every_ms": Size(20, 20, "between two that are staggered"),
}

OFTEN = 100
"""Sandboxes up to which a level is made in every round."""


@dataclass(frozen=True)
class Way:
    """How the sandboxes of a level are asked for."""

    count: int
    arrival: str
    style: str
    processes: int = 1

    @property
    def name(self) -> str:
        """For tables."""
        from_where = "" if self.processes == 1 else f", {self.processes} processes"
        return f"{self.count:,} {self.arrival}, {self.style}{from_where}"


@dataclass
class Found:
    """What came of a way in all its rounds."""

    first: Series
    walls: list[float] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    use: Use = field(default_factory=Use)


def measure(run: Run) -> Report:
    """All of it."""
    report = Report("concurrency")
    levels = [count for count in _levels(run["most"]) if count <= run.room(report, run["most"])]
    ways = [
        Way(count, arrival, style)
        for count in levels
        for arrival in (SEQUENTIAL, STAGGERED, BURST)
        for style in (THREADS, ASYNC)
    ]
    ways += [Way(count, BURST, ASYNC, run["processes"]) for count in levels if count >= run["processes"]]
    found = {way: Found(Series(way.name)) for way in ways}
    floors: dict[int, list[float]] = {count: [] for count in levels}
    at_once = 2 * len(os.sched_getaffinity(0))
    argv = bwrap_argv(["/bin/echo", "here"])
    with ExitStack() as stack:
        clients = [stack.enter_context(client(run)) for _ in range(max(1, run["processes"]))]
        _level(clients[:1], Way(1, BURST, THREADS), 0.0)
        _level(clients, Way(len(clients), BURST, ASYNC, len(clients)), 0.0)
        bare = {}
        if argv is None:
            report.notes.append(NO_BWRAP)
        else:
            report.floors[f"bwrap, {at_once} at once"] = argv
            bare = {count: stack.enter_context(Floor(argv, count, at_once)) for count in levels}
        for turn in range(run["rounds"]):
            due: list[Way | int] = [way for way in ways if turn == 0 or way.count <= OFTEN]
            due += [count for count in bare if turn == 0 or count <= OFTEN]
            random.shuffle(due)
            for one in due:
                if isinstance(one, int):
                    floors[one].append(bare[one]())
                else:
                    _note(run, clients[: one.processes], one, found[one])
    _tell(report, found, floors)
    return report


def _levels(most: int) -> list[int]:
    found = [most]
    while found[-1] > 1:
        found.append(max(1, found[-1] // 10))
    return found[::-1]


@contextmanager
def client(run: Run) -> Iterator[subprocess.Popen[str]]:
    """A client process."""
    command = [sys.executable, "-m", "aviato.bench.client"]
    environment = {**os.environ, "AVIATO_BASE_URL": run.url()}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.communicate()


def _note(run: Run, clients: list[subprocess.Popen[str]], way: Way, found: Found) -> None:
    """One round of a way."""
    with used(run, facade=False, answers=True) as use:
        answers = _ask(clients, way, run["every_ms"] / 1e3)
    for answer in answers:
        found.first.seconds += answer["seconds"]
        found.first.errors += answer["errors"]
        use.client_seconds += answer["cpu"]
        use.lag += answer["lag"]
    found.use.add(use)
    found.walls.append(max(answer["wall"] for answer in answers))
    found.stops.append(_stop(clients))


def _level(clients: list[subprocess.Popen[str]], way: Way, every_seconds: float) -> None:
    """One that is not measured."""
    _ask(clients, way, every_seconds)
    _stop(clients)


def _ask(clients: list[subprocess.Popen[str]], way: Way, every_seconds: float) -> list[dict[str, Any]]:
    for index, process in enumerate(clients):
        count = way.count // len(clients) + (index < way.count % len(clients))
        asked = {"count": count, "arrival": way.arrival, "style": way.style, "every_seconds": every_seconds}
        _say(process, json.dumps(asked))
    return [_hear(process) for process in clients]


def _stop(clients: list[subprocess.Popen[str]]) -> float:
    for process in clients:
        _say(process, "stop")
    return max(float(_hear(process)["seconds"]) for process in clients)


def _say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a client process ended; its words are above")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _tell(report: Report, found: dict[Way, Found], floors: dict[int, list[float]]) -> None:
    table = Table(
        "to the first result", ("", "a second", "p50 ms", "p95 ms", "p99 ms", "succeeded", "stop, ms each", "× bwrap")
    )
    used_table = Table("each sandbox, meanwhile", ("", *Use.COLUMNS))
    bars, lines = Bars("what a sandbox costs in a burst", "× bwrap"), Lines("cost by number", "sandboxes", "× bwrap")
    for way, one in found.items():
        wall, rounds = quantile(one.walls, 0.5), len(one.walls)
        floor = quantile(floors[way.count], 0.5) if floors[way.count] else None
        times = [milliseconds(one.first.percentile(part)) if one.first.seconds else "–" for part in (50, 95, 99)]
        stop = milliseconds(quantile(one.stops, 0.5) / way.count)
        beside = "–" if floor is None or way.arrival == STAGGERED else f"{wall / floor:.2f}"
        table.rows.append([way.name, f"{way.count / wall:.1f}", *times, percent(one.first.success), stop, beside])
        used_table.rows.append([way.name, *one.use.cells(way.count * rounds)])
        report.problems += [f"{way.name}: {error}" for error in one.first.errors]
        report.figures[way.name] = {
            "seconds": one.first.seconds,
            "failed": len(one.first.errors),
            "walls": one.walls,
            "stops": one.stops,
            "bwrap_walls": floors[way.count],
            "meanwhile": one.use.figures(),
        }
        report.values[f"{way.name}, a second"] = way.count / wall
        if floor is not None and way.arrival == BURST:
            quotients = [wall / floor for wall in one.walls]
            bars.bars.append((way.name, wall / floor, min(quotients), max(quotients)))
            across, up = lines.lines.setdefault(f"{way.style}, {way.processes} client(s)", ([], []))
            across.append(way.count)
            up.append(wall / floor)
    report.tables += [table, used_table]
    report.plots += [bars, lines] if bars.bars else []
