"""What a benchmark used meanwhile: processor time of client and server, lag of the client's loop, answers of the server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from aviato.bench.processes import APART, client_seconds, others_seconds, tree_seconds
from aviato.bench.series import quantile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aviato.bench.run import Run

EVERY_SECONDS = 0.02
"""The lag of a loop is how late a timer of so long is."""


@dataclass
class Use:
    """Of one stretch of a run; None is what cannot be seen from here.

    Attributes:
        client_seconds: processor time of this process and of client processes that it waited for.
        server_seconds: of the server's process, and of further servers that were started and ended meanwhile.
        sandbox_seconds: of the zygote, of all process 1s and of their commands; likewise.
        floor_seconds: of the floors.
        others_seconds: of all else on this machine.
        lag: of the client's loop.
        answers: how long the server took for `GET /v1/health`, asked by a process of its own.
    """

    wall_seconds: float = 0.0
    client_seconds: float = 0.0
    server_seconds: float | None = None
    sandbox_seconds: float | None = None
    floor_seconds: float = 0.0
    others_seconds: float = 0.0
    lag: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)

    COLUMNS: ClassVar = (
        "client CPU",
        "server CPU",
        "sandboxes' CPU",
        "floors' CPU",
        "others' CPU",
        "loop lag p50/p95/p99 ms",
        "server's answer p50/p95/p99 ms",
    )

    def cells(self, each: int | None = None) -> list[str]:
        """For a table: as a part of a core, or in milliseconds for each of so many."""
        spent = (self.client_seconds, self.server_seconds, self.sandbox_seconds)
        beside = (self._cpu(seconds, None) for seconds in (self.floor_seconds, self.others_seconds))
        return [*(self._cpu(seconds, each) for seconds in spent), *beside, _three(self.lag), _three(self.answers)]

    def add(self, other: Use) -> None:
        """Another stretch."""
        self.wall_seconds += other.wall_seconds
        self.client_seconds += other.client_seconds
        self.server_seconds = _sum(self.server_seconds, other.server_seconds)
        self.sandbox_seconds = _sum(self.sandbox_seconds, other.sandbox_seconds)
        self.floor_seconds += other.floor_seconds
        self.others_seconds += other.others_seconds
        self.lag += other.lag
        self.answers += other.answers

    def _cpu(self, seconds: float | None, each: int | None) -> str:
        if seconds is None:
            return "–"
        return f"{seconds / self.wall_seconds * 100:.0f} %" if each is None else f"{seconds / each * 1e3:.2f} ms"

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "lag": _percentiles(self.lag), "answers": _percentiles(self.answers)}


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _percentiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{part}": quantile(seconds, part / 100) for part in (50, 95, 99)} if seconds else {}


def _three(seconds: list[float]) -> str:
    return "/".join(f"{value * 1e3:.1f}" for value in _percentiles(seconds).values()) or "–"


@contextmanager
def used(run: Run, *, facade: bool = True, answers: bool = False) -> Iterator[Use]:
    """Measure what a block uses.

    Args:
        run: whose server it is.
        facade: watch the loop thread of the facade; else whoever has a loop of its own hands `watch_lag` to it.
        answers: ask the server all the time how it is. It costs about a hundredth of a core.
    """
    use, pid = Use(), run.server_pid()
    watching = _watch_facade(use) if facade else None
    asking = _ask(run) if answers else None
    before = _spent(pid)
    before["client_seconds"], begin = client_seconds(), time.perf_counter()  # looking at a thousand processes is not its work
    try:
        yield use
    finally:
        use.wall_seconds, after = time.perf_counter() - begin, _spent(pid)
        for name in before.keys() & after.keys():
            setattr(use, name, max(0.0, after[name] - before[name]))
        if watching is not None:
            watching.cancel()
        if asking is not None:
            said, _ = asking.communicate("")
            use.answers = json.loads(said)


def _spent(pid: int | None) -> dict[str, float]:
    """Processor time so far, as attributes of `Use`."""
    spent = {
        "client_seconds": client_seconds(),
        "floor_seconds": APART.floors_so_far(),
        "others_seconds": others_seconds(pid),
    }
    server = tree_seconds(pid)
    if server is not None:
        spent["server_seconds"] = server[0] + APART.server_seconds
        spent["sandbox_seconds"] = server[1] + APART.sandbox_seconds
    return spent


async def watch_lag(into: list[float]) -> None:
    """Note how late the timers of the running loop are, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + EVERY_SECONDS
        await asyncio.sleep(EVERY_SECONDS)
        into.append(max(0.0, loop.time() - due))


def _watch_facade(use: Use) -> Any:
    from aviato.bridge.loop import loop_thread

    return asyncio.run_coroutine_threadsafe(watch_lag(use.lag), loop_thread().loop)


def _ask(run: Run) -> subprocess.Popen[str]:
    """A process that asks the server how it is, until its input ends."""
    environment = {**os.environ, "AVIATO_BASE_URL": run.url()}
    command = [sys.executable, "-m", "aviato.bench.asking"]
    asking = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert asking.stdout is not None
    asking.stdout.readline()
    return asking
