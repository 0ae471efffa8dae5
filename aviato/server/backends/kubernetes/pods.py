"""What is known of the pods of a claim, by one watch of all of them."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from aviato.server.backends.kubernetes.cluster import GONE, ClusterError
from aviato.server.backends.kubernetes.labels import CLAIM, PLACE, SANDBOX, SERVER
from aviato.server.backends.kubernetes.objects import CONTAINER
from aviato.server.backends.kubernetes.pod_state import PodState, state_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.backends.kubernetes.cluster import Cluster, Object

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0


class Pods:
    """The pods of a claim, as they were said to be last.

    Args:
        cluster: which has them.
        claim: of its servers.
        on_end: is told the place of each that ends or disappears, on the loop.
    """

    def __init__(self, cluster: Cluster, claim: str, on_end: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._selector = f"{CLAIM}={claim}"
        self._path = cluster.path("pods")
        self._states: dict[str, PodState] = {}
        self._servers: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._lock = threading.Condition()
        self._task: asyncio.Task[None] | None = None
        self._on_end = on_end

    async def open(self) -> None:
        """Look at all of them, and begin to watch.

        Raises:
            ClusterError: they cannot be listed.
        """
        version = await self._list()
        self._task = asyncio.create_task(self._watch(version), name="pods")

    async def close(self) -> None:
        """Watch no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def ids(self) -> list[str]:
        """The sandboxes that have a pod."""
        return sorted(self._states)

    def state(self, sandbox_id: str) -> PodState | None:
        """What is known of the pod of a sandbox; None: there is none."""
        return self._states.get(sandbox_id)

    def note(self, pod: Object) -> PodState:
        """A pod as it was just made or changed: what the watch says of it comes later."""
        labels = pod["metadata"]["labels"]
        place_id = labels[PLACE]
        state = state_of(pod, CONTAINER)
        self._servers[place_id] = labels.get(SERVER, "")
        self._places[labels.get(SANDBOX, place_id)] = place_id
        self._set(place_id, state)
        return state

    def server(self, place_id: str) -> str | None:
        """Which server has a pod; None: there is none."""
        return self._servers.get(place_id)

    def place(self, sandbox_id: str) -> str | None:
        """The place of a sandbox, where it has a pod."""
        place_id = self._places.get(sandbox_id)
        return place_id if place_id in self._states else None

    def ended_of_others(self, server: str) -> list[str]:
        """Places that have ended, of other servers than this one."""
        return [one for one, state in self._states.items() if state.phase == "ended" and self._servers.get(one) != server]

    def forget(self, sandbox_id: str) -> None:
        """It was taken away."""
        self._set(sandbox_id, None)

    async def changed(self, sandbox_id: str) -> None:
        """Wait until something else is said of a pod than now."""
        event = self._changed.setdefault(sandbox_id, asyncio.Event())
        try:
            await event.wait()
        finally:
            if self._changed.get(sandbox_id) is event:
                del self._changed[sandbox_id]

    def wait_ended(self, sandbox_id: str, seconds: float) -> PodState | None:
        """What is said of a pod once it has ended, or after so long. For a thread."""
        with self._lock:
            self._lock.wait_for(lambda: (one := self._states.get(sandbox_id)) is None or one.phase == "ended", seconds)
            return self._states.get(sandbox_id)

    async def _list(self) -> str:
        before = set(self._states)  # One that is made meanwhile may be in no list yet.
        found, version = await self._cluster.all(self._path, self._selector)
        there = {pod["metadata"]["labels"].get(PLACE): pod for pod in found}
        for sandbox_id in before - there.keys():
            self._set(sandbox_id, None)
        for pod in there.values():
            self.note(pod)
        return version

    async def _watch(self, version: str) -> None:
        while True:
            try:
                async for kind, pod in self._cluster.watch(self._path, self._selector, version):
                    version = str(pod["metadata"]["resourceVersion"])
                    if kind == "DELETED":
                        sandbox_id = pod["metadata"]["labels"][PLACE]
                        known = self._states.get(sandbox_id)
                        if known is not None and known.uid == pod["metadata"]["uid"]:
                            self._set(sandbox_id, None)
                    elif kind != "BOOKMARK":
                        self.note(pod)
                continue
            except ClusterError as error:
                if error.status != GONE:
                    log.warning("the pods cannot be watched now: %s", error.message)
                    await asyncio.sleep(AGAIN_SECONDS)
                    if error.is_unreachable:
                        continue
            except (KeyError, ValueError, TypeError) as error:
                log.warning("the watch of the pods said what cannot be read: %r", error)
                await asyncio.sleep(AGAIN_SECONDS)
            try:
                version = await self._list()
            except ClusterError as error:
                log.warning("the pods cannot be listed now: %s", error.message)
                await asyncio.sleep(AGAIN_SECONDS)

    def _set(self, sandbox_id: str, state: PodState | None) -> None:
        before = self._states.get(sandbox_id)
        with self._lock:
            if state is None:
                self._states.pop(sandbox_id, None)
                self._servers.pop(sandbox_id, None)
                for of in [one for one, place_id in self._places.items() if place_id == sandbox_id]:
                    del self._places[of]
            else:
                self._states[sandbox_id] = state
            self._lock.notify_all()
        if (event := self._changed.pop(sandbox_id, None)) is not None:
            event.set()
        if before is not None and before.phase != "ended" and (state is None or state.phase == "ended"):
            self._on_end(sandbox_id)
