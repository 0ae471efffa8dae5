"""What process 1 does in a pod before anything runs there, as data. Pure.

The steps are those of the local backend (`init/src/confine.rs`); the container runtime has done the rest. A pod that keeps to
`restricted` Pod Security can make no namespaces, so the mounts and the network are the pod's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.server.backends.kubernetes.objects import ROOT_CAPABILITIES
from aviato.server.backends.landlock import rules
from aviato.server.backends.local import bounds
from aviato.server.backends.local import rules as local
from aviato.server.backends.local.plan import RIGHTS, Step

if TYPE_CHECKING:
    from aviato.server.backends.kubernetes.options import Security

RULES = (*(rule for rule in local.RULES if rule.family != "process 1"), *rules.of_same_uid())
"""What nobody in a pod may call, its process 1 included. Commands have a second filter, as without namespaces: process 1
cannot mark what they leave behind, so each has a subreaper, which has their uid."""


def make_plan(security: Security) -> tuple[Step, ...]:
    """The steps in order.

    Args:
        security: see `ClusterOptions`.
    """
    limits = {"nofile": bounds.LIMIT_OPEN_FILES, "fsize": bounds.LIMIT_FILE_BYTES, "core": 0}
    limits |= {"sigpending": bounds.LIMIT_SIGNALS, "msgqueue": bounds.LIMIT_QUEUE_BYTES, "memlock": bounds.LIMIT_LOCKED_BYTES}
    limits |= {"nice": 0, "rtprio": 0}
    steps = [
        Step("watch_sockets", (), "process 1 can ask the kernel what they hold, which the filter lets nobody ask for"),
        Step("limits", (tuple(limits.items()),), "of process 1 and what it starts"),
    ]
    if security == "root":
        given = {name: RIGHTS[name] for name in ROOT_CAPABILITIES}
        steps.append(Step("capabilities", ((), tuple(sorted(given.values()))), "root inside has those, nobody gains any"))
    return (
        *steps,
        Step("settle", (0o022,), "no new privileges, umask, undumpable"),
        Step("asking_filter", (local.families(RULES),), "with the runtime's profile, the system calls that nobody makes"),
    )


def told(security: Security, compiled: bytes, of_commands: bytes) -> dict[str, Any]:
    """What process 1 is sent first.

    Args:
        security: see `ClusterOptions`.
        compiled: the filter of all.
        of_commands: the second one of commands.
    """
    return {
        "plan": make_plan(security),
        "filter": compiled.hex(),
        "grouped": True,
        # A signal to everyone reaches the pod alone.
        "descent": {"filter": of_commands.hex(), "exact": True, "asks": rules.second_arguments()},
    }
