"""The limits of a container: what was asked for, what holds otherwise, and how strongly. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aviato.server.backends.base import Limit
from aviato.server.backends.local.limits import limits_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.server.backends.local.plan import HostFacts

NOT_COUNTED = ("disk", "inodes")
"""What no engine counts for a container on the usual file systems."""
PROCESSES_OF_ITS_OWN = 8
"""Process 1, and what an engine starts beside it."""
SMALLEST_MEMORY_BYTES = 6 << 20
"""Engines take no less."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Which limits an engine keeps.

    Attributes:
        memory: by a control group.
        cpu: as time.
        processes: by a control group.
    """

    memory: bool
    cpu: bool
    processes: bool


def container_limits(
    requests: Mapping[str, float], limits: Mapping[str, float], facts: HostFacts, kept: Kept
) -> dict[str, Limit]:
    """Every limit of a container.

    Args:
        requests: what it wants to be sure of.
        limits: what it asked for.
        facts: of the machine.
        kept: what the engine keeps.
    """
    found = limits_of(requests, limits, facts)
    memory, processes = found["memory"].value, found["processes"].value
    return {
        **found,
        "memory": Limit(value=memory, strength="hard" if kept.memory else "watched"),
        "cpu": Limit(value=limits.get("cpu"), strength="hard" if kept.cpu and "cpu" in limits else "none"),
        "processes": Limit(value=processes, strength="hard" if kept.processes or facts.limit_processes else "watched"),
        **{name: Limit(value=None, strength="none") for name in NOT_COUNTED},
    }


def host_config(held: Mapping[str, Limit], kept: Kept) -> dict[str, Any]:
    """The same for an engine, as fields of its `HostConfig`."""
    found: dict[str, Any] = {"ShmSize": int(held["shm"].value or 0)}
    if kept.memory and held["memory"].value:
        size = max(int(held["memory"].value), SMALLEST_MEMORY_BYTES)
        found |= {"Memory": size, "MemorySwap": size}  # Together: no swap.
    if kept.cpu and held["cpu"].value:
        found["NanoCpus"] = int(held["cpu"].value * 1e9)
    if kept.processes and held["processes"].value:
        found["PidsLimit"] = int(held["processes"].value) + PROCESSES_OF_ITS_OWN
    return found
