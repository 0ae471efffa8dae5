"""The filters of sandboxes without namespaces, as data: those of the local backend, and what its namespaces do there.

There are two. The first is that of process 1, and so everyone's. The second is that of commands, taken by their subreapers:
it names process 1 and the subreaper by numbers that are put in when they are known.
"""

from __future__ import annotations

import errno

from aviato.server.backends.local import filters
from aviato.server.backends.local import landlock_calls as calls
from aviato.server.backends.local import rules as local
from aviato.server.backends.local.rules import Condition, Rule

SUPERVISOR, SUBREAPER = 0x5A0B71D3, 0x5A0B71E7
"""Stand in the filter for two numbers that are known late; so do their negatives, for process groups. As in `subreaper.rs`."""
LOW = local.LOW
F_SETSIG = 10
EVERYONE = -1 & LOW
_IPC = (
    *("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv", "msgctl", "ipc"),
    *("mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr"),
)
_REPLACED = ("process 1", "sockets")
PROCESSES = (SUPERVISOR, SUBREAPER)


def supervisor_rules(abi: int, asks: bool = True) -> tuple[Rule, ...]:
    """What nobody in a sandbox may call, its process 1 included.

    Args:
        abi: the version of Landlock.
        asks: whether process 1 can be asked about limits by number; else those are refused for all numbers but 0.
    """
    kept = tuple(rule for rule in local.RULES if rule.family not in _REPLACED)
    return (
        *kept,
        # Without namespaces there are the server, trainers and other sandboxes, all with the same uid.
        *local.tracing_of(None),
        *of_same_uid(asks),
        # Here process 1 has no use for them, and the name is the machine's.
        Rule("namespaces", ("unshare",), where=(Condition(0, local.NEWUTS, local.NEWUTS),)),
        Rule("machine", ("sethostname",)),
        # The machine's network and its Unix sockets, some of which obey whoever has the server's uid. No filter can look at
        # the address that a socket is connected to, and Landlock at no other than that of TCP. Pairs are left.
        Rule("sockets", ("socket",), errno.EAFNOSUPPORT),
        Rule("sockets", ("socketpair",), errno.EAFNOSUPPORT, (Condition(0, local.UNIX + 1, None),)),
        Rule("ipc", _IPC, errno.ENOSYS),
        # Of files that may not even be written to.
        *([Rule("truncate", ("truncate",))] if abi < calls.TRUNCATE_ABI else []),
    )


def of_same_uid(asks: bool = True) -> tuple[Rule, ...]:
    """What keeps subreapers from commands, which have the same uid.

    Args:
        asks: see `supervisor_rules`.
    """
    return (
        *local.limits_of_others("limits by number", local.ASK if asks else errno.EPERM),
        # A file can be made to send any signal to any process; and with a pidfd its number is not seen.
        Rule("signals", ("fcntl",), errno.EINVAL, (Condition(1, F_SETSIG),)),
        Rule("signals", ("pidfd_send_signal",), errno.ENOSYS),
    )


def second_arguments() -> list[int]:
    """The calls that process 1 is asked about whose second argument is the number of a process, by their numbers here."""
    return [filters.number(call) for call in ("setpriority", "ioprio_set")]


def command_rules() -> tuple[Rule, ...]:
    """What commands may not do to their process 1 and their subreaper, and to groups, in which those are."""
    found = [Rule("signals", ("kill",), where=(Condition(0, EVERYONE),))]
    for number in PROCESSES:
        found += [
            Rule("signals", ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"), where=(Condition(0, number),)),
            Rule("signals", ("kill",), where=(Condition(0, -number & LOW),)),
        ]
    return (*found, *local.limits_of_groups("limits of groups"))
