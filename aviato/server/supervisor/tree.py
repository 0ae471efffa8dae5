"""Killing what belongs to a command, and all of a sandbox. Standard library only.

Process 1 enters a fresh UTS namespace before each command, so that every descendant carries that namespace's inode number in
`/proc/PID/ns/uts` and, without capabilities, cannot leave it: the mark holds where sessions, parents and environments do not.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLONE_NEWUTS = 0x04000000
TURN_SECONDS = 0.02
"""Rounds run back to back for so long: a tree that forks on must not get a turn of the loop between two of them."""
PAUSE_SECONDS = 0.001

_libc = ctypes.CDLL(None, use_errno=True)


def new_mark(proc: int) -> int:
    """Enter a fresh UTS namespace; its number marks what is spawned from now on.

    Raises:
        OSError: the namespace cannot be had.
    """
    if _libc.unshare(CLONE_NEWUTS):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return os.stat("self/ns/uts", dir_fd=proc).st_ino


def pids(proc: int) -> list[str]:
    """Every process but this one."""
    mine = str(os.getpid())
    return [name for name in os.listdir(proc) if name.isdecimal() and name != mine]


def kill_marked(proc: int, mark: int, still: Callable[[], bool]) -> Iterator[float]:
    """A job that kills a tree; it ends when a whole scan has found nothing alive with the mark.

    Args:
        proc: descriptor of /proc.
        mark: see above.
        still: whether the mark means the same command as when the job began.
    """
    killed: set[str] = set()
    while still():
        until = time.monotonic() + TURN_SECONDS
        while True:
            try:
                hits = _kill_round(proc, mark)
            except OSError:
                # Someone inside took our descriptors away by prlimit, so that /proc cannot be listed. Nothing may outlive
                # its time because of that: the other commands go too.
                signal_all(signal.SIGKILL)
                return
            if not hits:
                return
            if hits <= killed:
                # All are dying, and need the processor for it more than we do.
                yield PAUSE_SECONDS
                break
            killed |= hits
            if time.monotonic() > until:
                yield True
                break


def signal_all(number: int) -> bool:
    """Signal everything else in this process namespace (0: only look); True if there is anything, the unreaped included."""
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return False
    return True


def _kill_round(proc: int, mark: int) -> set[str]:
    hits = set()
    for pid in pids(proc):
        if _carries(proc, pid, mark):
            hits.add(pid)
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
    return hits


def _carries(proc: int, pid: str, mark: int) -> bool:
    try:
        return os.stat(f"{pid}/ns/uts", dir_fd=proc).st_ino == mark
    except OSError as error:
        # A program that its own user may not read hides its namespaces even from process 1. Only hostile code has a reason to
        # run one, so it dies with the first tree that is killed. Zombies and the dead are ENOENT or ESRCH.
        return error.errno in (errno.EACCES, errno.EPERM)
