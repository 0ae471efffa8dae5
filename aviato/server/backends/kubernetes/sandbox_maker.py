"""Pods that the controller of kubernetes-sigs/agent-sandbox makes, and those that it has ready."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.kubernetes import agent_sandbox, objects
from aviato.server.backends.kubernetes.agent_sandbox import CLAIMS, CORE, EXTENSIONS, SANDBOXES, Gives, Said
from aviato.server.backends.kubernetes.cluster import CONFLICT, FORBIDDEN, NOT_FOUND, ClusterError
from aviato.server.backends.kubernetes.labels import CLAIM, PLACE, SERVER
from aviato.server.backends.kubernetes.pod_maker import PodMaker
from aviato.server.backends.kubernetes.probe import pool_and_template
from aviato.server.backends.kubernetes.start_errors import did_not_start
from aviato.server.backends.kubernetes.watching import Watched
from aviato.server.link.handshake import key_of_pod

if TYPE_CHECKING:
    from aviato.server.backends.base import SandboxSpec
    from aviato.server.backends.kubernetes.cluster import Cluster, Object
    from aviato.server.backends.kubernetes.options import ClusterOptions
    from aviato.server.backends.kubernetes.pods import Pods

log = logging.getLogger(__name__)

CONTROLLER_SECONDS = 60.0
"""So long a controller may say nothing of what it was asked for; less where a pod may be on its way for less."""
PART_OF_START = 0.8
LOOK_SECONDS, LONGEST_LOOK_SECONDS = 0.1, 2.0
POOL_SECONDS = 30.0
"""How old what is known of a warm pool may be."""
CONTROLLER_REMEDY = "look whether it runs, with its extensions: kubectl get pods -A | grep agent-sandbox-controller"
MISSING_REMEDY = "the cluster does not have agent-sandbox with its API v1beta1; install it, or set --kubernetes-objects pods"


class AskedFor(Watched[Said]):
    """The Sandboxes, or the SandboxClaims, of a claim of servers, as they were said to be last."""

    def _keep(self, place_id: str, found: Object) -> None:
        self._known[place_id] = agent_sandbox.said_by(found)
        self._say(place_id)

    def forget(self, place_id: str) -> None:
        """See `Watched`."""
        super().forget(place_id)
        self._known.pop(place_id, None)
        self._say(place_id)


class SandboxMaker(PodMaker):
    """Asks for Sandboxes, or for SandboxClaims of those that are ready. See `PodMaker`.

    Labels of a Sandbox's pod are those of its template, which its controller brings back: so both are changed. Those of a pod
    from a warm pool are changed in the pod alone: what it is labelled with beside its template stays, and a pod that the
    controller makes in its place has none of it.
    """

    def __init__(self, cluster: Cluster, pods: Pods, options: ClusterOptions) -> None:
        super().__init__(cluster, pods, options)
        self._sandboxes = AskedFor(cluster, SANDBOXES, options.claim, group=CORE)
        self._claims = AskedFor(cluster, CLAIMS, options.claim, group=EXTENSIONS)
        self._has_claims = False
        self._pool_key: bytes | None = None
        self._fits: str | None = None
        self._looked_at = -POOL_SECONDS
        self._since: dict[str, float] = {}
        """Of places that have no pod yet: when it was asked for."""
        self._words: dict[str, str] = {}
        """What the Sandbox says that a claim was given."""

    async def open(self, owner: Object) -> None:
        """See `PodMaker`."""
        await self._sandboxes.open()
        try:
            await self._claims.open()
            self._has_claims = True
        except ClusterError as error:
            if error.status not in (NOT_FOUND, FORBIDDEN) or self._options.warm_pool is not None:
                raise
        await self.keep(owner)

    async def keep(self, owner: Object) -> None:
        """See `PodMaker`. The key from which those of a warm pool's pods are made is there then: the first server makes it."""
        if self._options.warm_pool is not None:
            body = objects.pool_key(self._options.claim, self._pool_key or secrets.token_bytes(32), owner)
            self._pool_key = objects.key_in(await self._cluster.make(self._cluster.path("secrets"), body))

    async def close(self) -> None:
        """See `PodMaker`."""
        await self._sandboxes.close()
        await self._claims.close()

    # -- made ----------------------------------------------------------------------------------------------------------

    async def make(self, spec: SandboxSpec, pod: Object) -> None:
        """See `PodMaker`."""
        self._since[spec.sandbox_id] = time.monotonic()
        body = agent_sandbox.sandbox(pod, spec, self._options)
        try:
            found = await self._cluster.make(self._cluster.path(SANDBOXES, group=CORE), body)
        except ClusterError as error:
            raise _missing(error, spec.sandbox_id) from error
        self._sandboxes.take(spec.sandbox_id, found)

    def server(self, place_id: str) -> str | None:
        """See `PodMaker`. As what was asked for says: labels of a pod that its controller brings back may be older."""
        labelled = self._pods.server(place_id)
        said = self._sandboxes.of(place_id) or self._claims.of(place_id)
        return labelled if labelled is None or said is None else said.server or labelled

    def without_pod(self, server: str) -> list[str]:
        """See `PodMaker`."""
        known = [(one, asked.of(one)) for asked in (self._sandboxes, self._claims) for one in asked.ids()]
        others = {place_id for place_id, said in known if said is not None and said.server != server}
        return sorted(one for one in others if self._pods.of(one) is None)

    def waits_without_end(self) -> list[str]:
        """See `PodMaker`. Whose pod is from a pool: in that it waited."""
        return [one for one in self._pods.of_others("runs") if self._claims.of(one) is not None]

    def waits_for(self, place_id: str) -> str | None:
        """See `PodMaker`."""
        if (words := self._words.get(place_id)) is not None:
            return words
        said = self._sandboxes.of(place_id) or self._claims.of(place_id)
        return None if said is None else said.words or "the controller of agent-sandbox has said nothing yet"

    def look_for(self, place_id: str) -> None:
        """See `PodMaker`."""
        self._check(place_id, "Sandbox", self._sandboxes.of(place_id))

    def _check(self, place_id: str, kind: str, said: Said | None) -> Said:
        name = objects.name_of(place_id)
        if said is None:
            raise did_not_start(place_id, f"somebody has deleted its {kind} {name}", "deleted")
        _check_quota(place_id, said)
        patience = min(CONTROLLER_SECONDS, PART_OF_START * self._options.start_seconds)
        if not said.reason and time.monotonic() - self._since.setdefault(place_id, time.monotonic()) > patience:
            message = f"no controller of agent-sandbox has taken up {kind} {name} in {patience:g} s; {CONTROLLER_REMEDY}"
            raise SandboxUnavailableError(message, sandbox_id=place_id, reason="no_controller")
        return said

    async def label(self, place_id: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> None:
        """See `PodMaker`."""
        metadata = {"labels": labels, **({} if annotations is None else {"annotations": annotations})}
        name = objects.name_of(place_id)
        if self._claims.of(place_id) is not None:
            path = self._cluster.path(CLAIMS, name, group=EXTENSIONS)
            self._claims.take(place_id, await self._cluster.ask("PATCH", path, {"metadata": {"labels": labels}}, patch=True))
        else:
            path = self._cluster.path(SANDBOXES, name, group=CORE)
            body = {"metadata": {"labels": labels}, "spec": {"podTemplate": {"metadata": metadata}}}
            self._sandboxes.take(place_id, await self._cluster.ask("PATCH", path, body, patch=True))
        await super().label(place_id, labels, annotations)

    async def remove(self, place_id: str) -> None:
        """See `PodMaker`. What makes pods goes first: else it would make another."""
        name, claimed = objects.name_of(place_id), self._claims.of(place_id)
        if self._has_claims and (claimed is not None or self._sandboxes.of(place_id) is None):
            await self._cluster.remove(self._cluster.path(CLAIMS, name, group=EXTENSIONS))
        given = name if claimed is None or claimed.sandbox is None else claimed.sandbox
        await self._cluster.remove(self._cluster.path(SANDBOXES, given, group=CORE))
        await super().remove(place_id)
        for known in (self._sandboxes, self._claims):
            known.forget(place_id)
        self._since.pop(place_id, None)
        self._words.pop(place_id, None)

    # -- ready ---------------------------------------------------------------------------------------------------------

    async def key(self, place_id: str) -> bytes:
        """See `PodMaker`."""
        uid = self._pods.uid(place_id)
        if self._pool_key is None:  # Another server of the claim has begun to take pods from a pool.
            try:
                kept = await self._cluster.find(self._cluster.path("secrets", objects.pool_key_name(self._options.claim)))
            except ClusterError as error:
                raise error.as_error("the key of the pool cannot be read", place_id) from error
            self._pool_key = None if kept is None else objects.key_in(kept)
        return await super().key(place_id) if uid is None or self._pool_key is None else key_of_pod(self._pool_key, uid)

    async def gives(self, spec: SandboxSpec) -> bool:
        """See `PodMaker`."""
        wanted = None if self._options.warm_pool is None else Gives.of(spec)
        if wanted is None:
            return False
        if time.monotonic() - self._looked_at > POOL_SECONDS:
            self._looked_at = time.monotonic()
            self._fits = await self._fits_now()
        return self._fits is not None and self._fits == wanted.fits(self._options)

    async def _fits_now(self) -> str | None:
        """Which sandboxes the warm pool is for; None: it is not there, or not made by us."""
        _, template = await pool_and_template(self._cluster, str(self._options.warm_pool))
        found = None if template is None else (template["metadata"].get("annotations") or {}).get(agent_sandbox.FITS)
        if found is None:
            log.warning("SandboxWarmPool %s gives no sandboxes of this server: all are made anew", self._options.warm_pool)
        return found

    async def claim(self, spec: SandboxSpec, server: str, owner: Object) -> bool:
        """See `PodMaker`."""
        place_id = spec.sandbox_id
        self._since[place_id] = time.monotonic()
        known = {CLAIM: self._options.claim, PLACE: place_id, SERVER: server}
        body = agent_sandbox.claim(spec, known, self._options, owner)
        try:
            found = await self._cluster.make(self._cluster.path(CLAIMS, group=EXTENSIONS), body)
        except ClusterError as error:
            raise _missing(error, place_id) from error
        self._claims.take(place_id, found)
        uid, pod, pause = str(found["metadata"]["uid"]), None, LOOK_SECONDS
        while pod is None:
            said = self._check(place_id, "SandboxClaim", self._claims.of(place_id))
            if said.reason in agent_sandbox.NO_POOL:
                log.warning("sandbox %s is made anew: %s", place_id, said.words)
                return await self._let_go(place_id)
            if said.sandbox is not None:
                pod = await self._pod_of(place_id, said.sandbox, uid)
            if pod is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._claims.changed(place_id)
                pause = min(1.5 * pause, LONGEST_LOOK_SECONDS)
            elif not await self._labelled(spec, server, pod):
                pod = None
        return self._pods.of(place_id) is not None or await self._let_go(place_id)

    async def _pod_of(self, place_id: str, name: str, claim_uid: str) -> Object | None:
        """The pod of the Sandbox that a claim was given; None: it has none yet."""
        found = await self._cluster.find(self._cluster.path(SANDBOXES, name, group=CORE))
        if found is None or not agent_sandbox.is_controlled_by(found, claim_uid):
            return None
        pod = await self._cluster.find(self._cluster.path("pods", agent_sandbox.pod_of(found)))
        if pod is not None and agent_sandbox.is_controlled_by(pod, str(found["metadata"]["uid"])):
            return pod
        said = agent_sandbox.said_by(found)
        _check_quota(place_id, said)
        self._words[place_id] = said.words
        return None

    async def _labelled(self, spec: SandboxSpec, server: str, pod: Object) -> bool:
        """Make a pod this sandbox's, unless it is not such a one; False: it has changed meanwhile."""
        metadata = pod["metadata"]
        self._words.pop(spec.sandbox_id, None)
        wanted = Gives.of(spec)
        if wanted is None or (metadata.get("annotations") or {}).get(agent_sandbox.FITS) != wanted.fits(self._options):
            self._looked_at = -POOL_SECONDS
            return True  # The template was changed since it was looked at.
        labels, annotations = objects.labels(self._options.claim, server, spec), objects.own_annotations(spec)
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "labels": labels, "annotations": annotations}}
        try:
            found = await self._cluster.ask("PATCH", self._cluster.path("pods", metadata["name"]), body, patch=True)
        except ClusterError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                return False
            raise
        self._pods.take(spec.sandbox_id, found)
        return True

    async def _let_go(self, place_id: str) -> bool:
        """Have no claim any more: what is not from the pool is made."""
        await self.remove(place_id)
        return False


def _check_quota(place_id: str, said: Said) -> None:
    if said.is_quota:
        raise ClusterError(FORBIDDEN, said.words).as_error("the pod could not be made", place_id)


def _missing(error: ClusterError, place_id: str) -> SandboxUnavailableError | ClusterError:
    """Of a cluster that does not know such objects."""
    if error.status != NOT_FOUND:
        return error
    return SandboxUnavailableError(MISSING_REMEDY, sandbox_id=place_id, reason="no_agent_sandbox", retryable=False)
