"""Directories that sandboxes have left as they were made, kept for others to have them: see `init/src/pool/layers.rs`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aviato.server.backends.local.directories import Directories
    from aviato.server.backends.local.zygote import Zygote

log = logging.getLogger(__name__)

KEPT_SECONDS = 4.0
"""Less than the zygote keeps what belongs to them."""
REST_SECONDS = 0.05
"""What was on its way in a socket is closed by a worker of the kernel's, some turns of its clock after the socket has gone."""
MOST = 32


class Lent(NamedTuple):
    """What another sandbox needs of one to have its place.

    Attributes:
        zygote, number: who has its root, as the request of which number.
        lower: the directories below its layers.
    """

    zygote: Zygote
    number: int
    lower: str


class LeftPlace(NamedTuple):
    """A place whose sandbox is gone.

    Attributes:
        sandbox_id: which it was; its directory has that name, among those that are left.
        uid: host id to which all of it belongs, so that the next sandbox has the same.
        lent: what else there is of it.
        since: when it was left, by the loop's clock.
    """

    sandbox_id: str
    uid: int
    lent: Lent
    since: float


class LeftPlaces:
    """A bounded number of them, none for long.

    Args:
        places: where they are.
        give_back: gets the host ids of those that are removed.
    """

    def __init__(self, places: Directories, give_back: Callable[[int], None]) -> None:
        self._directories = places
        self._give_back = give_back
        self._left: dict[str, LeftPlace] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._removing: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._left)

    def take(self, lower: str, zygote: Zygote) -> LeftPlace | None:
        """The first that was left with this below it, once the kernel has had the time to close what its sandbox had open."""
        now = asyncio.get_running_loop().time()
        for place in self._left.values():
            if now - place.since < REST_SECONDS:
                break
            if place.lent.lower == lower and place.lent.zygote is zygote:
                return self._left.pop(place.sandbox_id)
        return None

    async def bury(self, zygote: Zygote | None, dead: Iterable[tuple[str, int, Lent | None]]) -> list[str]:
        """Keep the places of those of the dead that others can have; whose those are.

        Args:
            zygote: that which lives.
            dead: their ids, host ids, and what they have lent.
        """
        asked = {lent.number: (one, uid, lent) for one, uid, lent in dead if lent is not None and lent.zygote is zygote}
        if zygote is None or not asked or self._closed:
            return []

        def late(kept: list[int]) -> None:
            """Their sandboxes are taken for gone, with their ids."""
            zygote.forget(kept)
            self._spawn(asyncio.to_thread(self.remove, [asked[number][0] for number in kept]))

        path, left_path = self._directories.path, self._directories.left_path
        found = await zygote.bury([(number, path(one), left_path(one)) for number, (one, *_) in asked.items()], late)
        if self._closed:
            late(found)
        else:
            self._keep([asked[number] for number in found])
        return [asked[number][0] for number in found]

    def remove(self, sandbox_ids: Iterable[str]) -> set[str]:
        """Take their places away; for a thread.

        Returns:
            Whose resist, which the next server tries again.
        """
        resisting = set()
        for sandbox_id in sandbox_ids:
            try:
                self._directories.remove_left(sandbox_id)
            except OSError as error:
                log.warning("the place of sandbox %s cannot be taken away yet: %r", sandbox_id, error)
                resisting.add(sandbox_id)
        return resisting

    async def clear(self) -> None:
        """Keep none."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._removing:
            await asyncio.wait(self._removing)
        await self._let_go([self._left.pop(one) for one in list(self._left)])

    async def close(self) -> None:
        """Keep none from now on."""
        self._closed = True
        await self.clear()

    def _keep(self, found: Sequence[tuple[str, int, Lent]]) -> None:
        loop = asyncio.get_running_loop()
        for sandbox_id, uid, lent in found:
            self._left[sandbox_id] = LeftPlace(sandbox_id, uid, lent, loop.time())
        if found and self._timer is None:
            self._timer = loop.call_later(KEPT_SECONDS, self._remove_surplus)
        if len(self._left) > MOST:
            self._remove_surplus()

    def _remove_surplus(self) -> None:
        """Nobody has asked for them in a while, or they are too many."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        places = list(self._left.values())
        surplus = [one for one in places if loop.time() - one.since >= KEPT_SECONDS]
        surplus += places[len(surplus) : len(places) - MOST]
        if surplus:
            self._spawn(self._let_go([self._left.pop(one.sandbox_id) for one in surplus]))
        self._timer = loop.call_later(KEPT_SECONDS / 4, self._remove_surplus) if self._left else None

    async def _let_go(self, places: Sequence[LeftPlace]) -> None:
        for zygote in {place.lent.zygote for place in places}:
            zygote.forget([place.lent.number for place in places if place.lent.zygote is zygote])
        resisting = await asyncio.to_thread(self.remove, [place.sandbox_id for place in places])
        for place in places:
            if place.sandbox_id not in resisting:
                self._give_back(place.uid)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)
