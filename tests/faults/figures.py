"""What a process, a server and this machine hold: what must be the same again when everything is over."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "cpu", "pids")


@dataclass(frozen=True)
class Held:
    """What one process holds; `memory_bytes` are the pages that are its own, and written."""

    descriptors: int
    threads: int
    memory_bytes: int


def held(pid: int) -> Held:
    """What a process holds."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    own = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith(("Private_Dirty:", "Swap:")))
    return Held(len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")), own << 10)


def descriptors(pid: int) -> Counter[str]:
    """What they are, for people: without the numbers of pipes and sockets, and with what the kernel tells of the latter."""
    sockets = _sockets()
    found: Counter[str] = Counter()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            what = os.readlink(f"/proc/{pid}/fd/{name}")
            found[sockets.get(what, re.sub(r"\[[0-9]+\]", "", what))] += 1
    return found


def _sockets() -> dict[str, str]:
    """Type, state and path, or state and both ends, by a socket's name in /proc; those of this network namespace."""
    unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    tcp = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        **{f"socket:[{words[6]}]": " ".join(["unix", *words[4:6], *words[7:]]) for words in unix},
        **{f"socket:[{words[9]}]": f"tcp {words[3]} {words[1]} {words[2]}" for words in tcp},
    }


def objects() -> Counter[str]:
    """How many objects of each type this process has, of those that its collector knows."""
    return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())


def parents() -> dict[int, int]:
    """The parent of each process of this machine."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                found[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def descendants(pid: int) -> dict[int, str]:
    """The processes below one, at any depth, with their command lines; nothing for one that is gone by then."""
    of = parents()
    found = {pid}
    while more := {child for child, parent in of.items() if parent in found} - found:
        found |= more
    return {one: _command_line(one) for one in sorted(found - {pid})}


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def mounts(pid: int, below: Path) -> int:
    """How many mounts a process sees there."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return sum(line.split()[4].startswith(f"{below}/") for line in lines)


class OwnGroups:
    """Control groups of version 1 for this process and all that comes of it: what servers make lies below them."""

    def __init__(self) -> None:
        self._paths = []
        for name in CONTROLLERS:
            path = GROUPS / name / f"aviato-soak-{os.getpid()}"
            with suppress(OSError):
                path.mkdir()
                (path / "cgroup.procs").write_text(str(os.getpid()))
                self._paths.append(path)

    @staticmethod
    def count(pid: int) -> int:
        """How many groups there are below those of a process that made some."""
        tops = [GROUPS / name / f"aviato-soak-{pid}" for name in CONTROLLERS]
        return sum(len(names) for top in tops for _, names, _ in os.walk(top))  # Some go while they are counted.

    def leave(self) -> None:
        """Take them away, once nobody else is in them."""
        for path in self._paths:
            with suppress(OSError):
                (path.parent / "cgroup.procs").write_text(str(os.getpid()))
                path.rmdir()
