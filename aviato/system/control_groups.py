"""The control groups that a process is in, read from the kernel, in version 1 and 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIMITS = (
    ("memory", "memory.max", "memory.limit_in_bytes"),
    ("cpu", "cpu.max", "cpu.cfs_quota_us"),
    ("pids", "pids.max", "pids.max"),
)
"""What others can limit of all in a group: the controller, and its file in version 2 and in version 1."""
_UNLIMITED_BYTES = 1 << 62
"""Version 1 says no limit of memory by a number above this."""
_PROCESSORS = ("cpuset", "cpuset.cpus.effective", "cpuset.effective_cpus")


def above(controller: str) -> Iterator[tuple[str, bool]]:
    """The directories of the groups around this process that may have this controller, and whether by version 2."""
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots, is_unified = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], True
        elif controller in controllers.split(","):
            roots, is_unified = [f"/sys/fs/cgroup/{controller}"], False
        else:
            continue
        while True:
            yield from ((f"{root}{path}", is_unified) for root in roots)
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]


def limiting() -> list[str]:
    """The innermost group with a limit of each kind, if there is one, and the processors that all groups leave."""
    found = []
    for controller, unified, own in _LIMITS:
        for group, is_unified in above(controller):
            if _limits(read(f"{group}/{unified if is_unified else own}")):
                found.append(group)
                break
    for group, is_unified in above(_PROCESSORS[0]):
        if processors := read(f"{group}/{_PROCESSORS[1 if is_unified else 2]}").strip():
            found.append(processors)
            break
    return found


def _limits(text: str) -> bool:
    first = text.split()[:1]
    return bool(first) and first[0].isdigit() and int(first[0]) < _UNLIMITED_BYTES


def number(path: str) -> int | None:
    """What a file holds, if it is a number."""
    text = read(path).strip()
    return int(text) if text.isdigit() else None


def read(path: str) -> str:
    """What a file of the kernel says; nothing where there is none."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
