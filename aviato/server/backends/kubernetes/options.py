"""What a server's settings say of its cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reach = Literal["direct", "forward"]
Security = Literal["restricted", "root"]
Objects = Literal["pods", "agent-sandbox"]


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where and how pods are made.

    Attributes:
        context: of the kubeconfig; None: the pod's own account, else the current context.
        namespace: of the pods; None: the server's own, else the context's.
        claim: what all servers of the same sandboxes are called; pods, secrets and policies have it as a label.
        init_image: which brings aviato-init in; None: the server's own, where that is a pod.
        reach: `direct` over the pod network, `forward` through the API server.
        security: `restricted` as Pod Security has it, or `root` inside.
        runtime_class: of the pods.
        pull_secrets: names of secrets with credentials of registries.
        pool_label: the label of nodes that says in which pool one is.
        start_seconds: how long a pod may be on its way.
        objects: what is asked for: `pods`, or with `agent-sandbox` Sandboxes of kubernetes-sigs/agent-sandbox, whose controller
            makes the pods.
        warm_pool: a SandboxWarmPool of the namespace, from which those are taken that want what it gives; None: none.
    """

    context: str | None = None
    namespace: str | None = None
    claim: str = "aviato"
    init_image: str | None = None
    reach: Reach = "direct"
    security: Security = "restricted"
    runtime_class: str | None = None
    pull_secrets: tuple[str, ...] = ()
    pool_label: str = "aviato.dev/pool"
    start_seconds: float = 300.0
    objects: Objects = "pods"
    warm_pool: str | None = None
