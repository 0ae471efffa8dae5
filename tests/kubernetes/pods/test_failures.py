"""What goes wrong in a cluster: typed, told apart, and nothing lost that could be kept."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import Task, evaluate
from tests.kubernetes.pods.conftest import Namespace
from tests.kubernetes.pods.left_behind import looking, until_gone


def wait_until(happened: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_sandbox_outlives_its_server_and_is_taken_up(make_kubernetes: Callable[..., Any], namespace: Namespace) -> None:
    server = make_kubernetes(kubernetes_claim="outlives")
    sandbox = aviato.Sandbox.run(detached=True)
    sandbox.write_file("f", b"kept").result()
    running = sandbox.exec(["sh", "-c", "sleep 2; echo done"])
    time.sleep(0.2)
    server.stop(signal.SIGKILL)
    server.restart(**namespace.settings("outlives"))
    assert running.result().stdout == "done\n"
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    assert again.read_file("f").result() == b"kept"
    again.stop().result()
    assert namespace.all("pods", "aviato.dev/claim=outlives") == []


@pytest.mark.parametrize("how", ["deleted", "evicted"])
def test_a_pod_that_is_taken_away_is_the_cluster_s_failure(session: aviato.Session, namespace: Namespace, how: str) -> None:
    """By hand, or as `kubectl drain` does it with all pods of a node."""
    sandbox = session.sandbox().wait()
    running = sandbox.exec(["sh", "-c", "echo begun; sleep 60"])
    assert next(iter(running.stdout)) == "begun\n"
    pod = f"aviato-{sandbox.sandbox_id}"
    if how == "deleted":
        namespace.kubectl("delete", "pod", pod, "--wait=false")
    else:
        names = {"name": pod, "namespace": namespace.name}
        eviction = json.dumps({"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": names})
        path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
        namespace.kubectl("create", "--raw", path, "-f", "-", given=eviction)
    with pytest.raises(aviato.AviatoError) as caught:
        running.result()
    assert caught.value.is_infrastructure
    assert session.sandbox().exec(["echo", "x"]).result().stdout == "x\n"


def test_memory_that_runs_out_is_the_code_s_failure(session: aviato.Session) -> None:
    sandbox = session.sandbox(resources={"memory": "64Mi"})
    result = sandbox.exec(["python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"]).result()
    assert result.oom_killed and result.returncode == 128 + signal.SIGKILL
    assert sandbox.exec(["echo", "on"]).result().stdout == "on\n"


def test_an_image_that_cannot_be_had(session: aviato.Session, namespace: Namespace) -> None:
    sandbox = session.sandbox(container_image="registry.invalid/nothing:1")
    with pytest.raises(aviato.SandboxImageError, match=r"registry\.invalid/nothing") as caught:
        sandbox.wait()
    assert caught.value.is_infrastructure


def test_what_no_node_has_stays_pending_and_says_why(make_kubernetes: Callable[..., Any]) -> None:
    make_kubernetes(kubernetes_start=20)
    with aviato.Session() as session:
        sandbox = session.sandbox(resources=aviato.ResourceOptions(requests={"cpu": "1000"}))
        sandbox.start().result()

        def why() -> str:
            assert sandbox.get_status() == "pending"
            return str(sandbox.status_reason)

        wait_until(lambda: "nsufficient cpu" in why(), 15)
        with pytest.raises(aviato.AviatoError, match="nsufficient cpu") as caught:
            sandbox.exec(["true"]).result()
        assert caught.value.is_infrastructure


def test_a_quota_that_is_reached(make_kubernetes: Callable[..., Any], namespace: Namespace) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    namespace.kubectl("create", "-f", "-", given=json.dumps(quota))
    try:
        wait_until(lambda: "hard" in namespace.all("resourcequotas")[0].get("status", {}))
        make_kubernetes()
        with aviato.Session() as session, pytest.raises(aviato.AviatoError, match="quota") as caught:
            session.sandbox().exec(["true"]).result()
        assert caught.value.is_infrastructure
    finally:
        namespace.kubectl("delete", "resourcequota", "few")


def test_its_own_end_is_told(session: aviato.Session) -> None:
    sandbox = session.sandbox(max_lifetime_seconds=1)
    with pytest.raises(aviato.AviatoError, match="lifetime"):
        sandbox.exec(["sleep", "30"]).result()


class Service:
    """What a client knows of several servers: one address, which leads to one of them."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "service.sock"

    def lead_to(self, server: Any) -> None:
        new = self.path.with_suffix(".new")
        new.symlink_to(server.url.removeprefix("unix://"))
        new.rename(self.path)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service(tmp_path)
    monkeypatch.setenv("AVIATO_BASE_URL", f"unix://{made.path}")
    return made


