"""What an API server refuses, told apart by its words: rights that are missing, what is not admitted, quotas."""

from __future__ import annotations

import pytest

from aviato.exceptions import SandboxResourceExhaustedError, SandboxUnavailableError
from aviato.server.backends.kubernetes.cluster import ClusterError

RBAC = (
    'pods is forbidden: User "system:serviceaccount:sandboxes:default" cannot create resource "pods" in API group "" in the '
    'namespace "sandboxes"'
)
QUOTA = 'pods "aviato-1" is forbidden: exceeded quota: few, requested: pods=1, used: pods=3, limited: pods=3'
SECURITY = 'pods "aviato-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true (pod must not set it)'
RUNTIME = 'pods "aviato-1" is forbidden: pod rejected: RuntimeClass "none" not found'


@pytest.mark.parametrize(
    ("status", "message", "reason", "advice", "retryable"),
    [
        (403, RBAC, "forbidden", "deploy/kubernetes/overlays/pods/role.yaml", False),
        (403, "HTTP 403", "forbidden", "role.yaml", False),
        (400, 'admission webhook "policy" denied the request: no', "not_admitted", "kubectl describe namespace", False),
        (401, "Unauthorized", "unauthenticated", "log in to the cluster again", False),
        (422, 'Pod "aviato-1" is invalid: spec.volumes', "not_admitted", "is invalid", False),
        (413, "the request is too large", "not_admitted", "too large", False),
        (403, RBAC.replace('""', '"agents.x-k8s.io"'), "forbidden", "overlays/agent-sandbox/role.yaml", False),
        (403, SECURITY, "not_admitted", "its Pod Security level", False),
        (403, RUNTIME, "not_admitted", "kubectl get runtimeclass", False),
        (0, "the API server cannot be reached", "cluster_unreachable", "cannot be reached", True),
    ],
)
def test_why_and_what_to_do(status, message, reason, advice, retryable):
    error = ClusterError(status, message).as_error("the pod could not be made", "sb-1")
    assert isinstance(error, SandboxUnavailableError) and error.is_infrastructure
    assert (error.reason, error.retryable) == (reason, retryable)
    assert message in str(error) and advice in str(error)


def test_a_quota():
    error = ClusterError(403, QUOTA).as_error("the pod could not be made", "sb-1")
    assert isinstance(error, SandboxResourceExhaustedError) and error.reason == "quota"
