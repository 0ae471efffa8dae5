"""What is known of the pods of a claim."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from aviato.server.backends.kubernetes.labels import SANDBOX, SERVER
from aviato.server.backends.kubernetes.objects import CONTAINER
from aviato.server.backends.kubernetes.pod_state import PodState, state_of
from aviato.server.backends.kubernetes.watching import Watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.backends.kubernetes.cluster import Cluster, Object
    from aviato.server.backends.kubernetes.pod_state import Phase

ANOTHER = "its pod was lost; the cluster's controller has made another one in its place, which has nothing of it"


class Pods(Watched[PodState]):
    """The pods of a claim, as they were said to be last.

    A place that is expected to has one pod ever, the first that is seen: what a controller makes in place of one that was lost
    is another sandbox.

    Args:
        cluster: which has them.
        claim: of its servers.
        server: this one.
        on_end: is told the place of each that ends or disappears, on the loop.
    """

    def __init__(self, cluster: Cluster, claim: str, server: str, on_end: Callable[[str], None]) -> None:
        super().__init__(cluster, "pods", claim)
        self._server = server
        self._servers: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._first: dict[str, str | None] = {}
        """Of places that are expected to have one pod ever: its uid, once it was seen."""
        self._lock = threading.Condition()
        self._on_end = on_end

    def expect(self, place_id: str) -> None:
        """From here on until it is forgotten, a place has the pod that it has now, or that comes next, and no other."""
        self._first.setdefault(place_id, self.uid(place_id))

    def had_one(self, place_id: str) -> bool:
        """Whether a place that is expected to has a pod, or had one."""
        return self._first.get(place_id) is not None

    def _keep(self, place_id: str, found: Object) -> None:
        labels = found["metadata"]["labels"]
        state = state_of(found, CONTAINER)
        server = labels.get(SERVER, "")
        if server != self._server:
            self._first.pop(place_id, None)
        elif place_id in self._first:
            first = self._first[place_id] = self._first[place_id] or state.uid
            if first != state.uid:
                state = replace(state, phase="ended", reason="lost", message=ANOTHER, uid=first)
        self._servers[place_id] = server
        self._places[labels.get(SANDBOX, place_id)] = place_id
        self._set(place_id, state)

    def server(self, place_id: str) -> str | None:
        """Which server has a pod; None: there is none."""
        return self._servers.get(place_id)

    def place(self, sandbox_id: str) -> str | None:
        """The place of a sandbox, where it has a pod."""
        place_id = self._places.get(sandbox_id)
        return place_id if place_id in self._known else None

    def ended(self) -> list[str]:
        """Places whose pods have."""
        return [one for one, state in self._known.items() if state.phase == "ended"]

    def of_others(self, phase: Phase) -> list[str]:
        """Places of other servers than this one whose pods are so far."""
        return [one for one, state in self._known.items() if state.phase == phase and self._servers.get(one) != self._server]

    def forget(self, place_id: str) -> None:
        """It was taken away, and there will be none of it again."""
        super().forget(place_id)
        self._first.pop(place_id, None)
        self._set(place_id, None)

    def _lose(self, place_id: str) -> None:
        super().forget(place_id)
        self._set(place_id, None)

    def wait_ended(self, place_id: str, seconds: float) -> PodState | None:
        """What is said of a pod once it has ended, or after so long. For a thread."""
        with self._lock:
            self._lock.wait_for(lambda: (one := self._known.get(place_id)) is None or one.phase == "ended", seconds)
            return self._known.get(place_id)

    def _set(self, place_id: str, state: PodState | None) -> None:
        before = self._known.get(place_id)
        with self._lock:
            if state is None:
                self._known.pop(place_id, None)
                self._servers.pop(place_id, None)
                for of in [one for one, known in self._places.items() if known == place_id]:
                    del self._places[of]
            else:
                self._known[place_id] = state
            self._lock.notify_all()
        self._say(place_id)
        if before is not None and before.phase != "ended" and (state is None or state.phase == "ended"):
            self._on_end(place_id)
