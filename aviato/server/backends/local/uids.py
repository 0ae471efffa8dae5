"""Host ids for sandboxes, where the server is the real root: some of its own for each."""

from __future__ import annotations

import grp
import os
import pwd
import random

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.local import subordinate
from aviato.server.backends.local.accounts import NOBODY

RANGE = 100_000_000
"""Chosen from at random, so that two servers of one machine, which know nothing of each other, do not meet."""
FALLBACK_RANGE = 4096
FEWEST_RANGES = 1024
"""With less room for such ranges each sandbox has one id."""
REMEDY = "run the container with a range of user ids (a /etc/subuid entry), or the server as an ordinary user"


def available(base: int, uid_map: str, each: int = 1) -> range:
    """The ids to choose from: the first ones of ranges, as far apart as those are long.

    Args:
        base: first id of the usual range.
        uid_map: contents of /proc/self/uid_map.
        each: how many a sandbox is to have, if there is room.

    Raises:
        SandboxUnavailableError: this user namespace has one id only.
    """
    lines = [tuple(int(field) for field in line.split()) for line in uid_map.splitlines() if line.strip()]
    for first, _, count in lines:
        if first <= base < first + count:
            end = min(first + count, 2**31 - 1)
            if each > 1 and end - base >= each * FEWEST_RANGES:
                return range(base, end - each + 1, each)
            return range(base, min(base + RANGE, end))
    first, _, count = max(lines, key=lambda line: line[2], default=(0, 0, 0))
    if count < 2:
        message = f"the server is root in a user namespace with one id, so sandboxes cannot have ids of their own: {REMEDY}"
        raise SandboxUnavailableError(message, reason="uid_range", retryable=False)
    end = first + count
    if end - FALLBACK_RANGE <= NOBODY < end:
        end = max(NOBODY, first + 2)  # Daemons of the machine have it.
    return range(max(first + 1, end - FALLBACK_RANGE), end)


def holders(base: int, uid_map: str) -> dict[str, int]:
    """Accounts of the machine with ids that sandboxes would have, or with ranges of such: the last of theirs, by their names.

    Args:
        base: as of `available`.
        uid_map: the same.
    """
    choices = available(base, uid_map, subordinate.IDS)
    last = choices[-1] + choices.step - 1
    found = [(user.pw_name, user.pw_uid, 1) for user in pwd.getpwall()]
    found += [(group.gr_name, group.gr_gid, 1) for group in grp.getgrall()]
    found += [one for path in subordinate.FILES for one in subordinate.ranges_in(path)]
    held: dict[str, int] = {}
    for name, first, count in found:
        if count and first <= last and first + count > choices.start:
            held[name] = max(held.get(name, 0), first + count - 1)
    return held


class UidPool:
    """Gives each sandbox ids, by the first of them; for an ordinary user it is always the user's own."""

    def __init__(self, choices: range | None) -> None:
        self._choices = choices
        self._used: set[int] = set()

    @property
    def each(self) -> int:
        """How many a sandbox has, from its first on."""
        return 1 if self._choices is None else self._choices.step

    def take(self) -> tuple[int, int]:
        """A uid and a gid that no other sandbox here has.

        Raises:
            SandboxUnavailableError: all are in use.
        """
        if self._choices is None:
            return os.geteuid(), os.getegid()
        if len(self._used) >= len(self._choices):
            raise SandboxUnavailableError(
                f"all {len(self._choices)} sandboxes that can have host uids have them", reason="uid_range"
            )
        while True:
            uid = random.choice(self._choices)
            if uid not in self._used:
                self._used.add(uid)
                return uid, uid

    def keep(self, uid: int) -> None:
        """A sandbox that was there already has it."""
        first = 0 if self._choices is None else self._choices.start
        self._used.add(uid - (uid - first) % self.each)

    def give_back(self, uid: int) -> None:
        """Its sandbox is gone."""
        self._used.discard(uid)
