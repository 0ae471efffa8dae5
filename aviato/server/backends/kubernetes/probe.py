"""What `aviato doctor` says of a cluster."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from aviato.server.backends.base import Check
from aviato.server.backends.kubernetes import agent_sandbox
from aviato.server.backends.kubernetes.cluster import ClusterError

if TYPE_CHECKING:
    from aviato.server.backends.kubernetes.cluster import Cluster, Object
    from aviato.server.backends.kubernetes.options import ClusterOptions

KEEPING = ("create", "get", "list", "watch", "delete", "patch")
"""What is done to objects that are made, watched and taken away."""
RIGHTS: tuple[tuple[str, str, str, str], ...] = (
    *(("", "pods", "", verb) for verb in KEEPING),
    *(("", "secrets", "", verb) for verb in ("create", "get", "list", "delete", "patch")),
    *(("", "configmaps", "", verb) for verb in ("create", "get")),
    *(("networking.k8s.io", "networkpolicies", "", verb) for verb in ("create", "get", "patch")),
    ("", "events", "", "list"),
)
"""What a server does: group, kind, subresource, verb."""
FORWARD = ("", "pods", "portforward", "get")
AGENT_SANDBOX = tuple((agent_sandbox.CORE_GROUP, agent_sandbox.SANDBOXES, "", verb) for verb in KEEPING)
WARM_POOL = (
    *((agent_sandbox.EXTENSIONS_GROUP, agent_sandbox.CLAIMS, "", verb) for verb in KEEPING),
    *((agent_sandbox.EXTENSIONS_GROUP, kind, "", "get") for kind in (agent_sandbox.POOLS, agent_sandbox.TEMPLATES)),
)
ROLES = {
    "pods": "kubectl apply -k deploy/kubernetes/overlays/pods",
    "agent-sandbox": "kubectl apply -k deploy/kubernetes/overlays/agent-sandbox",
}
"""What gives them, by what a server asks for."""
REGISTRY_SECRETS = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg")
INSTALL = "install agent-sandbox (kubernetes-sigs) in a release that serves v1beta1, with its extensions"


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
    role = ROLES[options.objects]
    try:
        wanted = (*RIGHTS, *((FORWARD,) if options.reach == "forward" else ()))
        if options.objects == "agent-sandbox":
            if not (found := await _agent_sandbox(cluster, options)).ok:
                return [*checks, found]
            checks.append(found)
            wanted += AGENT_SANDBOX if options.warm_pool is None else (*AGENT_SANDBOX, *WARM_POOL)
        missing = [text for one in wanted if (text := await _missing(cluster, one)) is not None]
    except ClusterError as error:
        return [*checks, Check(name="rights", ok=False, detail=error.message, remedy=role)]
    if missing:
        detail = f"in namespace {cluster.namespace} the server may not {', '.join(missing)}"
        return [*checks, Check(name="rights", ok=False, detail=detail, remedy=f"{role} -n {cluster.namespace}")]
    checks.append(Check(name="rights", ok=True, detail="pods, secrets and policies of the namespace"))
    checks += [await _pull_secret(cluster, name) for name in options.pull_secrets]
    if options.warm_pool is not None:
        checks.append(await _warm_pool(cluster, options, options.warm_pool))
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


async def _agent_sandbox(cluster: Cluster, options: ClusterOptions) -> Check:
    """Whether the cluster knows the objects that are asked for."""
    wanted = {agent_sandbox.CORE: {agent_sandbox.SANDBOXES}}
    if options.warm_pool is not None:
        wanted[agent_sandbox.EXTENSIONS] = {agent_sandbox.CLAIMS, agent_sandbox.POOLS, agent_sandbox.TEMPLATES}
    for group, kinds in wanted.items():
        found = await cluster.find(f"/{group}")
        served = set() if found is None else {one["name"] for one in found["resources"]}
        if kinds - served:
            detail = f"the cluster does not have {', '.join(sorted(kinds - served))} of {group.removeprefix('apis/')}"
            return Check(name="agent-sandbox", ok=False, detail=detail, remedy=INSTALL)
    return Check(name="agent-sandbox", ok=True, detail=f"served in {agent_sandbox.VERSION}")


async def _pull_secret(cluster: Cluster, name: str) -> Check:
    """Whether nodes are given credentials. Kubernetes goes on without, and says so of no pod; images may need none."""
    detail, ok = f"{name} has credentials of a registry", True
    try:
        kept = await cluster.find(cluster.path("secrets", name))
    except ClusterError as error:
        detail, ok = error.message, False
    else:
        if kept is None:
            detail, ok = f"there is no Secret {name} in namespace {cluster.namespace}", False
        elif kept.get("type") not in REGISTRY_SECRETS:
            detail, ok = f"Secret {name} is of type {kept.get('type')}, which nodes do not read", False
    words = f"--docker-server=HOST --docker-username=USER --docker-password=PASSWORD -n {cluster.namespace}"
    remedy = None if ok else f"kubectl create secret docker-registry {shlex.quote(name)} {words}"
    return Check(name="pull secret", ok=ok, detail=detail, remedy=remedy, required=False)


async def _warm_pool(cluster: Cluster, options: ClusterOptions, name: str) -> Check:
    """Whether sandboxes can be taken from the pool. Without it they are made, so that nothing waits for this."""

    def check(detail: str, remedy: str | None) -> Check:
        return Check(name="warm pool", ok=remedy is None, detail=detail, remedy=remedy, required=False)

    again = f"aviato kubernetes warm-pool {shlex.quote(name)} | kubectl apply -f -"
    again += ", with the server's own variables (AVIATO_KUBERNETES_…); aviato kubernetes warm-pool --help"
    try:
        pool, template = await pool_and_template(cluster, name)
    except ClusterError as error:
        return check(error.message, again)
    if pool is None:
        return check(f"there is no SandboxWarmPool {name} in namespace {cluster.namespace}; all sandboxes are made anew", again)
    annotations = {} if template is None else template["metadata"].get("annotations") or {}
    gives = agent_sandbox.Gives.read(annotations.get(agent_sandbox.GIVES, ""))
    if gives is None:
        return check(f"the template of SandboxWarmPool {name} is none of ours, or is not there", again)
    if options.init_image is not None and annotations.get(agent_sandbox.FITS) != gives.fits(options):
        return check(f"SandboxWarmPool {name} was printed for a server of another version, or with other settings", again)
    ready = (pool.get("status") or {}).get("readyReplicas", 0)
    return check(f"{ready} ready, with {gives.text}", None)


async def pool_and_template(cluster: Cluster, name: str) -> tuple[Object | None, Object | None]:
    """A SandboxWarmPool, and what its sandboxes are made from; None: it is not there.

    Raises:
        ClusterError: they cannot be read.
    """
    pool = await cluster.find(cluster.path(agent_sandbox.POOLS, name, group=agent_sandbox.EXTENSIONS))
    if pool is None:
        return None, None
    template = str(pool["spec"]["sandboxTemplateRef"]["name"])
    return pool, await cluster.find(cluster.path(agent_sandbox.TEMPLATES, template, group=agent_sandbox.EXTENSIONS))


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
        remedy = error.admission_remedy(cluster.namespace)
        return Check(name="pods", ok=False, detail=f"the namespace takes no such pod: {error.message}", remedy=remedy)
    level = "restricted Pod Security" if options.security == "restricted" else "root inside"
    return Check(name="pods", ok=True, detail=f"taken by the namespace, with {level}")
