"""What the machine has left, read from the kernel."""

from __future__ import annotations

import ctypes
import os
import re
import resource

from aviato.server.admission import HostRoom
from aviato.system import control_groups

_M_MMAP_THRESHOLD = -3
_LARGE_BLOCK_BYTES = 4 << 20
_M_TRIM_THRESHOLD = -1
_KEPT_BYTES = 4 << 20
"""Of what was freed last: pieces of files and output come and go, and memory that is new again costs more than copying them."""


def room(live: int) -> HostRoom:
    """What admission needs to know; for a worker thread, or before the loop runs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # In a container the machine's memory is not this server's.
    memory = [found for found in (meminfo_bytes("MemAvailable"), group_memory_left()) if found is not None]
    return HostRoom(
        memory_available_bytes=min(memory, default=None),
        live=live,
        processes_max=group_limit("pids", "pids.max", "pids.max"),
        open_files_max=None if soft == resource.RLIM_INFINITY else soft,
    )


def raise_open_files() -> None:
    """Raise the limit of open files as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def dump_no_core() -> None:
    """No file of this process's memory when it crashes: there are secrets in it."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def give_memory_back() -> None:
    """Give freed memory to the machine, and from now on large blocks as soon as they are freed."""
    try:
        libc = ctypes.CDLL(None)
        # By itself it keeps blocks as large as any that it has seen freed.
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        if "MALLOC_TRIM_THRESHOLD_" not in os.environ:  # Who sets that means it.
            libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.malloc_trim(0)
    except (OSError, AttributeError):
        return  # Another libc.


def resident_bytes() -> int:
    """What this process holds in memory."""
    fields = control_groups.read("/proc/self/statm").split()
    return int(fields[1]) * resource.getpagesize() if len(fields) > 1 else 0


def meminfo_bytes(name: str) -> int | None:
    """A field of /proc/meminfo."""
    found = re.search(rf"^{name}:\s+(\d+) kB", control_groups.read("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) << 10 if found else None


def group_limit(controller: str, unified: str, own: str) -> int | None:
    """The smallest limit of the control groups above this process, in whichever hierarchy has one.

    Args:
        controller: such as `memory`.
        unified: the file that has the limit in version 2.
        own: the same in version 1, where each controller may have a hierarchy of its own.
    """
    limits = [
        control_groups.number(f"{group}/{unified if is_unified else own}")
        for group, is_unified in control_groups.above(controller)
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def group_memory_left() -> int | None:
    """What the tightest of those groups has left, in bytes, where one has a limit; file contents that can go count as left."""
    left: list[int] = []
    for group, is_unified in control_groups.above("memory"):
        limit = control_groups.number(f"{group}/{'memory.max' if is_unified else 'memory.limit_in_bytes'}")
        used = control_groups.number(f"{group}/{'memory.current' if is_unified else 'memory.usage_in_bytes'}")
        if limit is None or used is None:
            continue
        name = "inactive_file" if is_unified else "total_inactive_file"
        found = re.search(rf"^{name} (\d+)$", control_groups.read(f"{group}/memory.stat"), re.MULTILINE)
        left.append(max(0, limit - used + (int(found[1]) if found else 0)))
    return min(left, default=None)
