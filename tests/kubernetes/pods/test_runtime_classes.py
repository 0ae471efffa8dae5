"""Runtime classes of pods: one that the nodes have, one that no node has, and none of the name."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import aviato
from tests.kubernetes.pods.conftest import Namespace
from tests.kubernetes.pods.test_failures import doctor, wait_until

HANDLERS = ("runc", "crun")


def handler(namespace: Namespace) -> str:
    """What the nodes' containerd knows, if the cluster says so by a class of that name."""
    there = {one["handler"] for one in json.loads(namespace.kubectl("get", "runtimeclasses", "-o", "json"))["items"]}
    known = [one for one in HANDLERS if one in there]
    if not known:
        pytest.skip(f"no RuntimeClass of the cluster has one of the handlers {', '.join(HANDLERS)}")
    return known[0]


@contextmanager
def runtime_class(of: str) -> Iterator[str]:
    """One of its own with this handler."""
    name = f"aviato-test-{uuid.uuid4().hex[:8]}"
    body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": of}
    subprocess.run(["kubectl", "create", "-f", "-"], input=json.dumps(body), text=True, check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["kubectl", "delete", "runtimeclass", name, "--ignore-not-found"], check=True, capture_output=True)


def test_pods_have_it(make_kubernetes: Callable[..., Any], namespace: Namespace) -> None:
    """And a class that goes while a server has it is told apart from a right that is missing."""
    with runtime_class(handler(namespace)) as name:
        make_kubernetes(kubernetes_runtime_class=name)
        with aviato.Session() as session:
            sandbox = session.sandbox()
            assert sandbox.exec(["echo", "x"]).result().stdout == "x\n"
            assert namespace.pod(str(sandbox.sandbox_id))["spec"]["runtimeClassName"] == name
            subprocess.run(["kubectl", "delete", "runtimeclass", name], check=True, capture_output=True)
            with pytest.raises(aviato.SandboxFailedError, match=rf'"{name}" not found.*kubectl get runtimeclass') as caught:
                session.sandbox().wait()
            assert caught.value.is_infrastructure
            assert sandbox.exec(["echo", "on"]).result().stdout == "on\n"


def test_one_that_the_cluster_does_not_know(make_kubernetes: Callable[..., Any], namespace: Namespace) -> None:
    make_kubernetes(kubernetes_runtime_class="aviato-none")
    with aviato.Session() as session:
        with pytest.raises(
            aviato.SandboxUnavailableError, match=r'"aviato-none" not found.*kubectl get runtimeclass'
        ) as caught:
            session.sandbox().wait()
        assert caught.value.is_infrastructure
    said = doctor(namespace, AVIATO_KUBERNETES_RUNTIME_CLASS="aviato-none", AVIATO_KUBERNETES_INIT_IMAGE=namespace.init_image)
    assert 'RuntimeClass "aviato-none" not found' in said and "kubectl get runtimeclass" in said, said


@pytest.mark.timeout(360)
def test_one_that_no_node_has(make_kubernetes: Callable[..., Any]) -> None:
    """A sandbox of it waits, and says why in the node's words: an event, and a busy kubelet sends few of them a second."""
    with runtime_class("aviato-no-such-handler") as name:
        make_kubernetes(kubernetes_runtime_class=name)
        with aviato.Session() as session:
            sandbox = session.sandbox()
            sandbox.start().result()

            def why() -> str:
                assert sandbox.get_status() == "pending"
                return str(sandbox.status_reason)

            wait_until(lambda: "aviato-no-such-handler" in why(), 280)
            sandbox.stop().result()


def test_a_start_that_takes_too_long_is_given_up(make_kubernetes: Callable[..., Any], namespace: Namespace) -> None:
    """In the words of its events; the first is the test's, since a busy kubelet sends them minutes later."""
    with runtime_class("aviato-no-such-handler") as name:
        make_kubernetes(kubernetes_runtime_class=name, kubernetes_start=30)
        with aviato.Session() as session:
            sandbox = session.sandbox()
            sandbox.start().result()
            own = f"aviato.dev/sandbox={sandbox.sandbox_id}"
            wait_until(lambda: namespace.all("pods", own))
            pod = namespace.all("pods", own)[0]["metadata"]
            event = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{pod['name']}.test", "namespace": namespace.name},
                "involvedObject": {"kind": "Pod", "name": pod["name"], "namespace": namespace.name, "uid": pod["uid"]},
                "type": "Warning",
                "reason": "FailedCreatePodSandBox",
                "message": "no runtime for aviato-no-such-handler",
                "lastTimestamp": pod["creationTimestamp"],
            }
            namespace.kubectl("create", "-f", "-", given=json.dumps(event))
            with pytest.raises(aviato.SandboxFailedError, match=r"longer than 30 s.*aviato-no-such-handler") as caught:
                sandbox.exec(["true"]).result()
            assert caught.value.is_infrastructure
