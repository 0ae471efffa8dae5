"""What servers of a claim have left in its namespace, and do not come back for."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError
from aviato.server.backends.kubernetes.cluster import ClusterError
from aviato.server.backends.kubernetes.labels import CLAIM, PLACE, SERVER
from aviato.server.backends.kubernetes.reach import NotReached, has_begun

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato.server.backends.kubernetes.cluster import Cluster
    from aviato.server.backends.kubernetes.options import ClusterOptions
    from aviato.server.backends.kubernetes.pod_maker import PodMaker
    from aviato.server.backends.kubernetes.pods import Pods

log = logging.getLogger(__name__)

ABANDONED_SECONDS = 300.0
"""So long a pod that has ended is kept for its server, or for another one that is asked for it."""


class LeftBehind:
    """Takes away what another server would have gone on with, or ended, by now.

    Args:
        cluster: which has it.
        pods: what is known of them.
        maker: has them made.
        options: of this server.
        server: this one.
        remove: takes all away that a place has.
    """

    def __init__(
        self,
        cluster: Cluster,
        pods: Pods,
        maker: PodMaker,
        options: ClusterOptions,
        server: str,
        remove: Callable[[str], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._maker = maker
        self._options = options
        self._server = server
        self._remove = remove
        self._begun: set[str] = set()
        """Places from pools that are known to have been told what they are."""
        self._secrets: set[str] = set()
        self._secrets_at = 0.0
        self._seen: dict[tuple[str, str], float] = {}

    async def look(self) -> None:
        """Take away what has been there since long before."""
        now, found = time.monotonic(), await self._found()
        self._seen = {one: self._seen.get(one, now) for one in found}
        for (place_id, how), since in self._seen.items():
            patience = ABANDONED_SECONDS + (0 if how == "ended" else self._options.start_seconds)
            if now - since <= patience or (how == "runs" and not await self._waits(place_id)):
                continue
            try:
                await self._remove(place_id)
            except ClusterError as error:
                log.warning("the pod of %s cannot be removed: %s", place_id, error.message)

    async def _found(self) -> set[tuple[str, str]]:
        """Places that nobody may go on with, and how far each is: of other servers, and any whose end nobody has seen."""
        of_pools = set(self._maker.waits_without_end())
        self._begun &= of_pools
        found = {(one, "ended") for one in self._pods.ended()}
        found |= {(one, "waits") for one in (*self._pods.of_others("waits"), *self._maker.without_pod(self._server))}
        found |= {(one, "runs") for one in of_pools - self._begun}
        if time.monotonic() >= self._secrets_at:
            self._secrets_at = time.monotonic() + ABANDONED_SECONDS
            try:
                self._secrets = await places_with_secrets(self._cluster, self._options.claim, f"{SERVER}!={self._server}")
            except ClusterError as error:
                log.warning("the Secrets of other servers cannot be listed: %s", error.message)
        # A server that died may have made, or left, no more than that.
        return found | {(one, "alone") for one in self._secrets if self._pods.of(one) is None}

    async def _waits(self, place_id: str) -> bool:
        """Whether a pod of a pool that another server has labelled is known to have been told nothing."""
        state = self._pods.of(place_id)
        if state is None:
            return False
        try:
            key = await self._maker.key(place_id)
            begun = await has_begun(self._cluster, state, self._options.reach, key)
        except (NotReached, AviatoError) as error:
            log.debug("whether sandbox %s has begun is not known: %s", place_id, error)
            return False
        if begun:
            self._begun.add(place_id)
        return not begun


async def places_with_secrets(cluster: Cluster, claim: str, whose: str) -> set[str]:
    """The places of a claim that have a Secret.

    Args:
        cluster: which has them.
        claim: of the servers.
        whose: a selector of the label of their server.

    Raises:
        ClusterError: they cannot be listed.
    """
    found, _ = await cluster.all(cluster.path("secrets"), f"{CLAIM}={claim},{PLACE},{whose}", names_alone=True)
    return {str(one["metadata"]["labels"][PLACE]) for one in found}
