"""What `aviato doctor` says of a cluster with agent-sandbox."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.kubernetes.agent_sandbox.conftest import Agents
from tests.kubernetes.pods.test_failures import doctor, poor


def test_rights_that_are_missing(namespace: Agents, tmp_path: Path) -> None:
    variables = {"AVIATO_KUBERNETES_OBJECTS": "agent-sandbox", **poor(namespace, tmp_path)}
    said = doctor(namespace, **variables)
    assert "create sandboxes" in said and "sandboxclaims" not in said, said
    assert "kubectl apply -k deploy/kubernetes/overlays/agent-sandbox" in said
    said = doctor(namespace, AVIATO_KUBERNETES_WARM_POOL="some", **variables)
    assert "create sandboxclaims" in said and "get sandboxtemplates" in said, said


def test_a_pool(namespace: Agents, make_pool: Callable[..., str]) -> None:
    claim = f"c-{uuid.uuid4().hex[:8]}"
    own = {"claim": claim, "objects": "agent-sandbox", "init_image": namespace.init_image, "warm_pool": f"{claim}-none"}
    variables = {f"AVIATO_KUBERNETES_{name.upper()}": value for name, value in own.items()}
    said = doctor(namespace, **variables)
    assert "served in v1beta1" in said and f"there is no SandboxWarmPool {claim}-none" in said, said
    assert f"aviato kubernetes warm-pool {claim}-none" in said
    pool = make_pool(claim, "--limit", "memory=128Mi", count=1, ready=False)
    variables["AVIATO_KUBERNETES_WARM_POOL"] = pool
    said = doctor(namespace, **variables)
    assert "0 ready, with" in said and '"memory": 134217728' in said, said
    said = doctor(namespace, **variables, AVIATO_KUBERNETES_SECURITY="root")
    assert "printed for a server of another version, or with other settings" in said, said
    (found,) = (one for one in namespace.all("sandboxtemplates.extensions.agents.x-k8s.io") if one["metadata"]["name"] == pool)
    other = json.dumps({"metadata": {"annotations": {"aviato.dev/gives": None}}})
    namespace.kubectl("patch", "sandboxtemplates.extensions.agents.x-k8s.io", pool, "--type=merge", "-p", other)
    said = doctor(namespace, **variables)
    assert "is none of ours" in said, (said, found)