def test_a_server_that_dies_in_the_middle_of_commands_loses_nothing(
    make_server: Callable[..., Any], namespace: Namespace, service: Service
) -> None:
    """Another one takes its sandboxes over: no result is lost, and nothing runs twice."""
    one, two = (make_server(**namespace.settings("several")) for _ in range(2))
    service.lead_to(one)
    with aviato.Session() as session:
        sandboxes = [session.sandbox() for _ in range(4)]
        for number, sandbox in enumerate(sandboxes):
            sandbox.write_file("f", str(number).encode()).result()
        script = "echo begun; echo x >> runs; sleep 3; cat f; wc -l < runs"
        running = [sandbox.exec(["sh", "-c", script]) for sandbox in sandboxes]
        time.sleep(1)
        service.lead_to(two)
        one.stop(signal.SIGKILL)
        for number, process in enumerate(running):
            assert process.result().stdout == f"begun\n{number}1\n"
        assert sandboxes[0].exec(["cat", "f"]).result().stdout == "0"
    wait_until(lambda: namespace.all("pods", "aviato.dev/claim=several") == [])


def test_two_servers_have_each_other_s_sandboxes(
    make_server: Callable[..., Any], namespace: Namespace, service: Service
) -> None:
    one, two = (make_server(**namespace.settings("both")) for _ in range(2))
    service.lead_to(one)
    sandbox = aviato.Sandbox.run(detached=True, tags=["shared"]).wait()
    sandbox.write_file("f", b"kept").result()
    ask = "import aviato, sys; print(aviato.Sandbox.from_id(sys.argv[1]).result().exec(['cat', 'f']).result().stdout)"
    for server in (two, one, two):
        done = subprocess.run(
            [sys.executable, "-c", ask, sandbox.sandbox_id],
            env={**os.environ, "AVIATO_BASE_URL": server.url},
            capture_output=True,
            text=True,
        )
        assert done.stdout == "kept\n", done.stderr
    assert sandbox.exec(["cat", "f"]).result().stdout == "kept"
    sandbox.stop().result()
    assert namespace.all("pods", "aviato.dev/claim=both") == []


def test_a_server_that_takes_a_sandbox_over_has_its_mounted_files(
    make_server: Callable[..., Any], namespace: Namespace, service: Service
) -> None:
    """They are as large as a Secret may be, which has its record as well; a reset makes the sandbox of both anew."""
    one, two = (make_server(**namespace.settings("mounted")) for _ in range(2))
    service.lead_to(one)
    content = os.urandom(990_000)
    files = [{"mount_path": "/data/large", "file_content": content}, {"mount_path": "/data/empty", "file_content": b""}]
    sandbox = aviato.Sandbox.run(detached=True, mounted_files=files).wait()
    service.lead_to(two)
    one.stop(signal.SIGKILL)
    sandbox.reset().result()
    assert sandbox.read_file("/data/large").result() == content
    assert sandbox.read_file("/data/empty").result() == b""
    sandbox.stop().result()
    with pytest.raises(aviato.AviatoValidationError, match="a Secret has at most"):
        aviato.Sandbox.run(mounted_files=[{"mount_path": "/x", "file_content": bytes(1 << 20)}]).wait()
    assert namespace.all("pods", "aviato.dev/claim=mounted") == []


def test_a_claim_that_somebody_takes_away(make_kubernetes: Callable[..., Any], namespace: Namespace) -> None:
    """All that belongs to it goes, as it should; what is made after that belongs to another one, and stays."""
    make_kubernetes(kubernetes_claim="removed", kubernetes_start=30)
    own = "aviato.dev/claim=removed"
    with aviato.Session() as session:
        sandbox = session.sandbox().wait()
        namespace.kubectl("delete", "configmap", "removed-claim")
        with pytest.raises(aviato.AviatoError) as caught:
            sandbox.exec(["sleep", "60"]).result()
        assert caught.value.is_infrastructure

        def begins() -> bool:
            """Until the server has seen it: what it makes meanwhile goes with the claim that is gone."""
            try:
                return session.sandbox().exec(["sleep", "3"]).result().returncode == 0
            except aviato.AviatoError as error:
                assert error.is_infrastructure
                return False

        wait_until(begins, 90)
        (claim,) = namespace.all("configmaps", own)
        made = session.sandbox().wait()
        owned = [namespace.pod(made.sandbox_id), *namespace.all("networkpolicies", own)]
        assert [one["metadata"]["ownerReferences"][0]["uid"] for one in owned] == [claim["metadata"]["uid"]] * 3


