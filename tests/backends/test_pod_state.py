"""What a pod's status means: a table of what kubelets and schedulers say."""

from __future__ import annotations

from typing import Any

import pytest

from aviato.server.backends.kubernetes.pod_state import last_warning, state_of


def _pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "u"}, "spec": {"nodeName": status.pop("node", None)}, "status": status}


def _waits(reason: str, name: str = "sandbox", message: str = "why") -> dict[str, Any]:
    return {"name": name, "image": "an/image:1", "state": {"waiting": {"reason": reason, "message": message}}}


def _over(code: int, reason: str = "Error", message: str = "") -> list[dict[str, Any]]:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return [{"name": "sandbox", "imageID": "", "state": state}]


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/2 nodes: Insufficient cpu.",
}

WAITING = [
    ({}, "scheduling", False, False),
    ({"node": "n1"}, "starting", False, False),
    ({"conditions": [UNSCHEDULABLE]}, "unschedulable", False, False),
    ({"node": "n1", "containerStatuses": [_waits("ContainerCreating")]}, "starting", False, False),
    ({"node": "n1", "containerStatuses": [_waits("ErrImagePull")]}, "image_pull", True, False),
    ({"node": "n1", "containerStatuses": [_waits("ImagePullBackOff")]}, "image_pull", True, False),
    ({"node": "n1", "containerStatuses": [_waits("ErrImageNeverPull")]}, "image_not_here", True, True),
    ({"node": "n1", "containerStatuses": [_waits("InvalidImageName")]}, "no_such_name", True, True),
    ({"node": "n1", "containerStatuses": [_waits("CreateContainerConfigError")]}, "start_failed", False, True),
    ({"node": "n1", "initContainerStatuses": [_waits("ImagePullBackOff", "aviato-init")]}, "image_pull", False, False),
]


@pytest.mark.parametrize(("status", "reason", "is_image", "is_final"), WAITING)
def test_why_it_waits(status, reason, is_image, is_final):
    found = state_of(_pod(phase="Pending", **status), "sandbox")
    assert (found.phase, found.reason, found.is_image, found.is_final) == ("waits", reason, is_image, is_final)
    assert found.left is None


ENDED = [
    ({"phase": "Succeeded", "containerStatuses": _over(0, "Completed")}, "stopped", "stopped"),
    ({"phase": "Failed", "containerStatuses": _over(81)}, "lifetime", "lifetime"),
    ({"phase": "Failed", "containerStatuses": _over(82)}, "idle", "idle"),
    ({"phase": "Failed", "containerStatuses": _over(83)}, "orphaned", "orphaned"),
    ({"phase": "Failed", "containerStatuses": _over(84)}, "exited", "exited"),
    ({"phase": "Failed", "containerStatuses": _over(137, "OOMKilled")}, "oom", "oom"),
    # A kubelet says so, too, where the kernel has killed a command of the sandbox at any time.
    ({"phase": "Failed", "containerStatuses": _over(82, "OOMKilled")}, "idle", "idle"),
    ({"phase": "Failed", "containerStatuses": _over(137)}, "lost", None),
    ({"phase": "Failed", "containerStatuses": _over(85, message="no such step")}, "start_failed", None),
    ({"phase": "Failed", "reason": "DeadlineExceeded"}, "lifetime", "lifetime"),
    ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, "evicted", None),
    (
        {"phase": "Failed", "reason": "Evicted", "message": "Pod ephemeral local storage usage exceeds the total limit"},
        "disk",
        "disk",
    ),
    (
        {"phase": "Failed", "reason": "Evicted", "message": 'Usage of EmptyDir volume "workspace" exceeds the limit "1Mi".'},
        "disk",
        "disk",
    ),
    ({"phase": "Failed", "reason": "NodeLost", "message": "Node n1 is gone"}, "node", None),
    ({"phase": "Failed"}, "lost", None),
]


@pytest.mark.parametrize(("status", "reason", "left"), ENDED)
def test_how_it_ended(status, reason, left):
    found = state_of(_pod(node="n1", **status), "sandbox")
    assert (found.phase, found.reason, found.left) == ("ended", reason, left)


def test_one_that_is_being_deleted_has_ended():
    pod = _pod(node="n1", phase="Running", containerStatuses=[{"name": "sandbox", "state": {"running": {}}}])
    assert state_of(pod, "sandbox").phase == "runs"
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = state_of(pod, "sandbox")
    assert (found.phase, found.reason, found.left) == ("ended", "deleted", None)


def test_what_went_wrong_last():
    events = [
        {"type": "Warning", "reason": "Failed", "message": "older", "lastTimestamp": "2026-01-01T00:00:01Z"},
        {"type": "Normal", "reason": "Pulled", "message": "newest", "lastTimestamp": "2026-01-01T00:00:03Z"},
        {
            "type": "Warning",
            "reason": "FailedScheduling",
            "message": "newer",
            "lastTimestamp": None,
            "eventTime": "2026-01-01T00:00:02Z",
        },
    ]
    assert last_warning(events) == "FailedScheduling: newer"
    assert last_warning(events[1:2]) is None
