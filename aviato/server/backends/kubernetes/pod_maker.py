"""Who has the pods of sandboxes made: the server itself, of which this is the whole of it, or a controller in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.backends.kubernetes.objects import name_of
from aviato.server.backends.kubernetes.start_errors import did_not_start

if TYPE_CHECKING:
    from aviato.server.backends.base import SandboxSpec
    from aviato.server.backends.kubernetes.cluster import Cluster, Object
    from aviato.server.backends.kubernetes.options import ClusterOptions
    from aviato.server.backends.kubernetes.pods import Pods


class PodMaker:
    """Makes pods.

    Args:
        cluster: which has them.
        pods: what is known of them.
        options: of the server.
    """

    def __init__(self, cluster: Cluster, pods: Pods, options: ClusterOptions) -> None:
        self._cluster = cluster
        self._pods = pods
        self._options = options

    async def open(self, owner: Object) -> None:
        """Get ready.

        Args:
            owner: see `keep`.

        Raises:
            ClusterError: the cluster refuses it.
        """

    async def keep(self, owner: Object) -> None:
        """Have what all sandboxes of the claim need in the cluster.

        Args:
            owner: what goes with all servers of the claim.

        Raises:
            ClusterError: the cluster refuses it.
        """

    async def close(self) -> None:
        """Let go of what was opened."""

    async def gives(self, spec: SandboxSpec) -> bool:
        """Whether `claim` may find a pod for a sandbox that is there already.

        Raises:
            ClusterError: that cannot be looked for.
        """
        return False

    async def claim(self, spec: SandboxSpec, server: str, owner: Object) -> bool:
        """Have a pod that is there already; False: there is none, and `make` has to be asked.

        Raises:
            AviatoError: somebody has taken it away, or nobody answers.
            ClusterError: the cluster refuses it.
        """
        return False

    async def make(self, spec: SandboxSpec, pod: Object) -> None:
        """Have a pod made.

        Raises:
            AviatoError: that cannot be had here.
            ClusterError: the cluster refuses it.
        """
        self._pods.take(spec.sandbox_id, await self._cluster.make(self._cluster.path("pods"), pod))

    def server(self, place_id: str) -> str | None:
        """Which server has a place that has a pod; None: it has none."""
        return self._pods.server(place_id)

    def without_pod(self, server: str) -> list[str]:
        """Places of other servers than this one that have been asked for, and have no pod."""
        return []

    def waits_without_end(self) -> list[str]:
        """Places of other servers than this one whose process 1 waits for its plan as long as nobody has proved its key."""
        return []

    def waits_for(self, place_id: str) -> str | None:
        """Why a place has no pod yet, where that is known."""
        return None

    def look_for(self, place_id: str) -> None:
        """See why a place has no pod yet.

        Raises:
            AviatoError: it will have none.
        """
        raise did_not_start(place_id, "somebody has deleted its pod", "deleted")

    async def key(self, place_id: str) -> bytes:
        """Of the process 1 of a place that has none in its Secret.

        Raises:
            AviatoError: there is none, or it cannot be read.
        """
        raise did_not_start(place_id, "its Secret has no key", "start_failed")

    async def label(self, place_id: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> None:
        """Say more of a place's pod, or something else.

        Raises:
            ClusterError: the cluster refuses it.
        """
        state = self._pods.of(place_id)
        metadata = {"labels": labels, **({} if annotations is None else {"annotations": annotations})}
        path = self._cluster.path("pods", name_of(place_id) if state is None else state.name)
        self._pods.take(place_id, await self._cluster.ask("PATCH", path, {"metadata": metadata}, patch=True))

    async def remove(self, place_id: str) -> None:
        """Take the pod of a place away, and what makes it.

        Raises:
            ClusterError: the cluster refuses it.
        """
        state = self._pods.of(place_id)
        name = name_of(place_id) if state is None else state.name
        await self._cluster.remove(self._cluster.path("pods", name), grace_seconds=0)
