"""Control groups of version 1, a tree for each controller, below those that this process is in.

Process 1 of a sandbox has a thread in them, which starts the commands. Moving oneself thread by thread costs microseconds,
where moving a process waits for every processor of the machine.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from aviato.server.backends.local.groups.shares import quota

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTROLLERS = {
    "memory": ("memory.limit_in_bytes",),
    "cpu": ("cpu.cfs_quota_us", "cpu.shares"),
    "pids": ("pids.max",),
}
"""With the files that each must have."""
SHARES_A_PROCESSOR = 1024


def find() -> tuple[tuple[str, str], ...]:
    """The controllers whose groups can be used here, each with the directory of this process's own group."""
    try:
        with open("/proc/self/cgroup") as file:
            own = [line.rstrip("\n").split(":", 2) for line in file]
        with open("/proc/self/mountinfo") as file:
            mounts = [line.rstrip("\n").partition(" - ") for line in file]
    except OSError:
        return ()
    found = []
    for name in CONTROLLERS:
        path = next((path for _, controllers, path in own if name in controllers.split(",")), None)
        for left, _, right in mounts:
            fields, (kind, _, options) = left.split(), right.split(" ", 2)
            if path is None or kind != "cgroup" or name not in options.split(","):
                continue
            root, point = fields[3].rstrip("/"), fields[4]
            if path == root or path.startswith(f"{root}/"):
                directory = f"{point}{path[len(root) :]}".rstrip("/")
                if _usable(directory, name):
                    found.append((name, directory))
                break
    # Without a limit of memory the others alone are not worth a thread in every sandbox.
    return tuple(found) if found and found[0][0] == "memory" else ()


def settings(
    name: str,
    groups: Mapping[str, str],
    memory_bytes: int,
    cpu: float | None,
    cpu_request: float | None,
    processes: int | None,
) -> list[dict[str, Any]]:
    """See the package; `name` is that of the directories."""
    files = [
        ("memory.limit_in_bytes", str(memory_bytes), True),
        ("memory.memsw.limit_in_bytes", str(memory_bytes), False),
        ("memory.kmem.tcp.limit_in_bytes", str(memory_bytes), False),  # What its connections hold is counted by itself.
    ]
    made = [_group("memory", groups, name, files)]
    if "cpu" in groups and (cpu is not None or cpu_request is not None):
        weight = cpu_request if cpu_request is not None else cpu
        assert weight is not None
        files = [("cpu.shares", str(max(2, round(SHARES_A_PROCESSOR * weight))), True)]
        if cpu is not None:
            most, period = quota(cpu)
            files += [
                ("cpu.cfs_period_us", str(period), True),
                # Refused where more is allowed than the server itself may use, which is then the limit.
                ("cpu.cfs_quota_us", str(most), False),
            ]
        made.append(_group("cpu", groups, name, files))
    if "pids" in groups and processes is not None:
        # One for the thread of process 1.
        made.append(_group("pids", groups, name, [("pids.max", str(processes + 1), True)]))
    return made


def _group(controller: str, groups: Mapping[str, str], name: str, files: list[tuple[str, str, bool]]) -> dict[str, Any]:
    return {"shown": controller, "path": f"{groups[controller]}/{name}", "files": files}


def _usable(directory: str, name: str) -> bool:
    """Whether groups can be made, by making one."""
    trial = f"{directory}/aviato-trial-{os.getpid()}-{time.monotonic_ns()}"
    try:
        os.mkdir(trial)
    except OSError:
        return False
    try:
        return all(os.access(f"{trial}/{file}", os.R_OK | os.W_OK) for file in (*CONTROLLERS[name], "tasks"))
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(trial)
