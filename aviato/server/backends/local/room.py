"""What this machine has of each resource: a sandbox that asks for more is refused."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aviato.values.quantities import format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aviato.server.backends.local.plan import HostFacts

_COUNTS = ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max")


def room(facts: HostFacts, directory: str, names: Collection[str]) -> dict[str, float]:
    """How much there is of each of these resources, by name; one that has no bound is not there.

    Args:
        facts: of the machine.
        directory: where sandboxes are.
        names: of the resources.
    """
    found: dict[str, float] = {"memory": facts.memory_bytes, "shm": facts.memory_bytes, "cpu": facts.processors}
    if "processes" in names:
        found["processes"] = min((number for number in map(_number, _COUNTS) if number), default=0)
    if "disk" in names or "inodes" in names:
        disk = os.statvfs(directory)
        found["disk"] = disk.f_blocks * disk.f_frsize
        found["inodes"] = disk.f_files  # None on file systems that make them as they are needed.
    return {name: found[name] for name in names if found.get(name)}


def too_much(requests: Mapping[str, float], limits: Mapping[str, float], there: Mapping[str, float]) -> str | None:
    """What this machine can never give, in words; None if it can give all. Pure."""
    for table, asked in (("requests", requests), ("limits", limits)):
        for name, amount in asked.items():
            if amount > there.get(name, amount):
                most = f"{_shown(name, there[name])}{_NOUNS.get(name, '')}"
                return f"{table}[{name!r}]: {_shown(name, amount)} are more than the {most} of this machine"
    return None


_NOUNS = {"cpu": " processors", "processes": " processes", "inodes": " inodes"}


def _shown(name: str, amount: float) -> str:
    if name not in ("memory", "shm", "disk"):
        return f"{amount:g}" if name == "cpu" else f"{amount:.0f}"
    exact = format_bytes(amount)
    if not exact.isdecimal() and len(exact) <= len("1023Mi"):
        return exact
    size, unit = (amount / (1 << 30), "Gi") if amount >= 1 << 30 else (amount / (1 << 20), "Mi")
    return f"{size:.0f}{unit}" if size >= 1000 else f"{size:.4g}{unit}"


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None
