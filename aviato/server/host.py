"""What the machine has left, read from the kernel."""

from __future__ import annotations

import re
import resource

from aviato.server.admission import HostRoom


def room(live: int) -> HostRoom:
    """What admission needs to know; for a worker thread, or before the loop runs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostRoom(
        memory_available_bytes=meminfo_bytes("MemAvailable"),
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


def meminfo_bytes(name: str) -> int | None:
    """A field of /proc/meminfo."""
    found = re.search(rf"^{name}:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) << 10 if found else None


def group_limit(controller: str, unified: str, own: str) -> int | None:
    """The smallest limit of the control groups above this process, in whichever hierarchy has one.

    Args:
        controller: such as `memory`.
        unified: the file that has the limit in version 2.
        own: the same in version 1, where each controller may have a hierarchy of its own.
    """
    limits: list[int] = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots, file = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], unified
        elif controller in controllers.split(","):
            roots, file = [f"/sys/fs/cgroup/{controller}"], own
        else:
            continue
        while True:
            limits += [int(text) for root in roots if (text := _read(f"{root}{path}/{file}").strip()).isdigit()]
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]
    return min(limits, default=None)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
