"""Which system calls nobody inside a sandbox may make, as data: a list of what is refused, and how.

`filters` compiles it, `tests/attacks` tries each family with and without. Nothing here does I/O.

A filter sees registers. Where the kernel reads an `int`, 32 bits of a register are compared, since it ignores the others
(`TIOCSTI | 1 << 32` is TIOCSTI). Most of what stands here the kernel refuses anyway for want of capabilities: then this is the
second wall, in front of code that had faults before. Where it is the only one, the reason says what for.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

LOW = 0xFFFFFFFF
ASK = -1
"""An answer: process 1 decides, see `by_number`."""


class Condition(NamedTuple):
    """Of one argument: its bits under the mask have a value; without a mask, it is at least the value."""

    argument: int
    value: int
    mask: int | None = LOW


class Rule(NamedTuple):
    """Calls that are refused with this error, or asked about, where all conditions hold."""

    family: str
    calls: tuple[str, ...]
    answer: int = errno.EPERM
    where: tuple[Condition, ...] = ()


LATE_NUMBERS = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429}
LATE_NUMBERS |= {"fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "pidfd_getfd": 438}
LATE_NUMBERS |= {"close_range": 436, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467}
"""The same on every architecture; an older libseccomp does not know their names."""

NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30
NEWTIME = 1 << 7
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
PR_SCHED_CORE, PR_FUTEX_HASH = 62, 78
CLONE_FILES, CLONE_THREAD, CLOSE_RANGE_UNSHARE = 0x400, 0x10000, 2
PRIO_PROCESS, PRIO_PGRP, PRIO_USER = 0, 1, 2
IOPRIO_PROCESS, IOPRIO_PGRP, IOPRIO_USER = 1, 2, 3
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
RAW, PACKET, SOCKET_TYPE = 3, 10, 0xF
NETLINK_ROUTE = 0
PROTOCOLS = (33, 115, 132, 136)
"""DCCP, L2TP, SCTP, UDP-Lite."""
FIRST_OF_KERNEL = 256
"""Protocols that no packet names begin here: SMC, MPTCP. What their sockets hold is told in other ways than that of TCP."""
TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423
F_SETLEASE, F_SETDELEG = 1024, 1040
COUNTED = ((41, 32), (1, 26), (1, 51))
"""Levels and names of options of sockets: IPV6_FLOWLABEL_MGR, SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF."""
UNCOUNTED = ((1, 60), (6, 14), (6, 32), (6, 38))
"""The same: SO_ZEROCOPY, by which a byte that waits to be sent keeps a page of 2 MiB that is nobody's; TCP_MD5SIG,
TCP_MD5SIG_EXT, TCP_AO_ADD_KEY, of which each socket may have 128 KiB."""
TCP, TCP_ZEROCOPY_RECEIVE = 6, 35
MMAP_PAGE_ZERO, READ_IMPLIES_EXEC = 1 << 20, 1 << 22
MAKES_ROOM = 0x2 | 0x8 | 0x20
"""Modes of fallocate: into a hole, away, apart. All others take room."""
OLD_FALLOCATE = (0x40305828, 0x4030582A, 0x40305839)
"""The same as requests: FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE."""
MOST_GROUPS = 256
"""Of one process. Accounts of systems have a few dozen."""
OTHER_SYSTEMS = tuple(1 << bit for bit in (0, 1, 2, 4, 5, 6, 7))


def _bits(argument: int, bits: int, of: int | None = None) -> Condition:
    return Condition(argument, bits, bits if of is None else of)


def _namespaces() -> list[Rule]:
    # Commands are marked by UTS namespaces, which process 1 makes: they lack the capability for it, and gain none.
    left = (NEWNS, NEWCGROUP, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME)
    return [
        Rule("namespaces", ("setns",)),
        *(Rule("namespaces", ("unshare",), where=(_bits(0, flag),)) for flag in left),
        *(Rule("namespaces", ("clone",), where=(_bits(0, flag),)) for flag in (*left[:-1], NEWUTS)),
        # Its flags are in memory, where a filter cannot look. The C libraries fall back to clone.
        Rule("namespaces", ("clone3",), errno.ENOSYS),
    ]


def _process_1() -> list[Rule]:
    """It has the same uid, so that the kernel would let commands starve, stop or end it by these. The only wall.

    Not for every process but oneself: threads are others, too.
    """
    return [
        *limits_of("process 1", 1),
        *limits_of_groups("process 1"),
        # The kernel drops a signal from inside and says nothing: whoever sends one learns here that it did nothing.
        Rule("process 1", ("kill",), where=(Condition(0, 1), Condition(1, 1, None))),
    ]


def limits_of(family: str, number: int) -> list[Rule]:
    """Limits, priorities and places of the process or thread of this number: the kernel looks at uids alone."""
    return [
        Rule(family, BY_NUMBER, where=(Condition(0, number),)),
        Rule(family, ("setpriority",), where=(Condition(0, PRIO_PROCESS), Condition(1, number))),
        Rule(family, ("ioprio_set",), where=(Condition(0, IOPRIO_PROCESS), Condition(1, number))),
    ]


def tracing_of(number: int | None) -> list[Rule]:
    """Attaching to the process or thread of this number, by `ptrace`; None: to any, but not tracing what one has started.

    Whoever looks for leaks attaches to his own parent, and debuggers to what runs. The kernel lets nobody attach to what he
    could not write to by /proc in any case.
    """
    of_it = () if number is None else (Condition(1, number),)
    return [Rule("other processes", ("ptrace",), where=(Condition(0, how), *of_it)) for how in (PTRACE_ATTACH, PTRACE_SEIZE)]


def limits_of_others(family: str, answer: int) -> list[Rule]:
    """The same of every number but 0, which is oneself. To look at limits of others is left."""
    limits, *rest = BY_NUMBER
    return [
        Rule(family, (limits,), answer, (Condition(0, 1, None), Condition(2, 1, None))),
        Rule(family, tuple(rest), answer, (Condition(0, 1, None),)),
        Rule(family, ("setpriority",), answer, (Condition(0, PRIO_PROCESS), Condition(1, 1, None))),
        Rule(family, ("ioprio_set",), answer, (Condition(0, IOPRIO_PROCESS), Condition(1, 1, None))),
    ]


def limits_of_groups(family: str) -> list[Rule]:
    """The same of all processes of a group or a user."""
    groups = (("setpriority", PRIO_PGRP), ("setpriority", PRIO_USER), ("ioprio_set", IOPRIO_PGRP), ("ioprio_set", IOPRIO_USER))
    return [Rule(family, (call,), where=(Condition(0, which),)) for call, which in groups]


def _uncounted() -> list[Rule]:
    """Memory that no look at processes, files and sockets finds, or finds as somebody else's. The only wall."""
    family = "uncounted memory"
    receive = (Condition(1, TCP), Condition(2, TCP_ZEROCOPY_RECEIVE))
    return [
        # A quarter of a GiB for each process, at once. An older kernel says the same.
        Rule(family, ("prctl",), errno.EINVAL, (Condition(0, PR_FUTEX_HASH),)),
        *(Rule(family, ("setsockopt",), where=(Condition(1, level), Condition(2, name))) for level, name in UNCOUNTED),
        # What it maps is a file's for who looks at the process.
        Rule(family, ("getsockopt",), where=receive),
    ]


