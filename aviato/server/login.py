"""Begins as a login would: whatever the starter had that survives exec gets a known value.

What cannot be set is part of which embedded server it is, see `aviato.system.inheritance`.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress

from aviato.server.backends.local import syscalls
from aviato.system import inheritance

TIMER_SLACK_NANOSECONDS = 50_000
"""What the kernel gives its first process."""
MOST_PROCESSORS = 8192
"""The kernel leaves out those that there are not, and those that a cpuset takes away."""
COREDUMP_FILTER = "0x33"
"""The kernel's own."""
_PYTHONS_OWN = {signal.SIGPIPE, signal.SIGXFSZ}
"""Python ignores these, and gives them back to what it starts."""


def begin() -> None:
    """Give this process, which has one thread, what a login has; it is made anew where something only counts from exec on.

    To be called while the descriptors that it was given are still inheritable.
    """
    restore_signals()
    os.umask(0o022)
    _restore_order()
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    _restore_limits()
    syscalls.forget_starter(TIMER_SLACK_NANOSECONDS)
    _write("/proc/self/coredump_filter", COREDUMP_FILTER)
    if syscalls.usual_personality() or stack != resource.getrlimit(resource.RLIMIT_STACK)[0]:
        # Where memory begins, and how large the stacks of threads are.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def hear_of_children() -> None:
    """Be told when a child ends, whatever the starter ignored or blocked; who is not cannot wait for one."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def restore_signals() -> None:
    """Nothing is blocked, and nothing ignored but what Python ignores itself; who ignores SIGCHLD cannot wait for a child."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - _PYTHONS_OWN:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _restore_order() -> None:
    """Which processors, and before or after whom."""
    with suppress(OSError):
        os.sched_setaffinity(0, range(MOST_PROCESSORS))
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, inheritance.nice())
    _write("/proc/self/oom_score_adj", str(inheritance.oom_score_adj()))


def _restore_limits() -> None:
    for number, (soft, hard) in inheritance.limits().items():
        if resource.getrlimit(number) != (soft, hard):
            with suppress(OSError, ValueError):
                resource.setrlimit(number, (soft, hard))


def _write(path: str, text: str) -> None:
    with suppress(OSError), open(path, "w") as file:
        file.write(text)