def test_a_policy_that_is_not_as_the_server_has_it(make_kubernetes: Callable[..., Any], namespace: Namespace) -> None:
    """As somebody has edited it, or as an earlier version has left it."""
    server = make_kubernetes(kubernetes_claim="edited")
    with aviato.Session() as session:
        session.sandbox().wait()
    wanted = {one["metadata"]["name"]: one["spec"] for one in namespace.all("networkpolicies", "aviato.dev/claim=edited")}
    assert len(wanted) == 2
    for name in wanted:
        namespace.kubectl(
            "patch", "networkpolicy", name, "--type", "merge", "-p", '{"spec": {"egress": [{}], "ingress": [{}]}}'
        )
    server.stop()
    server.restart(**namespace.settings("edited"))
    with aviato.Session() as session:
        session.sandbox().wait()
    found = {one["metadata"]["name"]: one["spec"] for one in namespace.all("networkpolicies", "aviato.dev/claim=edited")}
    assert found == wanted


def test_what_a_dead_server_has_left_waiting_is_taken_away(
    make_kubernetes: Callable[..., Any], namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that no node has room for, and a Secret whose pod was not made yet, would be there as long as the cluster."""
    server = make_kubernetes(kubernetes_claim="left")
    sandbox = aviato.Sandbox.run(detached=True, resources=aviato.ResourceOptions(requests={"cpu": "1000"}))
    wait_until(lambda: namespace.all("pods", f"aviato.dev/sandbox={sandbox.sandbox_id}"))
    server.stop(signal.SIGKILL)
    names = {"aviato.dev/claim": "left", "aviato.dev/place": "pl-nothing-else", "aviato.dev/server": "gone"}
    alone = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "aviato-pl-nothing-else", "labels": names}}
    namespace.kubectl("create", "-f", "-", given=json.dumps(alone))

    async def look() -> None:
        async with looking(namespace, "left", monkeypatch):
            await until_gone(namespace, "pods", "secrets")

    asyncio.run(look())


def test_a_dead_pod_is_no_verdict(session: aviato.Session, namespace: Namespace) -> None:
    tests = "import time\nfrom solution import x\ndef test_it():\n    time.sleep(4)\n    assert x == 1\n"
    verdict = evaluate([Task(code="x = 1\n", tests=[tests])], timeout_seconds=20)
    wait_until(lambda: [one for one in namespace.all("pods") if one["status"]["phase"] == "Running"])
    time.sleep(1.5)
    for pod in namespace.all("pods"):
        namespace.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    outcome = verdict.result()[0]
    assert outcome.passed is True or outcome.reward is None


def poor(namespace: Namespace, tmp_path: Path) -> dict[str, str]:
    """Variables of a user of the cluster without rights."""
    token = next(one for one in namespace.all("secrets", own=False) if "token" in one["data"])["data"]["token"]
    config = json.loads(namespace.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": base64.b64decode(token).decode()}
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    return {"KUBECONFIG": str(path)}


def doctor(namespace: Namespace, **variables: str) -> str:
    own = {"AVIATO_BACKEND": "kubernetes", "AVIATO_KUBERNETES_NAMESPACE": namespace.name}
    done = subprocess.run(
        [sys.executable, "-m", "aviato", "doctor"],
        env={**os.environ, **own, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_rights_that_are_missing_are_named(namespace: Namespace, tmp_path: Path) -> None:
    """A user of the cluster without rights: doctor says which are missing."""
    said = doctor(namespace, **poor(namespace, tmp_path))
    assert "the server may not create pods" in said, said
    assert "kubectl apply -k deploy/kubernetes/overlays/pods" in said


def test_a_cluster_without_agent_sandbox(namespace: Namespace, make_kubernetes: Callable[..., Any]) -> None:
    there = subprocess.run(["kubectl", "get", "--raw", "/apis/agents.x-k8s.io/v1beta1"], capture_output=True, check=False)
    if there.returncode == 0:
        pytest.skip("the cluster has it")
    said = doctor(namespace, AVIATO_KUBERNETES_OBJECTS="agent-sandbox")
    assert "the cluster does not have sandboxes of agents.x-k8s.io/v1beta1" in said and "install agent-sandbox" in said, said
    make_kubernetes(kubernetes_objects="agent-sandbox")
    with aviato.Session() as session, pytest.raises(aviato.AviatoError, match="install agent-sandbox") as caught:
        session.sandbox().wait()
    assert caught.value.is_infrastructure