def _own_descriptors() -> list[Rule]:
    """Threads of a process with descriptors of their own: the first is looked at, for all of them. The only wall."""
    family = "descriptors of a thread"
    return [
        Rule(family, ("unshare",), where=(_bits(0, CLONE_FILES),)),
        Rule(family, ("clone",), errno.EINVAL, (_bits(0, CLONE_THREAD, CLONE_THREAD | CLONE_FILES),)),
        # As before Linux 5.9 with all of its flags.
        Rule(family, ("close_range",), errno.EINVAL, (_bits(2, CLOSE_RANGE_UNSHARE),)),
    ]


def _sockets() -> list[Rule]:
    """Unix, IPv4, IPv6, and asking for interfaces and addresses. All else is code that few use and the kernel loads late."""
    unknown = errno.EAFNOSUPPORT
    gaps = [family for family in range(1, NETLINK) if family not in (UNIX, INET, INET6)]
    ask_no_more = (Condition(0, NETLINK), Condition(2, NETLINK_ROUTE + 1, None))
    return [
        Rule("sockets", ("socket",), unknown, (Condition(0, NETLINK + 1, None),)),
        *(Rule("sockets", ("socket",), unknown, (Condition(0, family),)) for family in gaps),
        Rule("sockets", ("socketpair",), unknown, (Condition(0, UNIX + 1, None),)),
        Rule("sockets", ("socket",), errno.EPROTONOSUPPORT, ask_no_more),
        *(Rule("sockets", ("socket",), errno.EPROTONOSUPPORT, (Condition(2, protocol),)) for protocol in PROTOCOLS),
        *(
            Rule("sockets", ("socket",), errno.EPROTONOSUPPORT, (Condition(0, family), Condition(2, FIRST_OF_KERNEL, None)))
            for family in (INET, INET6)
        ),
        Rule("sockets", ("socket",), where=(_bits(1, PACKET, SOCKET_TYPE),)),
        *(Rule("sockets", ("socket",), where=(Condition(0, family), _bits(1, RAW, SOCKET_TYPE))) for family in (INET, INET6)),
    ]


