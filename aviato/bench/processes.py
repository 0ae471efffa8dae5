"""Processor time: of this machine, of processes and all below them, of the floors, of all others."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TICK = os.sysconf("SC_CLK_TCK")


class Apart:
    """Processor time of what the benchmarks start themselves, and what is neither the client nor the server that is measured.

    Attributes:
        floors: processes of floors that run.
        floor_seconds: of those that have ended, with all that they started.
        server_seconds, sandbox_seconds: of further servers that were started and ended, and of all below them.
    """

    def __init__(self) -> None:
        self.floors: set[int] = set()
        self.floor_seconds = 0.0
        self.server_seconds = 0.0
        self.sandbox_seconds = 0.0

    def floors_so_far(self) -> float:
        """Of all floors."""
        return self.floor_seconds + sum(map(sum, filter(None, map(tree_seconds, self.floors))))

    def floor_ends(self, pid: int) -> None:
        """A floor is about to end: it does nothing any more."""
        self.floor_seconds += sum(tree_seconds(pid) or ())
        self.floors.discard(pid)

    def follow_server(self, pid: int, ended: Callable[[], bool]) -> None:
        """A further server ends: count what it took until then. `ended` waits a moment and tells whether it has."""
        seconds = (0.0, 0.0)
        while True:
            seconds = tree_seconds(pid) or seconds
            if ended():
                break
        self.server_seconds += seconds[0]
        self.sandbox_seconds += seconds[1]


APART = Apart()
"""Of this process."""


def descendants(pid: int) -> list[int]:
    """All processes below one, children first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(name))
    found = list(children.get(pid, ()))
    for each in found:
        found += children.get(each, ())
    return found


def tree_seconds(pid: int | None) -> tuple[float, float] | None:
    """Processor time so far of a process, and of all that it ever started and waited for."""
    if pid is None or (own := _stat(pid)) is None:
        return None
    below = (float(own[13]) + float(own[14])) / TICK
    for each in descendants(pid):
        if (fields := _stat(each)) is not None:
            below += _own_seconds(each, fields) + sum(map(float, fields[13:15])) / TICK
    return _own_seconds(pid, own), below


def machine_seconds() -> float:
    """Processor time so far of everything on this machine, and what its host took from it."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split(None, 9)[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


def client_seconds() -> float:
    """Processor time so far of this process and of what it started and waited for, without the floors."""
    return (
        sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) - APART.floor_seconds
    )


def others_seconds(server_pid: int | None) -> float:
    """Processor time so far of all that is neither this process, nor what it started, nor the server."""
    trees = [tree_seconds(os.getpid()), tree_seconds(server_pid)]
    known = sum(sum(tree) for tree in trees if tree is not None) + APART.server_seconds + APART.sandbox_seconds
    return machine_seconds() - known


def _own_seconds(pid: int, fields: list[str]) -> float:
    """Of the process itself. Its ticks are whole ones: a thousand process 1s with less than one each counted for nothing."""
    try:
        exact = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9  # of its first thread
    except (OSError, ValueError, IndexError):
        exact = 0.0
    return max(exact, (float(fields[11]) + float(fields[12])) / TICK)


def _stat(pid: int) -> list[str] | None:
    """The fields of a process after its name: state, parent and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
