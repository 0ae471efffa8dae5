"""What `aviato doctor` says of a cluster."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from aviato.server.backends.base import Check
from aviato.server.backends.kubernetes.cluster import ClusterError

if TYPE_CHECKING:
    from aviato.server.backends.kubernetes.cluster import Cluster
    from aviato.server.backends.kubernetes.options import ClusterOptions

RIGHTS: tuple[tuple[str, str, str, str], ...] = (
    *(("", "pods", "", verb) for verb in ("create", "get", "list", "watch", "delete", "patch")),
    *(("", "secrets", "", verb) for verb in ("create", "get", "list", "delete")),
    *(("", "configmaps", "", verb) for verb in ("create", "get")),
    *(("networking.k8s.io", "networkpolicies", "", verb) for verb in ("create", "get")),
    ("", "events", "", "list"),
)
"""What a server does: group, kind, subresource, verb."""
FORWARD = ("", "pods", "portforward", "get")
ROLE = "kubectl apply -k deploy/kubernetes/overlays/pods"


def library_check(remedy: str | None) -> Check:
    """Whether kubernetes-asyncio is there."""
    detail = "installed" if remedy is None else "not installed"
    return Check(name="kubernetes-asyncio", ok=remedy is None, detail=detail, remedy=remedy)


def no_cluster(why: str, context: str | None) -> Check:
    """Nothing says where the cluster is."""
    remedy = "set KUBECONFIG to a kubeconfig file, or run the server in a pod of the cluster"
    if context is not None:
        remedy = f"kubectl config get-contexts, and name one of those in place of {shlex.quote(context)}"
    return Check(name="cluster", ok=False, detail=why, remedy=remedy)


async def look(cluster: Cluster, options: ClusterOptions) -> list[Check]:
    """Ask a cluster."""
    try:
        version = await cluster.ask("GET", "/version")
    except ClusterError as error:
        if error.status in (401, 403):
            remedy = "log in to the cluster again, so that kubectl get pods works as the server's user"
        else:
            remedy = "look whether kubectl version reaches it as the server's user"
        return [Check(name="cluster", ok=False, detail=f"{cluster.address}: {error.message}", remedy=remedy)]
    said = f"Kubernetes {version.get('gitVersion')} at {cluster.address}, namespace {cluster.namespace}"
    checks = [Check(name="cluster", ok=True, detail=said)]
    try:
        wanted = (*RIGHTS, FORWARD) if options.reach == "forward" else RIGHTS
        missing = [text for one in wanted if (text := await _missing(cluster, one)) is not None]
    except ClusterError as error:
        return [*checks, Check(name="rights", ok=False, detail=error.message, remedy=ROLE)]
    if missing:
        detail = f"in namespace {cluster.namespace} the server may not {', '.join(missing)}"
        return [*checks, Check(name="rights", ok=False, detail=detail, remedy=f"{ROLE} -n {cluster.namespace}")]
    checks.append(Check(name="rights", ok=True, detail="pods, secrets and policies of the namespace"))
    if options.init_image is None:
        remedy = (
            "--kubernetes-init-image registry.example.org/aviato/server:0.1.0, an image that deploy/docker/Dockerfile makes"
        )
        return [*checks, Check(name="init image", ok=False, detail="none is named, and this is no pod of it", remedy=remedy)]
    return [*checks, await _takes_pods(cluster, options)]


async def _missing(cluster: Cluster, right: tuple[str, str, str, str]) -> str | None:
    group, kind, part, verb = right
    wanted = {"namespace": cluster.namespace, "group": group, "resource": kind, "subresource": part, "verb": verb}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    answer = await cluster.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return None if answer["status"].get("allowed") else f"{verb} {kind}{'/' + part if part else ''}"


async def _takes_pods(cluster: Cluster, options: ClusterOptions) -> Check:
    """Whether the namespace takes such pods, by having one made that is not kept."""
    from aviato.server.backends.base import SandboxSpec
    from aviato.server.backends.kubernetes import objects
    from aviato.server.backends.kubernetes.limits import pod_limits
    from aviato.server.images.resolved import ResolvedImage
    from aviato.wire.ids import new_sandbox_id

    image = ResolvedImage(reference="probe", kind="oci", image_id="probe")
    spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=image)
    body = objects.pod(spec, "probe", pod_limits({}, {}), options, "probe", None)
    try:
        await cluster.ask("POST", cluster.path("pods"), body, query={"dryRun": "All"})
    except ClusterError as error:
        remedy = f"see kubectl describe namespace {cluster.namespace}: its Pod Security level and its quota"
        return Check(name="pods", ok=False, detail=f"the namespace takes no such pod: {error.message}", remedy=remedy)
    level = "restricted Pod Security" if options.security == "restricted" else "root inside"
    return Check(name="pods", ok=True, detail=f"taken by the namespace, with {level}")
