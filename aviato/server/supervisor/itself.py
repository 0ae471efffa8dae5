"""What process 1 does to itself, and says of itself. Standard library only."""

from __future__ import annotations

import ctypes
import os
import signal
import struct

SCHED_FLAG_RESET_ON_FORK = 1
TURN_NANOSECONDS = 100_000

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}.get(os.uname().machine)

_libc = ctypes.CDLL(None, use_errno=True)


def child_signals() -> int:
    """A descriptor that is readable when a child has died; the signal itself is blocked here and reset in every child.

    Whoever reads it is told of his own children: it serves a fork of this process as well.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    mask = (1 << (signal.SIGCHLD - 1)).to_bytes(8, "little")
    fd: int = _libc.signalfd(-1, ctypes.c_char_p(mask.ljust(128, b"\0")), os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return fd


def where(error: BaseException) -> str:
    """What went wrong, and where, in a line."""
    # Not the traceback module: it would import more, and look for source files in the sandbox's root.
    places = []
    frame = error.__traceback__
    while frame is not None:
        places.append(f"{frame.tb_frame.f_code.co_name}:{frame.tb_lineno}")
        frame = frame.tb_next
    return f"{type(error).__name__}: {str(error)[:500]} in {' > '.join(places)[-500:]}"


def _read_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


BOOT_ID = _read_line("/proc/sys/kernel/random/boot_id")


def take_short_turns() -> None:
    """Ask for turns of the processor that are short and come soon.

    Every session inside may count as much as all of this process's own for the scheduler (autogroups), so priority does not
    help: with hundreds of them a turn comes after half a second. Kernels from 6.12 on put a short turn first; others refuse
    or ignore it. Children start with the system's own.
    """
    if _SCHED_SETATTR is not None and os.sched_getscheduler(0) == os.SCHED_OTHER:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = struct.pack("<IIQiIQQQ", 48, os.SCHED_OTHER, SCHED_FLAG_RESET_ON_FORK, nice, 0, TURN_NANOSECONDS, 0, 0)
        _libc.syscall(_SCHED_SETATTR, 0, attributes, 0)


def be_deaf() -> None:
    """Ignore every signal that can be ignored, as the kernel does it for process 1. The death of children is told otherwise."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
