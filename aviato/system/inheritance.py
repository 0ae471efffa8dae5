"""What a process hands on to those that it starts, and how that differs from what a login would have. Standard library only.

The embedded server is for all processes of a user, so what its first starter happened to have must not decide for others. What
can be set it sets to what process 1 has (`aviato.server.login`); the rest is part of which server it is.
"""

from __future__ import annotations

import os
import re
import resource
from typing import TYPE_CHECKING

from aviato.system import control_groups

if TYPE_CHECKING:
    from collections.abc import Iterator

SYS_NICE, SYS_RESOURCE = 23, 24
"""Numbers of capabilities."""
LIMITS = {
    "Max cpu time": resource.RLIMIT_CPU,
    "Max file size": resource.RLIMIT_FSIZE,
    "Max data size": resource.RLIMIT_DATA,
    "Max stack size": resource.RLIMIT_STACK,
    "Max core file size": resource.RLIMIT_CORE,
    "Max resident set": resource.RLIMIT_RSS,
    "Max processes": resource.RLIMIT_NPROC,
    "Max open files": resource.RLIMIT_NOFILE,
    "Max locked memory": resource.RLIMIT_MEMLOCK,
    "Max address space": resource.RLIMIT_AS,
    "Max file locks": 10,
    "Max pending signals": resource.RLIMIT_SIGPENDING,
    "Max msgqueue size": resource.RLIMIT_MSGQUEUE,
    "Max nice priority": resource.RLIMIT_NICE,
    "Max realtime priority": resource.RLIMIT_RTPRIO,
    "Max realtime timeout": 15,
}
"""Lines of /proc/PID/limits, and the number of the limit that each is about."""
_HANDED_ON = ("Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters")
"""Lines of /proc/PID/status about what nothing gives back, or what decides over what a user may read."""
_INITIAL_USERS = ["0", "0", "4294967295"]


def what_stays() -> list[str]:
    """Everything of this process that another one which it starts would have, and that cannot be set to what a login has."""
    usual = usual_limits()
    stays = [f"limit {number} {own}" for number, own in limits().items() if usual.get(number) != own]
    if nice() != 0:
        stays.append(f"nice {nice()}")
    if not can(SYS_NICE) and os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_IDLE:
        stays.append("idle")
    if oom_score_adj() != usual_oom_score_adj():
        stays.append(f"oom_score_adj {oom_score_adj()}")
    status = _status()
    stays += [f"{name} {status.get(name, '')}" for name in _HANDED_ON]
    stays += [f"{name} {os.stat(f'/proc/self/ns/{name}').st_ino}" for name in sorted(os.listdir("/proc/self/ns"))]
    return [*stays, *control_groups.limiting(), control_groups.read("/proc/self/attr/current").strip("\0\n")]


def usual_limits() -> dict[int, tuple[int, int]]:
    """Soft and hard limits of process 1 by number: what a login begins with. Empty where they are not shown."""
    return dict(_parse(control_groups.read("/proc/1/limits")))


def limits() -> dict[int, tuple[int, int]]:
    """Soft and hard limits that this process can give to another: those of process 1, as far as it may."""
    usual, may_raise = usual_limits(), can(SYS_RESOURCE)
    found = {}
    for number in LIMITS.values():
        own = resource.getrlimit(number)
        soft, hard = usual.get(number, own)
        most = max(own[1], hard, key=_size) if may_raise else own[1]
        found[number] = (min(soft, most, key=_size), most)
    return found


def nice() -> int:
    """The lowest niceness above that of others that a process of this one's can have."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    return 0 if own <= 0 or can(SYS_NICE) else max(0, min(own, 20 - resource.getrlimit(resource.RLIMIT_NICE)[0]))


def usual_oom_score_adj() -> int:
    """That of a login: of process 1, which itself may be protected."""
    return max(0, int(control_groups.read("/proc/1/oom_score_adj") or 0))


def oom_score_adj() -> int:
    """The lowest from the usual one on that a process of this one's can have."""
    own = int(control_groups.read("/proc/self/oom_score_adj") or 0)
    return usual_oom_score_adj() if can(SYS_RESOURCE) else max(own, usual_oom_score_adj())


def can(capability: int) -> bool:
    """Whether this process has a capability over the machine, and not only in a namespace of its own."""
    effective = int(_status().get("CapEff", "0"), 16)
    return bool(effective >> capability & 1) and control_groups.read("/proc/self/uid_map").split() == _INITIAL_USERS


def _status() -> dict[str, str]:
    lines = (line.partition(":") for line in control_groups.read("/proc/self/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _parse(text: str) -> Iterator[tuple[int, tuple[int, int]]]:
    for line in text.splitlines():
        name, *values = re.split(r"\s{2,}", line)
        if name in LIMITS and len(values) >= 2:
            soft, hard = (resource.RLIM_INFINITY if value == "unlimited" else int(value) for value in values[:2])
            yield LIMITS[name], (soft, hard)


def _size(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit
