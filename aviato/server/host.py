"""What the machine has left, read from the kernel."""

from __future__ import annotations

import re
import resource

from aviato.server.admission import HostRoom


def room(live: int) -> HostRoom:
    """What admission needs to know; for a worker thread, or before the loop runs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HostRoom(
        memory_available_bytes=_memory_available(),
        live=live,
        processes_max=_processes_max(),
        open_files_max=None if soft == resource.RLIM_INFINITY else soft,
    )


def raise_open_files() -> None:
    """Raise the limit of open files as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _memory_available() -> int | None:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) << 10 if found else None


def _processes_max() -> int | None:
    """The smallest `pids.max` above this process, in whichever hierarchy has one."""
    limits: list[int] = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        elif "pids" in controllers.split(","):
            roots = ["/sys/fs/cgroup/pids"]
        else:
            continue
        while True:
            limits += [int(text) for root in roots if (text := _read(f"{root}{path}/pids.max").strip()).isdigit()]
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
