"""What all objects of the servers of one claim belong to, and what holds of the network of all its pods."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aviato.server.backends.kubernetes import objects

if TYPE_CHECKING:
    from aviato.server.backends.kubernetes.cluster import Cluster, Object

log = logging.getLogger(__name__)

NETWORKING = "apis/networking.k8s.io/v1"


class Claim:
    """One claim, as a server has to find it: whatever belongs to a claim that is gone is taken away by Kubernetes.

    Args:
        cluster: which has it.
        name: of it.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.owner: Object = {}
        """What new objects of the claim are to name; nothing before `hold`."""

    async def hold(self) -> bool:
        """Have the claim and its policies in the cluster, as this version has them; whether the claim is another one now.

        Raises:
            ClusterError: the cluster refuses it, or does not answer.
        """
        wanted = objects.claim_map(self._name)
        there = await self._cluster.have(self._cluster.path("configmaps"), wanted)
        owner = objects.owner_of(there)
        is_new = owner != self.owner
        self.owner = owner
        for policy in objects.policies(self._name, owner):
            await self._keep(policy)
        return is_new

    async def _keep(self, policy: Object) -> None:
        name = policy["metadata"]["name"]
        path = self._cluster.path("networkpolicies", group=NETWORKING)
        there = await self._cluster.have(path, policy)
        owned = {"ownerReferences": policy["metadata"]["ownerReferences"]}
        is_owned = there["metadata"].get("ownerReferences") == owned["ownerReferences"]
        if is_owned and _said(there["spec"]) == _said(policy["spec"]):
            return
        log.warning("NetworkPolicy %s is not as this server has it, and is corrected; add one of another name beside it", name)
        body = {"metadata": owned, "spec": policy["spec"]}
        await self._cluster.ask("PATCH", f"{path}/{name}", body, patch=True)


def _said(found: object) -> object:
    """Without what is empty: an API server leaves that out."""
    if isinstance(found, dict):
        return {name: _said(value) for name, value in found.items() if value not in ([], {}, None)}
    return [_said(one) for one in found] if isinstance(found, list) else found