def _personality() -> list[Rule]:
    """Other systems' ways of calling, pages at address 0, and every readable page executable.

    Asking for the present one is setting all bits at once, and is refused with them.
    """
    return [
        Rule("personality", ("personality",), where=(_bits(0, bit),))
        for bit in (*OTHER_SYSTEMS, MMAP_PAGE_ZERO, READ_IMPLIES_EXEC)
    ]


def _preallocation() -> list[Rule]:
    """Room on disk or in memory for many GiB within a millisecond: no watch is as fast. The only wall.

    C libraries write instead where a file system cannot do it. Holes are still made by these calls.
    """
    none = errno.EOPNOTSUPP
    return [
        Rule("preallocation", ("fallocate",), none, (Condition(1, 0, MAKES_ROOM),)),
        *(Rule("preallocation", ("ioctl",), none, (Condition(1, request),)) for request in OLD_FALLOCATE),
    ]


BY_NUMBER = (
    *("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setattr", "sched_setaffinity", "migrate_pages", "move_pages"),
)
"""Calls whose first argument is a process or thread, 0 being oneself."""
# Without `sethostname`, by which process 1 names a sandbox that was made for nobody: the kernel asks for the same capability as
# for a UTS namespace.
_MACHINE: tuple[str, ...] = (
    *("acct", "reboot", "swapon", "swapoff", "quotactl", "quotactl_fd", "syslog", "vhangup", "setdomainname"),
    *("settimeofday", "clock_settime", "iopl", "ioperm", "modify_ldt", "open_by_handle_at", "fanotify_init"),
    *("lookup_dcookie", "nfsservctl", "uselib", "_sysctl"),
)
_KERNEL = ("kexec_load", "kexec_file_load", "create_module", "init_module", "finit_module", "delete_module", "get_kernel_syms")
_NEW_MOUNTS = ("open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr")
_OTHERS = ("process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp")

RULES: tuple[Rule, ...] = (
    Rule("mounts", ("mount", "umount", "umount2", "pivot_root", "chroot")),
    Rule("mounts", _NEW_MOUNTS, errno.ENOSYS),
    *_namespaces(),
    *_process_1(),
    *tracing_of(1),
    Rule("other processes", _OTHERS),
    Rule("machine", _MACHINE),
    Rule("kernel code", (*_KERNEL, "query_module")),
    Rule("bpf", ("bpf",)),
    Rule("perf", ("perf_event_open",)),
    Rule("keys", ("keyctl", "add_key", "request_key")),
    Rule("io_uring", ("io_uring_setup", "io_uring_enter", "io_uring_register"), errno.ENOSYS),
    # The machine has so many for all of its users. The only wall.
    Rule("machine's counts", ("io_setup",), errno.ENOSYS),
    *(Rule("machine's counts", ("setsockopt",), where=(Condition(1, level), Condition(2, name))) for level, name in COUNTED),
    # Each process can have 65,536 of its own: 256 KiB of the kernel's memory, which no look at a process shows. The only wall.
    Rule("groups of a process", ("setgroups",), errno.EINVAL, (Condition(0, MOST_GROUPS + 1, None),)),
    Rule("userfaultfd", ("userfaultfd",)),
    # Who has a core to himself has others wait for it, and it can be had for others by their numbers.
    Rule("core scheduling", ("prctl",), where=(Condition(0, PR_SCHED_CORE),)),
    *_uncounted(),
    *_own_descriptors(),
    *_sockets(),
    # Typing into a terminal for someone else, moving a console's text, and line disciplines, which load code.
    *(Rule("terminals", ("ioctl",), where=(Condition(1, request),)) for request in (TIOCSTI, TIOCLINUX, TIOCSETD)),
    # Who opens a file with a lease on it waits for its holder: process 1 does, whenever it starts a program.
    *(Rule("leases", ("fcntl",), errno.EINVAL, (Condition(1, command),)) for command in (F_SETLEASE, F_SETDELEG)),
    *_personality(),
    *_preallocation(),
    # A byte of a page, put into a pipe, keeps the whole page, which may be one of 2 MiB and nobody's any more. The only wall.
    Rule("pages in pipes", ("vmsplice",), errno.ENOSYS),
)


def of_born(rules: tuple[Rule, ...]) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """Those for process 1 where it starts commands in a control group of version 2, and the rest, for the commands."""
    commands = tuple(rule for rule in rules if rule.calls == ("clone3",))
    return tuple(rule for rule in rules if rule not in commands), commands


def families(rules: tuple[Rule, ...]) -> tuple[str, ...]:
    """Their names, in order."""
    return tuple(dict.fromkeys(rule.family for rule in rules))
