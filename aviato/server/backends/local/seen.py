"""Files by which programs see the limits of their sandbox where they look for those of their control group. Pure.

JVMs, Node, Go, `free` and numerical libraries choose how much memory and how many threads to use by what they read there.
Where the sandbox has control groups they are mounted there, read only, beside our files. JVMs believe in no groups that are not
mounts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aviato.server.backends.local.groups.shares import quota

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

GROUPS = "/sys/fs/cgroup"
ROOM_BYTES = 64 << 10
MEMINFO, ONLINE = "/proc/meminfo", "/sys/devices/system/cpu/online"


class Seen(NamedTuple):
    """What a sandbox's programs are to see.

    Attributes:
        cpu: the limit in processors, or None.
        memory_bytes: the limit of memory that holds.
        processes: how many there may be, or None.
        processors: those that commands may run on; empty: all.
        covers_memory: whether the memory of the machine is to look like that of the sandbox.
    """

    cpu: float | None
    memory_bytes: int
    processes: int | None
    processors: tuple[int, ...] = ()
    covers_memory: bool = False


def directories(mounted: Collection[str]) -> list[tuple[str, int]]:
    """Below `GROUPS`, with modes.

    Args:
        mounted: what is mounted there.
    """
    return [(f"{GROUPS}/{name}", 0o755) for name in ("cpu", "memory") if name not in mounted]


def files(seen: Seen, mounted: Collection[str]) -> list[tuple[str, str]]:
    """Those of both versions, with what is in them: programs look for the one and then for the other."""
    most, period = ("max", 100_000) if seen.cpu is None else quota(seen.cpu)
    found = {
        "cgroup.controllers": "cpu memory pids",
        "cpu.max": f"{most} {period}",
        "memory.max": str(seen.memory_bytes),
        "memory.swap.max": "0",
        "pids.max": "max" if seen.processes is None else str(seen.processes),
    }
    if "cpu" not in mounted:
        found["cpu/cpu.cfs_quota_us"] = "-1" if seen.cpu is None else str(most)
        found["cpu/cpu.cfs_period_us"] = str(period)
    if "memory" not in mounted:
        found["memory/memory.limit_in_bytes"] = str(seen.memory_bytes)
    return [(f"{GROUPS}/{name}", f"{content}\n") for name, content in found.items()]


def covers(seen: Seen, has_hardware: bool) -> list[tuple[str, str, str]]:
    """Files of the kernel's that are covered: the path of each, with that of what covers it, and what is in that.

    What covers them lies beside the rest, in memory: a name on the disk would cost more than all else here.

    Args:
        seen: what is to be seen.
        has_hardware: whether there is a file that says which processors there are.
    """
    found = []
    if seen.covers_memory:
        found.append((MEMINFO, f"{GROUPS}/.meminfo", meminfo(seen.memory_bytes)))
    if seen.processors and has_hardware:
        found.append((ONLINE, f"{GROUPS}/.online", f"{ranges(seen.processors)}\n"))
    return found


def ranges(processors: Sequence[int]) -> str:
    """Numbers as the kernel lists them: `0-3,8`."""
    found: list[list[int]] = []
    for number in sorted(processors):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def meminfo(memory_bytes: int) -> str:
    """A machine with so much memory, of which nothing is used: how much is, no file could say that does not change."""
    total = memory_bytes >> 10
    full = ("MemTotal", "MemFree", "MemAvailable")
    none = (
        *("Buffers", "Cached", "SwapCached", "Active", "Inactive", "Active(anon)", "Inactive(anon)", "Active(file)"),
        *("Inactive(file)", "Unevictable", "Mlocked", "SwapTotal", "SwapFree", "Dirty", "Writeback", "AnonPages", "Mapped"),
        *("Shmem", "KReclaimable", "Slab", "SReclaimable", "SUnreclaim", "KernelStack", "PageTables"),
    )
    values = {**dict.fromkeys(full, total), **dict.fromkeys(none, 0), "CommitLimit": total, "Committed_AS": 0}
    counts = {"HugePages_Total": 0, "HugePages_Free": 0, "HugePages_Rsvd": 0, "HugePages_Surp": 0}
    lines = [f"{name + ':':<16}{value:>8} kB\n" for name, value in values.items()]
    lines += [f"{name + ':':<16}{value:>8}\n" for name, value in counts.items()]
    return "".join([*lines, f"{'Hugepagesize:':<16}{2048:>8} kB\n"])
