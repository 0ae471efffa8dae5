"""Control groups of version 1, where this server can make some below its own: memory and processor time that the kernel keeps.

A sandbox's group has its commands and not its supervisor: that has a thread of its own in it, which starts them. Moving oneself
thread by thread costs microseconds, where moving a process waits for every processor of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

CONTROLLERS = ("memory", "cpu")
PERIOD_MICROSECONDS = 100_000
LONG_PERIOD_MICROSECONDS = 1_000_000
SHORTEST_QUOTA_MICROSECONDS = 1_000
SHARES_A_PROCESSOR = 1024
REMOVE_SECONDS = 2.0


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
    # Without a limit of memory the processor's alone is not worth a thread in every sandbox.
    return tuple(found) if found and found[0][0] == "memory" else ()


def settings(
    sandbox_id: str, groups: Mapping[str, str], memory_bytes: int, cpu: float | None, cpu_request: float | None
) -> list[dict[str, Any]]:
    """What the template is to make for a sandbox: directories, and what is written to their files, in order.

    Args:
        sandbox_id: names them.
        groups: controllers, with the directories that they lie in.
        memory_bytes: the limit of all commands.
        cpu: the limit in processors, if there is one.
        cpu_request: how many it wants to be sure of.
    """
    made: list[dict[str, Any]] = []
    if "memory" not in groups:
        return made
    files = [
        ("memory.limit_in_bytes", str(memory_bytes), True),
        ("memory.memsw.limit_in_bytes", str(memory_bytes), False),
    ]
    made.append({"path": f"{groups['memory']}/aviato-{sandbox_id}", "files": files})
    if "cpu" in groups and (cpu is not None or cpu_request is not None):
        weight = cpu_request if cpu_request is not None else cpu
        assert weight is not None
        files = [("cpu.shares", str(max(2, round(SHARES_A_PROCESSOR * weight))), True)]
        if cpu is not None:
            short = cpu * PERIOD_MICROSECONDS >= SHORTEST_QUOTA_MICROSECONDS
            period = PERIOD_MICROSECONDS if short else LONG_PERIOD_MICROSECONDS
            files += [
                ("cpu.cfs_period_us", str(period), True),
                # Refused where more is allowed than the server itself may use, which is then the limit.
                ("cpu.cfs_quota_us", str(max(SHORTEST_QUOTA_MICROSECONDS, round(cpu * period))), False),
            ]
        made.append({"path": f"{groups['cpu']}/aviato-{sandbox_id}", "files": files})
    return made


def remove(sandbox_id: str, directories: Iterable[str]) -> None:
    """Take a sandbox's groups away once its processes have been killed. Blocking.

    Args:
        sandbox_id: whose.
        directories: where they may lie.

    Raises:
        OSError: one of them resists.
    """
    deadline = time.monotonic() + REMOVE_SECONDS
    for directory in directories:
        while True:
            try:
                os.rmdir(f"{directory}/aviato-{sandbox_id}")
            except OSError as error:
                # Only the last of its processes are waited for. What cannot be removed for another reason never will be.
                if error.errno != errno.EBUSY:
                    break
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                break


def remember(record: Path, groups: Mapping[str, str]) -> list[str]:
    """Where groups of this server's sandboxes may lie: here, and wherever an earlier server of the same folder was.

    Args:
        record: the file that keeps it.
        groups: controllers, with the directories that new ones lie in.
    """
    known = record.read_text().splitlines() if record.exists() else []
    missing = [directory for directory in groups.values() if directory not in known]
    if missing:
        written = record.with_suffix(".new")
        written.write_text("".join(f"{directory}\n" for directory in [*known, *missing]))
        written.replace(record)
    return [*known, *missing]


def _usable(directory: str, name: str) -> bool:
    """Whether groups can be made, by making one."""
    trial = f"{directory}/aviato-trial-{os.getpid()}-{time.monotonic_ns()}"
    try:
        os.mkdir(trial)
    except OSError:
        return False
    try:
        needed = ("memory.limit_in_bytes",) if name == "memory" else ("cpu.cfs_quota_us", "cpu.shares")
        return all(os.access(f"{trial}/{file}", os.R_OK | os.W_OK) for file in (*needed, "tasks"))
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(trial)
