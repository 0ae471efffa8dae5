"""Killing what the end of a process 1 without namespaces does not end. Blocking: call it in a thread."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

ROUNDS = 200
SECONDS = 10.0
PAUSE_SECONDS = 0.002


def pid_of(pidfd: int) -> int | None:
    """The process that a pidfd stands for; None if it is gone."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        for line in file:
            if line.startswith("Pid:"):
                pid = int(line.split()[1])
                return pid if pid > 0 else None
    return None


def kill_descendants(pid: int) -> None:
    """Kill all that descend from a process 1, which stands still meanwhile and starts nothing; it is left to be killed."""
    seen: set[str] = set()
    _signal(str(pid), signal.SIGSTOP)
    for _ in range(ROUNDS):
        found = set(descendants(str(pid)))
        if not found - seen:
            break
        for one in found - seen:
            _signal(one, signal.SIGSTOP)
        seen |= found
    for one in descendants(str(pid)):
        _signal(one, signal.SIGKILL)


def descendants(pid: str) -> list[str]:
    """All that descend from a process; some of those that are born or die meanwhile may be missing."""
    found: list[str] = []
    left = [pid]
    while left:
        born = _children(left.pop())
        found += born
        left += born
    return found


def _children(pid: str) -> list[str]:
    """The children of all threads of a process, dead ones that are not reaped included."""
    found: list[str] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += file.read().split()
    return found


def kill_uid(uid: int) -> None:
    """Kill every process that has a uid which is a sandbox's own, until there is none."""
    deadline = time.monotonic() + SECONDS
    while found := _living(uid):
        for pid in found:
            _signal(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(found)} processes of uid {uid} do not end")
        time.sleep(PAUSE_SECONDS)


def _living(uid: int) -> list[str]:
    found = []
    for pid in os.listdir("/proc"):
        if not pid.isdecimal():
            continue
        try:
            with open(f"/proc/{pid}/status", "rb") as file:
                text = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue
        own = text[text.index(b"\nUid:") :].split(maxsplit=2)[1]
        if int(own) == uid and b"\nState:\tZ" not in text:
            found.append(pid)
    return found


def _signal(pid: str, number: int) -> None:
    try:
        os.kill(int(pid), number)
    except ProcessLookupError:
        pass
