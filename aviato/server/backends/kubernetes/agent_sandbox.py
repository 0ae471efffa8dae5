"""The objects of kubernetes-sigs/agent-sandbox, v1beta1: what is asked for in place of a pod, and what they say. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from aviato.server.backends.base import ResolvedImage, SandboxSpec
from aviato.server.backends.kubernetes.labels import CLAIM, PREFIX, SERVER
from aviato.server.backends.kubernetes.limits import pod_limits
from aviato.server.backends.kubernetes.objects import ENDS_LATER_SECONDS, name_of, network_of, pod_template
from aviato.server.images.oci_reference import parse_oci_reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.server.backends.kubernetes.options import ClusterOptions

Object = dict[str, Any]

VERSION = "v1beta1"
CORE_GROUP, EXTENSIONS_GROUP = "agents.x-k8s.io", "extensions.agents.x-k8s.io"
CORE, EXTENSIONS = f"apis/{CORE_GROUP}/{VERSION}", f"apis/{EXTENSIONS_GROUP}/{VERSION}"
"""Groups of the API, with their version."""
SANDBOXES, CLAIMS, POOLS, TEMPLATES = "sandboxes", "sandboxclaims", "sandboxwarmpools", "sandboxtemplates"
POD_NAME = f"{CORE_GROUP}/pod-name"
"""An annotation of a Sandbox: its pod, where that is not called as it is."""
FITS, GIVES = f"{PREFIX}fits", f"{PREFIX}gives"
"""Annotations of a SandboxTemplate, the first of its pods, too: which sandboxes it is for, and in words."""
NO_POOL = ("WarmPoolNotFound", "TemplateNotFound")
"""Reasons of a SandboxClaim that nothing can be taken from."""
_RECONCILER_ERROR = "ReconcilerError"
_QUOTA = "exceeded quota"


@dataclass(frozen=True, kw_only=True)
class Gives:
    """What the sandboxes of a warm pool have; one that wants this is taken from it, and others are made.

    Attributes:
        image: as sandboxes name it.
        network: `none` or `internet`.
        requests: of resources.
        limits: of resources.
    """

    image: str
    network: str
    requests: Mapping[str, float]
    limits: Mapping[str, float]

    @classmethod
    def of(cls, spec: SandboxSpec) -> Gives | None:
        """What a sandbox would have to be given; None: that no pool gives."""
        if spec.mounted_files or spec.runway_ids or spec.tower_ids:
            return None
        return cls(image=spec.image.reference, network=network_of(spec), requests=dict(spec.requests), limits=dict(spec.limits))

    @classmethod
    def read(cls, text: str) -> Gives | None:
        """From an annotation; None: it is none of ours."""
        try:
            said = json.loads(text)
            return cls(image=said["image"], network=said["network"], requests=said["requests"], limits=said["limits"])
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def text(self) -> str:
        """As the annotation has it."""
        whole = {"image": self.image, "network": self.network, "requests": self.requests, "limits": self.limits}
        return json.dumps(whole, sort_keys=True)

    def pods(self, options: ClusterOptions) -> Object:
        """The template of its pods, with the annotation by which they are known.

        Args:
            options: of the servers that will have them: others make other pods.
        """
        image = ResolvedImage(reference=self.image, kind="oci", image_id=parse_oci_reference(self.image).name)
        spec = SandboxSpec(sandbox_id="pool", image=image, network=self.network, requests=self.requests, limits=self.limits)
        made = pod_template(spec, str(image.image_id), pod_limits(spec.requests, spec.limits), options)
        digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:32]
        made["metadata"]["annotations"][FITS] = digest
        return made

    def fits(self, options: ClusterOptions) -> str:
        """What a pod has to be annotated with to be such a sandbox."""
        return _digest_of(self.pods(options))


def _digest_of(pods: Object) -> str:
    """By which the pods of a template are known."""
    return str(pods["metadata"]["annotations"][FITS])


def sandbox(pod: Object, spec: SandboxSpec, options: ClusterOptions) -> Object:
    """The Sandbox whose pod is this one.

    Args:
        pod: as it would be made without.
        spec: of it.
        options: of the server.
    """
    known = pod["metadata"]
    return {
        "apiVersion": f"{CORE_GROUP}/{VERSION}",
        "kind": "Sandbox",
        "metadata": {key: known[key] for key in ("name", "labels", "ownerReferences") if key in known},
        "spec": {
            "podTemplate": {"metadata": {key: known[key] for key in ("labels", "annotations")}, "spec": pod["spec"]},
            "service": False,
            **_shutdown(spec, options),
        },
    }


def claim(spec: SandboxSpec, labels: dict[str, str], options: ClusterOptions, owner: Object) -> Object:
    """What takes a sandbox from the warm pool. Without variables: with those the pool would be passed over.

    Args:
        spec: of it.
        labels: of it.
        options: of the server.
        owner: what it goes with.
    """
    lifecycle = _shutdown(spec, options)
    return {
        "apiVersion": f"{EXTENSIONS_GROUP}/{VERSION}",
        "kind": "SandboxClaim",
        "metadata": {"name": name_of(spec.sandbox_id), "labels": labels, "ownerReferences": [owner]},
        "spec": {
            "warmPoolRef": {"name": str(options.warm_pool)},
            **({"lifecycle": lifecycle} if lifecycle else {}),
        },
    }


def _shutdown(spec: SandboxSpec, options: ClusterOptions) -> Object:
    """When the cluster takes it away, whether or not a server is there to do so."""
    if spec.max_lifetime_seconds is None:
        return {}
    seconds = math.ceil(spec.max_lifetime_seconds + options.start_seconds) + 2 * ENDS_LATER_SECONDS
    when = datetime.now(UTC) + timedelta(seconds=seconds)
    return {"shutdownTime": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "shutdownPolicy": "Delete"}


def warm_pool(name: str, count: int, gives: Gives, options: ClusterOptions) -> list[Object]:
    """A SandboxTemplate of what servers with these options have, and a SandboxWarmPool of it.

    Args:
        name: of both.
        count: of sandboxes that are kept ready.
        gives: what they have.
        options: of the servers.
    """
    known: Object = {"labels": {CLAIM: options.claim}}
    if options.namespace is not None:
        known["namespace"] = options.namespace
    pods = gives.pods(options)
    template = {
        "apiVersion": f"{EXTENSIONS_GROUP}/{VERSION}",
        "kind": "SandboxTemplate",
        "metadata": {"name": name, **known, "annotations": {FITS: _digest_of(pods), GIVES: gives.text}},
        "spec": {
            "podTemplate": pods,
            "service": False,
            # Theirs would let in nobody but their router, and all of the internet out; ours holds by the pods' labels.
            "networkPolicyManagement": "Unmanaged",
            "envVarsInjectionPolicy": "Disallowed",
        },
    }
    pool = {
        "apiVersion": f"{EXTENSIONS_GROUP}/{VERSION}",
        "kind": "SandboxWarmPool",
        "metadata": {"name": name, **known},
        "spec": {"replicas": count, "sandboxTemplateRef": {"name": name}, "updateStrategy": {"type": "Recreate"}},
    }
    return [template, pool]


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a Sandbox or a SandboxClaim says.

    Attributes:
        uid: of it.
        reason: of its condition `Ready`; empty: no controller has said anything.
        words: why it is not ready, for people.
        sandbox: of a claim: the Sandbox that it was given.
        is_quota: a quota of the namespace keeps its pod from being made.
        server: whose it is.
    """

    uid: str
    server: str
    reason: str
    words: str
    sandbox: str | None
    is_quota: bool


