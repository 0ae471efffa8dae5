"""Host uids for sandboxes, where the server is the real root: one of its own for each."""

from __future__ import annotations

import os
import random

from aviato.exceptions import SandboxUnavailableError

RANGE = 100_000_000
"""Chosen from at random, so that two servers of one machine, which know nothing of each other, do not meet."""
FALLBACK_RANGE = 4096
REMEDY = "run the container with a range of user ids (a /etc/subuid entry), or the server as an ordinary user"


def available(base: int, uid_map: str) -> range:
    """The ids to choose from.

    Args:
        base: first id of the usual range.
        uid_map: contents of /proc/self/uid_map.

    Raises:
        SandboxUnavailableError: this user namespace has one id only.
    """
    lines = [tuple(int(field) for field in line.split()) for line in uid_map.splitlines() if line.strip()]
    for first, _, count in lines:
        if first <= base < first + count:
            return range(base, min(base + RANGE, first + count, 2**31 - 1))
    first, _, count = max(lines, key=lambda line: line[2], default=(0, 0, 0))
    if count < 2:
        message = f"the server is root in a user namespace with one id, so sandboxes cannot have ids of their own: {REMEDY}"
        raise SandboxUnavailableError(message, reason="uid_range", retryable=False)
    return range(max(first + 1, first + count - FALLBACK_RANGE), first + count)


class UidPool:
    """Gives each sandbox an id; for an ordinary user it is always the user's own."""

    def __init__(self, choices: range | None) -> None:
        self._choices = choices
        self._used: set[int] = set()

    def take(self) -> tuple[int, int]:
        """A uid and a gid that no other sandbox here has.

        Raises:
            SandboxUnavailableError: all are in use.
        """
        if self._choices is None:
            return os.geteuid(), os.getegid()
        if len(self._used) >= len(self._choices):
            raise SandboxUnavailableError(f"all {len(self._choices)} host uids for sandboxes are in use", reason="uid_range")
        while True:
            uid = random.choice(self._choices)
            if uid not in self._used:
                self._used.add(uid)
                return uid, uid

    def keep(self, uid: int) -> None:
        """A sandbox that was there already has it."""
        self._used.add(uid)

    def give_back(self, uid: int) -> None:
        """Its sandbox is gone."""
        self._used.discard(uid)
