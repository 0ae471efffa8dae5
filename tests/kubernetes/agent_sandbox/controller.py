"""A stand-in for the controller of kubernetes-sigs/agent-sandbox, in one namespace: what its v1beta1 promises, in few words.

Upstream's own runs in no cluster of these tests. This one looks at everything that is there after each change, and does
what is missing: a pod for each Sandbox, again where it was lost; Sandboxes for each warm pool; a Sandbox for each claim, from
its pool without `env` and made from the template else. Labels and annotations of pods follow those of the Sandbox's template,
and those that somebody else has put beside them stay.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from aviato.server.backends.kubernetes.agent_sandbox import CORE, EXTENSIONS
from aviato.server.backends.kubernetes.cluster import CONFLICT, NOT_FOUND, Cluster, ClusterError

Object = dict[str, Any]

OWN = ("agents.x-k8s.io/", "extensions.agents.x-k8s.io/")
NAME_HASH, POOL_HASH = f"{OWN[0]}sandbox-name-hash", f"{OWN[0]}warm-pool-sandbox"
CLAIM_UID, ASSIGNED, POD_NAME = f"{OWN[0]}claim-uid", f"{OWN[0]}sandbox-name", f"{OWN[0]}pod-name"
KEPT_LABELS, KEPT_ANNOTATIONS = f"{OWN[0]}propagated-labels", f"{OWN[0]}propagated-annotations"
GROUPS = {
    "sandboxes": CORE,
    "sandboxclaims": EXTENSIONS,
    "sandboxwarmpools": EXTENSIONS,
    "sandboxtemplates": EXTENSIONS,
    "pods": "api/v1",
}
LOOK_SECONDS = 1.0


class Controller:
    """One that runs in a thread of its own.

    Attributes:
        ignores: kinds that it does nothing for, as where it was installed without its extensions.
    """

    def __init__(self, namespace: str) -> None:
        self.ignores: set[str] = set()
        self._passes = 0
        self._namespace = namespace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._over = asyncio.Event()
        self._happened = asyncio.Event()
        self._known: dict[str, dict[str, Object]] = {}
        self.errors: list[str] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; nothing of what it made goes."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert not self.errors, self.errors

    def look(self) -> None:
        """Wait until it has looked at all that there is now."""
        wanted = self._passes + 2
        while self._passes < wanted:
            assert self._thread.is_alive()
            time.sleep(0.05)

    def _run(self) -> None:
        self._loop.run_until_complete(self._work())
        self._loop.close()

    async def _work(self) -> None:
        self._cluster = await Cluster.connect(None, self._namespace)
        tasks = [asyncio.create_task(self._watch(kind)) for kind in GROUPS]
        tasks.append(asyncio.create_task(self._act()))
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._cluster.close()
        await asyncio.sleep(0.2)  # TLS connections say goodbye.

    async def _watch(self, kind: str) -> None:
        path = self._path(kind)
        while True:
            with suppress(ClusterError):
                _, version = await self._cluster.all(path, "")
                self._happened.set()
                async for _ in self._cluster.watch(path, "", version):
                    self._happened.set()

    async def _act(self) -> None:
        while True:
            self._happened.clear()
            try:
                await self._reconcile()
            except ClusterError as error:
                if error.status not in (NOT_FOUND, CONFLICT):
                    self.errors.append(error.message)
            self._passes += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._happened.wait()

    async def _reconcile(self) -> None:
        for kind in GROUPS:
            found, _ = await self._cluster.all(self._path(kind), "")
            self._known[kind] = {one["metadata"]["name"]: one for one in found if not one["metadata"].get("deletionTimestamp")}
        for kind, act in (
            ("sandboxwarmpools", self._fill),
            ("sandboxclaims", self._bind),
            ("sandboxes", self._carry),
        ):
            for one in list(self._known[kind].values()):
                if kind not in self.ignores:
                    try:
                        await act(one)
                    except ClusterError as error:
                        if error.status not in (NOT_FOUND, CONFLICT):
                            raise

    # -- pools and claims ----------------------------------------------------------------------------------------------

    async def _fill(self, pool: Object) -> None:
        template = self._known["sandboxtemplates"].get(pool["spec"]["sandboxTemplateRef"]["name"])
        members = [one for one in self._known["sandboxes"].values() if _controls(pool, one)]
        if template is None:
            return
        for _ in range(pool["spec"].get("replicas", 1) - len(members)):
            body = _sandbox_of(template, f"{pool['metadata']['name']}-{uuid.uuid4().hex[:5]}", "SandboxWarmPool", pool)
            body["metadata"]["labels"] = {POOL_HASH: _digest(pool["metadata"]["name"])}
            made = await self._cluster.ask("POST", self._path("sandboxes"), body)
            self._known["sandboxes"][made["metadata"]["name"]] = made
        ready = sum(_is_ready(one) for one in members)
        status = {"replicas": len(members), "readyReplicas": ready}
        await self._status("sandboxwarmpools", pool, status)

    async def _bind(self, claim: Object) -> None:
        lifecycle = claim["spec"].get("lifecycle") or {}
        if _is_over(lifecycle) and lifecycle.get("shutdownPolicy") == "Delete":
            await self._cluster.remove(self._path("sandboxclaims", claim["metadata"]["name"]))
            return
        pool = self._known["sandboxwarmpools"].get(claim["spec"]["warmPoolRef"]["name"])
        given = next((one for one in self._known["sandboxes"].values() if _controls(claim, one)), None)
        template = None if pool is None else self._known["sandboxtemplates"].get(pool["spec"]["sandboxTemplateRef"]["name"])
        if given is None and (pool is None or template is None):
            reason = "WarmPoolNotFound" if pool is None else "TemplateNotFound"
            message = f"SandboxWarmPool {claim['spec']['warmPoolRef']['name']!r} or its template was not found"
            await self._status("sandboxclaims", claim, {"conditions": [_condition("Ready", "False", reason, message)]})
            return
        if given is None:
            assert pool is not None and template is not None
            given = await self._adopted(claim, pool, template) or await self._made(claim, template)
        ready = next((one for one in (given.get("status") or {}).get("conditions") or [] if one["type"] == "Ready"), None)
        ready = ready or _condition("Ready", "False", "SandboxNotReady", "Sandbox is not ready")
        status = {"conditions": [ready], "sandbox": {"name": given["metadata"]["name"]}}
        await self._status("sandboxclaims", claim, status)

    async def _adopted(self, claim: Object, pool: Object, template: Object) -> Object | None:
        if claim["spec"].get("env"):
            return None
        ready = sorted((one for one in self._known["sandboxes"].values() if _controls(pool, one)), key=_is_ready)
        if not ready:
            return None
        name = ready[-1]["metadata"]["name"]
        own = {"metadata": {"annotations": {ASSIGNED: name}}}
        await self._cluster.ask("PATCH", self._path("sandboxclaims", claim["metadata"]["name"]), own, patch=True)
        metadata = _metadata_for(claim, template)
        body = {
            "metadata": {
                "resourceVersion": ready[-1]["metadata"]["resourceVersion"],
                "labels": {POOL_HASH: None, CLAIM_UID: claim["metadata"]["uid"]},
                "annotations": {POD_NAME: name},
                "ownerReferences": [_owner("SandboxClaim", claim)],
            },
            "spec": {"podTemplate": {"metadata": metadata}},
        }
        given = await self._cluster.ask("PATCH", self._path("sandboxes", name), body, patch=True)
        self._known["sandboxes"][name] = given
        return given

    async def _made(self, claim: Object, template: Object) -> Object:
        body = _sandbox_of(template, claim["metadata"]["name"], "SandboxClaim", claim)
        body["metadata"]["labels"] = {CLAIM_UID: claim["metadata"]["uid"]}
        body["spec"]["podTemplate"]["metadata"] = _metadata_for(claim, template)
        if claim["spec"].get("env"):
            body["spec"]["podTemplate"]["spec"]["containers"][0].setdefault("env", []).extend(claim["spec"]["env"])
        made = await self._cluster.ask("POST", self._path("sandboxes"), body)
        self._known["sandboxes"][made["metadata"]["name"]] = made
        return made

    # -- Sandboxes -----------------------------------------------------------------------------------------------------

    async def _carry(self, sandbox: Object) -> None:
        name, spec = sandbox["metadata"]["name"], sandbox["spec"]
        pod = next((one for one in self._known["pods"].values() if _controls(sandbox, one)), None)
        if _is_over(spec):
            if pod is not None:
                await self._cluster.remove(self._path("pods", pod["metadata"]["name"]))
            if spec.get("shutdownPolicy") == "Delete":
                await self._cluster.remove(self._path("sandboxes", name))
            return
        conditions = []
        if pod is None:
            try:
                pod = await self._cluster.ask("POST", self._path("pods"), _pod_of(sandbox))
            except ClusterError as error:
                if error.status == CONFLICT:
                    return  # The pod that was lost is not gone yet.
                conditions = [_condition("Ready", "False", "ReconcilerError", f"Error seen: {error.message}")]
        else:
            await self._same_metadata(sandbox, pod)
        if pod is not None:
            if (sandbox["metadata"].get("annotations") or {}).get(POD_NAME) != pod["metadata"]["name"]:
                own = {"metadata": {"annotations": {POD_NAME: pod["metadata"]["name"]}}}
                await self._cluster.ask("PATCH", self._path("sandboxes", name), own, patch=True)
            conditions = _conditions_of(pod)
        await self._status("sandboxes", sandbox, {"conditions": conditions})

    async def _same_metadata(self, sandbox: Object, pod: Object) -> None:
        wanted, known = _pod_of(sandbox)["metadata"], pod["metadata"]
        changes: dict[str, dict[str, str | None]] = {}
        for what, kept in (("labels", KEPT_LABELS), ("annotations", KEPT_ANNOTATIONS)):
            new: dict[str, str | None] = dict(wanted[what])
            before = (known.get("annotations") or {}).get(kept, "")
            new |= {key: None for key in before.split(",") if key and key not in wanted[what]}
            changes[what] = {key: value for key, value in new.items() if (known.get(what) or {}).get(key) != value}
        if any(changes.values()):
            await self._cluster.ask("PATCH", self._path("pods", known["name"]), {"metadata": changes}, patch=True)

    async def _status(self, kind: str, one: Object, status: Object) -> None:
        before = one.get("status") or {}
        for condition in status.get("conditions", ()):
            old = next((known for known in before.get("conditions") or [] if known["type"] == condition["type"]), None)
            if old is not None and old["status"] == condition["status"]:
                condition["lastTransitionTime"] = old["lastTransitionTime"]
        if any(before.get(key) != value for key, value in status.items()):
            path = self._path(kind, f"{one['metadata']['name']}/status")
            await self._cluster.ask("PATCH", path, {"status": status}, patch=True)

    def _path(self, kind: str, name: str | None = None) -> str:
        return self._cluster.path(kind, name, group=GROUPS[kind])


def _controls(owner: Object, one: Object) -> bool:
    references = one["metadata"].get("ownerReferences") or []
    return any(reference.get("controller") and reference["uid"] == owner["metadata"]["uid"] for reference in references)


def _owner(kind: str, one: Object) -> Object:
    group = CORE if kind == "Sandbox" else EXTENSIONS
    return {
        "apiVersion": group.removeprefix("apis/"),
        "kind": kind,
        "name": one["metadata"]["name"],
        "uid": one["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _sandbox_of(template: Object, name: str, kind: str, owner: Object) -> Object:
    spec = {key: template["spec"][key] for key in ("podTemplate", "service") if key in template["spec"]}
    return {
        "apiVersion": CORE.removeprefix("apis/"),
        "kind": "Sandbox",
        "metadata": {"name": name, "ownerReferences": [_owner(kind, owner)]},
        "spec": spec,
    }


def _metadata_for(claim: Object, template: Object) -> Object:
    metadata = template["spec"]["podTemplate"].get("metadata") or {}
    return {**metadata, "labels": {**(metadata.get("labels") or {}), CLAIM_UID: claim["metadata"]["uid"]}}


def _pod_of(sandbox: Object) -> Object:
    template = sandbox["spec"]["podTemplate"]
    metadata = template.get("metadata") or {}
    labels, annotations = (
        {key: value for key, value in (metadata.get(what) or {}).items() if not key.startswith(OWN)}
        for what in ("labels", "annotations")
    )
    kept = {KEPT_LABELS: ",".join(sorted(labels)), KEPT_ANNOTATIONS: ",".join(sorted(annotations))}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": sandbox["metadata"]["name"],
            "labels": {**labels, NAME_HASH: _digest(sandbox["metadata"]["name"])},
            "annotations": {**annotations, **kept},
            "ownerReferences": [_owner("Sandbox", sandbox)],
        },
        "spec": template["spec"],
    }


def _conditions_of(pod: Object) -> list[Object]:
    status = pod.get("status") or {}
    known = {one["type"]: one for one in status.get("conditions") or []}
    phase, ready = status.get("phase", "Pending"), known.get("Ready", {}).get("status") == "True"
    found = []
    if phase in ("Succeeded", "Failed"):
        found += [_condition(of, "True" if of == "Finished" else "False", f"Pod{phase}", "") for of in ("Finished", "Ready")]
    elif phase == "Running" and ready and status.get("podIP"):
        found.append(_condition("Ready", "True", "DependenciesReady", "Pod is Ready"))
    else:
        found.append(_condition("Ready", "False", "DependenciesNotReady", f"Pod exists with phase: {phase}"))
    scheduled = known.get("PodScheduled", {"status": "Unknown"})
    reason = scheduled.get("reason") or ("PodScheduled" if scheduled["status"] == "True" else "PodSchedulingUnknown")
    return [*found, _condition("PodScheduled", scheduled["status"], reason, scheduled.get("message") or "")]


def _condition(kind: str, status: str, reason: str, message: str) -> Object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}


def _is_ready(sandbox: Object) -> bool:
    conditions = (sandbox.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _is_over(lifecycle: Object) -> bool:
    when = lifecycle.get("shutdownTime")
    return when is not None and datetime.fromisoformat(when.replace("Z", "+00:00")) <= datetime.now(UTC)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
