"""The limits of a sandbox on this machine: what was asked for, what holds otherwise, and how strongly. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.backends.base import Limit
from aviato.server.backends.local import bounds
from aviato.server.backends.local.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.server.backends.base import Strength
    from aviato.server.backends.local.plan import HostFacts


def limits_of(
    requests: Mapping[str, float], limits: Mapping[str, float], facts: HostFacts, *, layer_in_memory: bool = False
) -> dict[str, Limit]:
    """Every limit of a sandbox.

    Args:
        requests: what it wants to be sure of: a limit that was not given is at least this.
        limits: what it asked for.
        facts: of the machine.
        layer_in_memory: where its writable layer is.
    """
    # Beyond the server's own hard limits nobody in its sandboxes comes, whatever was asked for.
    most = {"memory": facts.address_bytes, "processes": facts.processes}

    def value(name: str, usual: float) -> float:
        given = limits[name] if name in limits else max(usual, requests.get(name, 0))
        return min(given, most.get(name) or given)

    memory_bytes = value("memory", min(bounds.LIMIT_MEMORY_BYTES, facts.memory_bytes // 2))
    disk = bounds.MEMORY_UPPER_BYTES if layer_in_memory else bounds.LIMIT_DISK_BYTES
    grouped = groups_of(requests, limits, facts)
    memory: Strength = "hard" if "memory" in grouped else "watched"
    cpu: Strength = "hard" if "cpu" in grouped and ("cpu" in limits or "cpu" in requests) else "none"
    processes: Strength = "hard" if facts.limit_processes or "pids" in grouped else "none"
    asked = "processes" in limits or "processes" in requests
    held = {
        "memory": Limit(value=memory_bytes, strength=memory),
        "cpu": Limit(value=limits.get("cpu"), strength=cpu),
        "processes": Limit(
            value=value("processes", bounds.LIMIT_PROCESSES) if facts.limit_processes or asked else None, strength=processes
        ),
        "shm": Limit(value=value("shm", memory_bytes // 2), strength="hard"),
        "disk": Limit(value=value("disk", disk), strength="watched"),
        "inodes": Limit(value=value("inodes", bounds.LIMIT_INODES), strength="watched"),
        "open_files": Limit(value=facts.open_files, strength="hard"),
        "file_size": Limit(value=facts.file_bytes, strength="hard"),
    }
    if "gpu" in limits or "gpu" in requests:
        held["gpu"] = Limit(value=value("gpu", 0), strength="none")
    return held


def seen_of(
    asked: Mapping[str, float], held: Mapping[str, Limit], facts: HostFacts, processors: tuple[int, ...]
) -> Seen | None:
    """What programs inside are to see, where the sandbox was given a limit that they look for.

    Args:
        asked: the limits that it asked for.
        held: all that hold.
        facts: of the machine.
        processors: those that its commands run on; empty: all.
    """
    if not {"cpu", "memory"} & asked.keys():
        return None
    memory_bytes = int(held["memory"].value or 0)
    return Seen(
        cpu=asked.get("cpu"),
        memory_bytes=memory_bytes,
        processes=int(held["processes"].value or 0) or None,
        processors=processors,
        covers_memory="memory" in asked and memory_bytes < facts.memory_bytes,
    )


def groups_of(requests: Mapping[str, float], limits: Mapping[str, float], facts: HostFacts) -> dict[str, str]:
    """The control groups that a sandbox gets, and where they lie.

    They cost a millisecond of its start, so only who names memory or processors gets them, or processes where nothing else
    counts them; the others' memory is watched.
    """
    wanted = {"memory", "cpu"} if facts.limit_processes else {"memory", "cpu", "processes"}
    return dict(facts.groups) if not wanted.isdisjoint((*requests, *limits)) else {}
