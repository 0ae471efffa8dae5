"""What is known of the objects of a kind that a claim has, by one list of all of them and one watch from there on."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from aviato.server.backends.kubernetes.cluster import GONE, ClusterError
from aviato.server.backends.kubernetes.labels import CLAIM, PLACE

if TYPE_CHECKING:
    from aviato.server.backends.kubernetes.cluster import Cluster, Object

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0


class Known(Protocol):
    """What is kept of an object."""

    @property
    def uid(self) -> str:
        """Of it."""


T = TypeVar("T", bound=Known)


class Watched(ABC, Generic[T]):
    """Objects that are labelled with a claim, each of a place of its own; those without a place are nobody's.

    Args:
        cluster: which has them.
        kind: in the plural.
        claim: of its servers.
        group: of the API, with its version.
    """

    def __init__(self, cluster: Cluster, kind: str, claim: str, *, group: str = "api/v1") -> None:
        self._cluster = cluster
        self._kind = kind
        self._selector = f"{CLAIM}={claim}"
        self._path = cluster.path(kind, group=group)
        self._known: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Look at all of them, and begin to watch.

        Raises:
            ClusterError: they cannot be listed.
        """
        version = await self._list()
        self._task = asyncio.create_task(self._watch(version), name=self._kind)

    async def close(self) -> None:
        """Watch no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def changed(self, place_id: str) -> None:
        """Wait until something else is said of a place than now."""
        event = self._changed.setdefault(place_id, asyncio.Event())
        try:
            await event.wait()
        finally:
            if self._changed.get(place_id) is event:
                del self._changed[place_id]

    def _say(self, place_id: str) -> None:
        """Wake who waits for a place."""
        if (event := self._changed.pop(place_id, None)) is not None:
            event.set()

    def ids(self) -> list[str]:
        """The places that have one."""
        return sorted(self._known)

    def of(self, place_id: str) -> T | None:
        """What is known of that of a place; None: there is none."""
        return self._known.get(place_id)

    def uid(self, place_id: str) -> str | None:
        """Of the object that a place has."""
        return None if (known := self._known.get(place_id)) is None else known.uid

    def take(self, place_id: str, found: Object) -> None:
        """Hear of an object, as it was just made or changed, or as the watch has it, which comes later."""
        version = str(found["metadata"].get("resourceVersion") or "")
        if version.isdecimal():
            if int(version) < self._versions.get(place_id, 0) and found["metadata"].get("uid") == self.uid(place_id):
                return
            self._versions[place_id] = int(version)
        self._keep(place_id, found)

    def forget(self, place_id: str) -> None:
        """A place has none any more."""
        self._versions.pop(place_id, None)

    @abstractmethod
    def _keep(self, place_id: str, found: Object) -> None:
        """Keep what an object says."""

    async def _list(self) -> str:
        before = set(self.ids())  # One that is made meanwhile may be in no list yet.
        found, version = await self._cluster.all(self._path, self._selector)
        there = {one["metadata"]["labels"].get(PLACE): one for one in found}
        for place_id in before - there.keys():
            self._lose(place_id)
        for place_id, one in there.items():
            if place_id is not None:
                self.take(place_id, one)
        return version

    def _lose(self, place_id: str) -> None:
        """Somebody else than this server has taken the object of a place away."""
        self.forget(place_id)

    async def _watch(self, version: str) -> None:
        while True:
            try:
                async for kind, one in self._cluster.watch(self._path, self._selector, version):
                    version = str(one["metadata"]["resourceVersion"])
                    if kind != "BOOKMARK":
                        self._hear(kind, one)
                continue
            except ClusterError as error:
                if error.status != GONE:
                    log.warning("the %s cannot be watched now: %s", self._kind, error.message)
                    await asyncio.sleep(AGAIN_SECONDS)
                    if error.is_unreachable:
                        continue
            except (KeyError, ValueError, TypeError) as error:
                log.warning("the watch of the %s said what cannot be read: %r", self._kind, error)
                await asyncio.sleep(AGAIN_SECONDS)
            try:
                version = await self._list()
            except ClusterError as error:
                log.warning("the %s cannot be listed now: %s", self._kind, error.message)
                await asyncio.sleep(AGAIN_SECONDS)

    def _hear(self, kind: str, one: Object) -> None:
        place_id = one["metadata"]["labels"].get(PLACE)
        if place_id is None:
            return
        if kind != "DELETED":
            self.take(place_id, one)
        elif self.uid(place_id) == one["metadata"]["uid"]:
            self._lose(place_id)
