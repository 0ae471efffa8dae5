"""Who waits, and whose turn is next: owners take turns, and so do the clients of each. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class _Owner:
    """The clients of one owner in the order of their turns, each with the tickets of those that wait for it."""

    lines: OrderedDict[str, list[int]] = field(default_factory=OrderedDict)
    count: int = 0


class FairQueue:
    """A queue in which each client gets as many turns as any other, however many it has waiting; one's own are in order.

    An owner can have any number of clients, so owners take turns first: more clients give it no more of them.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[str | None, _Owner] = OrderedDict()
        self._places: dict[str, tuple[str | None, str, int]] = {}
        self._names: dict[int, str] = {}
        self._next_ticket = 0

    def __len__(self) -> int:
        return len(self._places)

    def count(self, owner: str | None, client: str | None = None) -> int:
        """How many wait for an owner, or for one of its clients."""
        found = self._owners.get(owner)
        if found is None:
            return 0
        return found.count if client is None else len(found.lines.get(client, ()))

    def add(self, name: str, owner: str | None, client: str) -> None:
        """Wait behind what the same client has waiting; who had nothing has its turn after all that wait now."""
        ticket = self._next_ticket
        self._next_ticket += 1
        found = self._owners.setdefault(owner, _Owner())
        found.lines.setdefault(client, []).append(ticket)
        found.count += 1
        self._places[name] = owner, client, ticket
        self._names[ticket] = name

    def pop(self) -> str:
        """Take out whose turn it is; client and owner then have their next turn after all others.

        Raises:
            KeyError: nobody waits.
        """
        owner = next(iter(self._owners), None)
        if owner not in self._owners:
            raise KeyError("nobody waits")
        found = self._owners[owner]
        client, line = next(iter(found.lines.items()))
        name = self._names[line[0]]
        self._owners.move_to_end(owner)
        found.lines.move_to_end(client)
        self.remove(name)
        return name

    def remove(self, name: str) -> None:
        """Wait no more; unknown ones are fine."""
        place = self._places.pop(name, None)
        if place is None:
            return
        owner, client, ticket = place
        del self._names[ticket]
        found = self._owners[owner]
        line = found.lines[client]
        del line[bisect_left(line, ticket)]
        found.count -= 1
        if not line:
            del found.lines[client]
        if not found.lines:
            del self._owners[owner]

    def position(self, name: str) -> int | None:
        """Its place, 1 is next, as long as nobody else comes or goes; None if it does not wait."""
        place = self._places.get(name)
        if place is None:
            return None
        owner, client, ticket = place
        found = self._owners[owner]
        own = bisect_left(found.lines[client], ticket)
        before = _ahead({one: len(line) for one, line in found.lines.items()}, client, own)
        return _ahead({one: theirs.count for one, theirs in self._owners.items()}, owner, before) + 1


def _ahead(lengths: Mapping[Any, int], mine: object, own: int) -> int:
    """How many are taken before the one that has `own` before it in its own line, where lines take turns in this order."""
    total, most = own, own + 1
    for line, length in lengths.items():
        if line == mine:
            most = own
        else:
            total += min(length, most)
    return total
