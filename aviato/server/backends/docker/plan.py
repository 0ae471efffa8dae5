"""What process 1 does in a container before it is one, as data. Pure.

The steps are those of the local backend (`init/src/confine.rs`); the engine has done the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.server.backends.local import bounds, rules
from aviato.server.backends.local.plan import CAPABILITIES, RIGHTS, Step

if TYPE_CHECKING:
    from aviato.server.backends.local.plan import HostFacts

PROGRAM, PLACE = "/.aviato-init", "/.aviato-place"
"""Where a container has the program and its place until process 1 has begun."""
COMMAND = ["serve", "--place", PLACE]
IDS = 65_536
ENGINE_CAPABILITIES = (*CAPABILITIES, "SETPCAP", "SETFCAP", *RIGHTS)
"""What the engine gives. None of it reaches beyond the container once process 1 has a user namespace of its own.

SYS_ADMIN: it leaves the mounts that it came by. SETUID, SETGID and SETFCAP: it maps ids, 0 among them. SETPCAP: it takes from
its commands what is its own. The others are in the bounding set so that root has them inside: what is not in it outside, nobody
has inside.
"""


def make_plan(facts: HostFacts, processes: int) -> tuple[Step, ...]:
    """The steps in order.

    Args:
        facts: of the machine.
        processes: how many there may be, where users' own limits are counted by namespace; else 0.
    """
    limits = {"nofile": facts.open_files, "fsize": facts.file_bytes, "core": 0}
    limits |= {"sigpending": bounds.LIMIT_SIGNALS, "msgqueue": bounds.LIMIT_QUEUE_BYTES, "memlock": bounds.LIMIT_LOCKED_BYTES}
    limits |= {"nice": 0, "rtprio": 0}
    if processes:
        limits["nproc"] = processes + 1
    return (
        Step("watch_sockets", (), "process 1 can ask the kernel what they hold, which the filter lets nobody ask for"),
        Step("clear", (((PLACE, True), (PROGRAM, False)),), "nobody inside comes by the way that process 1 came"),
        Step("own_user_namespace", (IDS,), "what process 1 may, it may in here alone; the mounts are the outer namespace's"),
        Step("limits", (tuple(limits.items()),), "of process 1 and what it starts"),
        Step(
            "capabilities",
            (tuple(sorted(CAPABILITIES.values())), tuple(sorted(RIGHTS.values()))),
            "process 1 keeps these for itself, root inside has those, nobody gains any",
        ),
        Step("settle", (0o022,), "no new privileges, umask, undumpable"),
        Step("filter", (rules.families(rules.RULES),), "with the engine's profile, the system calls that nobody makes"),
    )


def told(facts: HostFacts, processes: int, compiled: bytes, *, ports: bool, grouped: bool) -> dict[str, Any]:
    """What process 1 reads.

    Args:
        facts: of the machine.
        processes: see `make_plan`.
        compiled: its own filter.
        ports: whether descriptors of its sockets are passed on.
        grouped: whether a control group of its own keeps its limit of memory.
    """
    return {"plan": make_plan(facts, processes), "filter": compiled.hex(), "ports": ports, "grouped": grouped}
