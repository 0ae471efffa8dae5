"""The limits of a pod: what was asked for, what holds otherwise, and how strongly. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.backends.base import Limit
from aviato.server.backends.local import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

NOT_COUNTED = ("inodes",)
"""What no kubelet counts."""
SMALLEST_MEMORY_BYTES = 16 << 20


def pod_limits(requests: Mapping[str, float], limits: Mapping[str, float]) -> dict[str, Limit]:
    """Every limit of a pod.

    Memory is kept by the pod's control group, and watched by process 1, which kills the command in time. The disk is watched by
    the node's kubelet, which ends the pod.

    Args:
        requests: what it wants to be sure of.
        limits: what it asked for.
    """

    def value(name: str, usual: float) -> float:
        return limits[name] if name in limits else max(usual, requests.get(name, 0))

    memory = max(value("memory", bounds.LIMIT_MEMORY_BYTES), SMALLEST_MEMORY_BYTES)
    held = {
        "memory": Limit(value=memory, strength="hard"),
        "cpu": Limit(value=limits.get("cpu"), strength="hard" if "cpu" in limits else "none"),
        "processes": Limit(value=value("processes", bounds.LIMIT_PROCESSES), strength="watched"),
        "shm": Limit(value=value("shm", memory // 2), strength="watched"),
        "disk": Limit(value=value("disk", bounds.LIMIT_DISK_BYTES), strength="watched"),
        "inodes": Limit(value=None, strength="none"),
        "open_files": Limit(value=bounds.LIMIT_OPEN_FILES, strength="hard"),
        "file_size": Limit(value=bounds.LIMIT_FILE_BYTES, strength="hard"),
    }
    if "gpu" in limits or "gpu" in requests:
        held["gpu"] = Limit(value=value("gpu", 0), strength="hard")
    return held
