"""Lets code see of the process that it is in what it would see as a program of its own. Sent along with what runs it."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HIGHEST = 1 << 16
"""At most so many descriptors are taken to be possible: the table of a process goes as far as its highest."""
MOST_FRAMES = 1 << 30


def out_of_the_way(descriptors: list[int], code: bytes) -> list[int]:
    """Move descriptors to the highest numbers: code counts its own from 3, and closes what it has not opened.

    Args:
        descriptors: of the program around the code; nothing else is open beside the standard ones.
        code: that will run.

    Returns:
        Where they are now.
    """
    most = os.sysconf("SC_OPEN_MAX")
    most = min(most, HIGHEST) if most > 0 else HIGHEST
    lowest = most - len(descriptors)
    # All others are closed before the table of descriptors grows: what looks through it takes as long as it is large.
    low = 3
    for fd in sorted(descriptors):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, lowest)
    moved = [os.dup2(fd, most - number, inheritable=False) for number, fd in enumerate(descriptors, 1)]
    for fd in descriptors:
        if fd < lowest:
            os.close(fd)
    if b"closerange" in code or b"SC_OPEN_MAX" in code or b"RLIMIT_NOFILE" in code:
        # Some close all that there may be: for them that ends below these.
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        closerange = os.closerange
        os.closerange = lambda fd_low, fd_high, /: closerange(fd_low, min(fd_high, lowest))
    return moved


def be_started_as(file: str) -> None:
    """Have the interpreter say what it would of a program in that file."""
    sys.argv = [file]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = [sys.orig_argv[0], file]


def count_from_the_code(own: int) -> Callable[[int], None]:
    """Have limits on recursion count from the code's first frame, as a program's do.

    Args:
        own: the frames before that one.

    Returns:
        The function that sets the interpreter's limit.
    """
    limit, set_limit = sys.getrecursionlimit, sys.setrecursionlimit

    def getrecursionlimit() -> int:
        return limit() - own

    def setrecursionlimit(limit: Any, /) -> None:
        set_limit(limit + own if isinstance(limit, int) and 0 < limit < MOST_FRAMES else limit)

    set_limit(limit() + own)
    sys.getrecursionlimit, sys.setrecursionlimit = getrecursionlimit, setrecursionlimit
    return set_limit