def said_by(found: Object) -> Said:
    """From the object as the API server has it."""
    status = found.get("status") or {}
    conditions = {str(one.get("type")): one for one in status.get("conditions") or []}
    ready, scheduled = conditions.get("Ready", {}), conditions.get("PodScheduled", {})
    reason = str(ready.get("reason") or "")
    words = f"{reason}: {ready.get('message') or ''}".rstrip(": ")
    if scheduled.get("status") == "False":
        words = f"{scheduled.get('reason')}: {scheduled.get('message') or ''}".rstrip(": ")
    return Said(
        uid=str(found["metadata"].get("uid", "")),
        server=str((found["metadata"].get("labels") or {}).get(SERVER, "")),
        reason=reason,
        words=words,
        sandbox=str((status.get("sandbox") or {}).get("name") or "") or None,
        is_quota=reason == _RECONCILER_ERROR and _QUOTA in words,
    )


def pod_of(found: Object) -> str:
    """What the pod of a Sandbox is called."""
    return str((found["metadata"].get("annotations") or {}).get(POD_NAME) or found["metadata"]["name"])


def is_controlled_by(found: Object, uid: str) -> bool:
    """Whether an object is that of a controlling one, and not another of the same name."""
    references = found["metadata"].get("ownerReferences") or []
    return any(one.get("controller") and one.get("uid") == uid for one in references)
