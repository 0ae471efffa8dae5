"""A control group in which the kernel keeps the limit of memory, and whom it has killed there. Standard library only.

The kernel kills one process, and does not say which: it is told by how much each command had shortly before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from aviato.server.supervisor import memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aviato.server.supervisor.command import Command

PROCESSES_A_TURN = 64
LARGE = 4
"""Who had this part of the limit when it was looked at last is to blame; else it was too quick to be seen, and is new."""
LIMIT_PARTS = 16
KILLED = b"oom_kill "
FULL = b"\noom "
"""How often the group's own limit was met without a way out, where the kernel tells (version 2)."""


class Group:
    """The group of all commands.

    Args:
        proc: descriptor of /proc.
        control: descriptor of `memory.oom_control`, or of `memory.events` in version 2.
        most: descriptor of what tells the most memory that there ever was, in version 1.
    """

    def __init__(self, proc: int, control: int, most: int | None = None) -> None:
        self.limit = 0
        """In bytes."""
        self._proc = proc
        self._control = control
        self._most = most
        self._killed = 0
        self._full = 0
        self._shares: dict[int | None, int] = {}

    def look(self, pids: Iterable[int]) -> Iterator[float]:
        """A job that remembers how much each command has."""
        shares: dict[int | None, int] = {}
        for count, pid in enumerate(pids, 1):
            mark = memory.mark_of(self._proc, pid)
            shares[mark] = shares.get(mark, 0) + memory.resident_bytes(self._proc, pid)
            if count % PROCESSES_A_TURN == 0:
                yield True
        # The dead are seen without their memory: what they had before still counts.
        self._shares = {mark: max(size, self._shares.get(mark, 0) // 2) for mark, size in shares.items()}

    def has_killed(self) -> bool:
        """Whether the kernel has killed something since the last time, at this limit and not because the machine was full."""
        text = os.pread(self._control, 512, 0)
        killed, full = _count(text, KILLED) or 0, _count(text, FULL)
        rose = killed > self._killed and (full > self._full if full is not None else self._was_full())
        if killed > self._killed:
            self._full = full or 0
        self._killed = killed
        return rose

    def _was_full(self) -> bool:
        """Whether there was ever as much as the limit, but for what is charged at once."""
        return self._most is None or int(os.pread(self._most, 32, 0)) >= self.limit - self.limit // LIMIT_PARTS

    def suspect(self, running: list[Command]) -> int | None:
        """The mark of the command that it must have been."""
        if self._shares:
            mark = max(self._shares, key=lambda each: self._shares[each])
            if mark is not None and self._shares[mark] * LARGE >= self.limit:
                return mark
        return running[-1].mark if running else None


def _count(text: bytes, name: bytes) -> int | None:
    at = text.find(name)
    return None if at < 0 else int(text[at + len(name) :].split()[0])
