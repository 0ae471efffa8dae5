"""What a command used. Standard library only.

The rusage of a spawned child is polluted: until exec has replaced it, the child shares the supervisor's memory, and the peak of
that is kept as the child's own. Where rusage says no more than the supervisor's own peak, samples of VmHWM speak instead.
"""

from __future__ import annotations

import os
import resource
import time
from typing import NamedTuple

SLACK_BYTES = 256 << 10
"""The kernel counts pages in batches per core, so two readings of one peak differ a little."""

BEGUN_BYTES = 128 << 10
"""Less than any program holds: a sample of less fell into its exec, and says nothing of its peak."""

SCHEDULED = 2
"""The kind of a process's clock that counts every nanosecond it ran."""


class Used(NamedTuple):
    """What is kept of an rusage: seconds, seconds, KiB."""

    ru_utime: float
    ru_stime: float
    ru_maxrss: int


def own_peak_bytes() -> int:
    """The supervisor's own largest resident set."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def ran_nanoseconds(pid: int) -> int | None:
    """How long a process has run, to the nanosecond, or None if it is gone. Cheap: who has not run has not changed."""
    try:
        return time.clock_gettime_ns(~pid << 3 | SCHEDULED)
    except OSError:
        return None


def peak_sample(proc: int, pid: int) -> int | None:
    """VmHWM of a process in bytes, or None if it has no memory any more."""
    try:
        fd = os.open(f"{pid}/status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return None
    try:
        text = os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)
    start = text.find(b"\nVmHWM:")
    if start < 0:
        return None
    number = text[start + 7 : text.index(b"\n", start + 1)].split()[0]
    return int(number) << 10


def peak_bytes(own: int, sampled: int | None, rusage_bytes: int) -> int | None:
    """The largest resident set of a command, from what is known of it. None: nothing is."""
    if rusage_bytes > own + SLACK_BYTES:
        return rusage_bytes
    return sampled if sampled is not None and sampled >= BEGUN_BYTES else None
