"""Sandboxes that the controller of agent-sandbox makes pods for, and those that it has ready."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import aviato
from tests.kubernetes.agent_sandbox.conftest import Agents
from tests.kubernetes.pods.left_behind import ABANDONED_SECONDS, START_SECONDS, die_unproved, looking
from tests.kubernetes.pods.test_failures import wait_until

TEMPLATES, POOLS = "sandboxtemplates.extensions.agents.x-k8s.io", "sandboxwarmpools.extensions.agents.x-k8s.io"


@pytest.fixture
def claim() -> str:
    return f"c-{uuid.uuid4().hex[:8]}"


def owner_of(found: dict[str, Any]) -> tuple[str, str]:
    (owner,) = found["metadata"]["ownerReferences"]
    return owner["kind"], owner["name"]


def read_by(server: Any, sandbox: aviato.Sandbox) -> str:
    """What a client of another server finds in the sandbox's file."""
    ask = "import aviato, sys; print(aviato.Sandbox.from_id(sys.argv[1]).result().exec(['cat', 'f']).result().stdout)"
    done = subprocess.run(
        [sys.executable, "-c", ask, str(sandbox.sandbox_id)],
        env={**os.environ, "AVIATO_BASE_URL": server.url},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout or done.stderr


def test_a_sandbox_is_a_sandbox_of_the_cluster(make_kubernetes: Callable[..., Any], namespace: Agents) -> None:
    make_kubernetes()
    given = [{"mount_path": "/data/cases", "file_content": b"1 2 3\n"}]
    with aviato.Session() as session:
        sandbox = session.sandbox(tags=["run=7", "eval"], mounted_files=given, environment_variables={"OWN": "own"})
        result = sandbox.exec(["sh", "-c", "cat /data/cases; echo $OWN $OF; id -u; exit 3"]).result()
        assert (result.stdout, result.returncode) == ("1 2 3\nown the-image\n65532\n", 3)
        (found,) = namespace.sandboxes("tag.aviato.dev/run=7,tag.aviato.dev/eval")
        pod = namespace.pod(sandbox.sandbox_id)
        assert found["metadata"]["name"] == pod["metadata"]["name"] and found["spec"]["service"] is False
        assert owner_of(pod) == ("Sandbox", found["metadata"]["name"])
        assert owner_of(found)[0] == "ConfigMap"
        assert json.loads(pod["metadata"]["annotations"]["aviato.dev/tags"]) == ["run=7", "eval"]
        assert "own" not in json.dumps([one["spec"] for one in (found, pod)]).split('"')
        other = session.sandbox(max_lifetime_seconds=1000).wait()
        (limited,) = namespace.sandboxes(f"aviato.dev/sandbox={other.sandbox_id}")
        assert limited["spec"]["shutdownPolicy"] == "Delete" and limited["spec"]["shutdownTime"] > "2"
        sandbox.stop().result()
        wait_until(lambda: not namespace.all("pods", f"aviato.dev/sandbox={sandbox.sandbox_id}"))
    namespace.wait_empty()


def test_a_sandbox_outlives_its_server_and_is_taken_up(
    make_kubernetes: Callable[..., Any], namespace: Agents, claim: str
) -> None:
    server = make_kubernetes(kubernetes_claim=claim)
    sandbox = aviato.Sandbox.run(detached=True)
    sandbox.write_file("f", b"kept").result()
    running = sandbox.exec(["sh", "-c", "sleep 2; echo done"])
    time.sleep(0.2)
    server.stop(signal.SIGKILL)
    server.restart(**namespace.settings(claim), kubernetes_objects="agent-sandbox")
    assert running.result().stdout == "done\n"
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    assert again.read_file("f").result() == b"kept"
    again.stop().result()
    namespace.wait_empty()


def test_another_server_takes_it_over_for_good(
    make_server: Callable[..., Any], make_kubernetes: Callable[..., Any], namespace: Agents, claim: str
) -> None:
    """What the controller brings back of the labels of the pod is what the second server has said."""
    make_kubernetes(kubernetes_claim=claim)
    sandbox = aviato.Sandbox.run(detached=True, tags=["shared"]).wait()
    sandbox.write_file("f", b"kept").result()
    first = namespace.pod(sandbox.sandbox_id)["metadata"]["labels"]["aviato.dev/server"]
    two = make_server(**namespace.settings(claim), kubernetes_objects="agent-sandbox")
    assert read_by(two, sandbox) == "kept\n"
    (found,) = namespace.sandboxes("tag.aviato.dev/shared")
    second = namespace.pod(sandbox.sandbox_id)["metadata"]["labels"]["aviato.dev/server"]
    assert second != first and found["spec"]["podTemplate"]["metadata"]["labels"]["aviato.dev/server"] == second
    namespace.kubectl("annotate", "sandboxes.agents.x-k8s.io", found["metadata"]["name"], "looked=at")
    time.sleep(1)
    assert namespace.pod(sandbox.sandbox_id)["metadata"]["labels"]["aviato.dev/server"] == second
    sandbox.stop().result()
    namespace.wait_empty()


def test_a_place_that_the_server_has_ready_is_labelled_for_good(make_kubernetes: Callable[..., Any], namespace: Agents) -> None:
    """The tags that it gets when it is somebody's are the Sandbox's, whose controller brings back what stands there."""
    server = make_kubernetes(warm=f"{namespace.image}=1")
    with aviato.Session() as session:
        wait_until(lambda: [one for one in namespace.all("pods") if one["status"]["phase"] == "Running"], 60)
        ready = {one["metadata"]["uid"] for one in namespace.all("pods")}
        time.sleep(2)  # It is said to run a moment before the server has it.
        sandbox = session.sandbox(tags=["late=1"])
        assert sandbox.exec(["echo", "x"]).result().stdout == "x\n"
        wait_until(lambda: namespace.all("pods", "tag.aviato.dev/late=1"))
        (pod,) = namespace.all("pods", "tag.aviato.dev/late=1")
        assert pod["metadata"]["uid"] in ready
        namespace.kubectl("annotate", "sandboxes.agents.x-k8s.io", pod["metadata"]["name"], "looked=at")
        namespace.controller.look()
        assert namespace.pod(sandbox.sandbox_id)["metadata"]["labels"]["tag.aviato.dev/late"] == "1"
    server.stop()
    namespace.wait_empty()


def test_a_pod_that_is_made_again_is_not_the_sandbox(make_kubernetes: Callable[..., Any], namespace: Agents) -> None:
    make_kubernetes()
    with aviato.Session() as session:
        sandbox = session.sandbox().wait()
        sandbox.write_file("f", b"x").result()
        pod = namespace.pod(sandbox.sandbox_id)["metadata"]
        running = sandbox.exec(["sleep", "60"])
        time.sleep(0.2)
        namespace.kubectl("delete", "pod", pod["name"], "--wait=false", "--grace-period=0", "--force")
        uids = set()

        def made_again() -> bool:
            found = [one["metadata"] for one in namespace.all("pods") if one["metadata"]["name"] == pod["name"]]
            uids.update(one["uid"] for one in found)
            return len(uids | {pod["uid"]}) > 1 or not namespace.sandboxes()

        with pytest.raises(aviato.AviatoError) as caught:
            wait_until(made_again)
            running.result()
        assert caught.value.is_infrastructure
        with pytest.raises(aviato.AviatoError):
            sandbox.exec(["cat", "f"]).result()
        assert session.sandbox().exec(["echo", "x"]).result().stdout == "x\n"
    namespace.wait_empty()


def test_a_pod_that_was_made_again_while_no_server_looked(
    make_kubernetes: Callable[..., Any], namespace: Agents, claim: str
) -> None:
    server = make_kubernetes(kubernetes_claim=claim)
    sandbox = aviato.Sandbox.run(detached=True).wait()
    pod = namespace.pod(sandbox.sandbox_id)["metadata"]
    server.stop(signal.SIGKILL)
    namespace.kubectl("delete", "pod", pod["name"], "--grace-period=0", "--force")
    wait_until(lambda: [one for one in namespace.all("pods") if one["status"]["phase"] == "Running"], 60)
    assert namespace.pod(sandbox.sandbox_id)["metadata"]["uid"] != pod["uid"]
    server.restart(**namespace.settings(claim), kubernetes_objects="agent-sandbox")
    with pytest.raises(aviato.AviatoError):
        aviato.Sandbox.from_id(sandbox.sandbox_id).result().exec(["true"]).result()
    namespace.wait_empty()


def test_a_sandbox_that_somebody_deletes(make_kubernetes: Callable[..., Any], namespace: Agents) -> None:
    make_kubernetes()
    with aviato.Session() as session:
        sandbox = session.sandbox().wait()
        running = sandbox.exec(["sleep", "100"])
        (found,) = namespace.sandboxes()
        namespace.kubectl("delete", "sandboxes.agents.x-k8s.io", found["metadata"]["name"], "--wait=false")
        with pytest.raises(aviato.AviatoError) as caught:
            running.result(90)
        assert caught.value.is_infrastructure
    namespace.wait_empty()


def test_no_controller_answers(make_kubernetes: Callable[..., Any], namespace: Agents) -> None:
    make_kubernetes(kubernetes_start=10)
    namespace.controller.ignores = {"sandboxes"}
    try:
        with aviato.Session() as session:
            sandbox = session.sandbox()
            sandbox.start().result()
            wait_until(lambda: sandbox.get_status() == "pending" and "has said nothing" in str(sandbox.status_reason), 7)
            with pytest.raises(aviato.AviatoError, match="no controller of agent-sandbox has taken up Sandbox") as caught:
                sandbox.exec(["true"]).result()
            assert caught.value.is_infrastructure
    finally:
        namespace.controller.ignores = set()
    namespace.wait_empty()


def test_what_the_sandbox_says_is_why_it_ends(make_kubernetes: Callable[..., Any], namespace: Agents) -> None:
    make_kubernetes()
    with aviato.Session() as session:
        session.sandbox().wait()
        used = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": str(len(namespace.all("pods")))}}}
        namespace.kubectl("create", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "ResourceQuota", **used}))
        try:
            wait_until(lambda: "hard" in namespace.all("resourcequotas")[0].get("status", {}))
            with pytest.raises(aviato.AviatoError, match=r"exceeded quota.*have the quota of the namespace raised") as caught:
                session.sandbox().wait()
            assert caught.value.is_infrastructure
        finally:
            namespace.kubectl("delete", "resourcequota", "few")
    namespace.wait_empty()


# -- warm pools ------------------------------------------------------------------------------------------------------------


def test_a_sandbox_from_the_pool(
    make_kubernetes: Callable[..., Any], make_pool: Callable[..., str], namespace: Agents, claim: str
) -> None:
    pool = make_pool(claim, "--limit", "memory=128Mi", ready=False)
    make_kubernetes(kubernetes_claim=claim, kubernetes_warm_pool=pool)
    wait_until(lambda: namespace.has_ready(pool, 1), 60)
    (ready,) = namespace.all("pods")
    with aviato.Session() as session:
        given = {"environment_variables": {"TOKEN": "never-to-be-seen"}, "tags": ["run=8"], "resources": {"memory": "128Mi"}}
        sandbox = session.sandbox(**given)
        result = sandbox.exec(["sh", "-c", "echo $TOKEN $OF; pwd; id -u"]).result()
        assert result.stdout == "never-to-be-seen the-image\n/workspace\n65532\n"
        (pod,) = namespace.all("pods", "tag.aviato.dev/run=8")
        assert pod["metadata"]["uid"] == ready["metadata"]["uid"]
        assert pod["metadata"]["labels"]["aviato.dev/sandbox"] == sandbox.sandbox_id
        (found,) = namespace.claims()
        assert "env" not in found["spec"] and found["status"]["sandbox"]["name"] == pod["metadata"]["name"]
        seen = [namespace.all(kind) for kind in ("pods", "secrets", "events", "sandboxes", "sandboxclaims")]
        assert "never-to-be-seen" not in json.dumps(seen)
        # The controller has another one ready, and leaves this one's labels alone.
        wait_until(lambda: namespace.has_ready(pool, 1), 60)
        assert namespace.pod(sandbox.sandbox_id)["metadata"]["labels"]["tag.aviato.dev/run"] == "8"
        # What else is wanted is made.
        other = session.sandbox(resources={"memory": "96Mi"}).wait()
        (made,) = namespace.sandboxes("aviato.dev/place")
        assert made["metadata"]["labels"]["aviato.dev/sandbox"] == other.sandbox_id
    wait_until(lambda: not namespace.claims() and not namespace.sandboxes("aviato.dev/place"))
    wait_until(lambda: not namespace.all("pods", "aviato.dev/place"))


FOUND = """
import os, sys
wanted, parts = [word.encode() for word in sys.argv[1:]], []
for top, directories, files in os.walk("/"):
    directories[:] = [name for name in directories if os.path.join(top, name) not in ("/sys", "/usr", "/lib", "/lib64")]
    for name in files:
        path = os.path.join(top, name)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
                said = file.read(1 << 20) or b""
        except OSError:
            continue
        parts += [path for word in wanted if word in said and not path.endswith("cmdline")]
def tried(name):
    try:
        return open(name, "rb").read()
    except OSError as error:
        return type(error).__name__
print(parts, os.listdir("/.aviato-key"), [name for name in os.environ if name.startswith("AVIATO_")])
print(*[tried(f"/proc/1/{name}") for name in ("environ", "mem", "maps")])
"""


def test_code_from_the_pool_finds_no_key(
    make_kubernetes: Callable[..., Any], make_pool: Callable[..., str], namespace: Agents, claim: str
) -> None:
    """Neither its own nor the pool's, by which it could speak to others of the pool; and its image's variables have none."""
    from aviato.server.backends.kubernetes.objects import key_in
    from aviato.server.link.handshake import key_of_pod

    pool = make_pool(claim, count=2, ready=False)
    make_kubernetes(kubernetes_claim=claim, kubernetes_warm_pool=pool)
    wait_until(lambda: namespace.has_ready(pool, 2), 60)
    (kept,) = (one for one in namespace.all("secrets") if one["metadata"]["name"] == f"{claim}-pool-key")
    key = key_in(kept)
    with aviato.Session() as session:
        sandbox = session.sandbox()
        pod = sandbox.wait() and namespace.pod(sandbox.sandbox_id)
        assert len(namespace.claims()) == 1
        words = [key.hex(), key_of_pod(key, pod["metadata"]["uid"]).hex()]
        said = sandbox.exec(["python3", "-c", FOUND, *words]).result()
        assert said.stdout == "[] [] []\nPermissionError PermissionError PermissionError\n", said.stderr
        (container,) = pod["spec"]["containers"]
        assert "pool-key" not in json.dumps(container) and "secret" not in json.dumps(container).lower()
        # A guess is no key of another pod either.
        others = [one for one in namespace.all("pods", "!aviato.dev/place") if one["status"].get("podIP")]
        ask = (
            "import socket, sys\n"
            "one = socket.create_connection((sys.argv[1], 7723), 10); nonce = one.recv(32)\n"
            "one.sendall(b'c' + bytes.fromhex(sys.argv[2]))\n"
            "try: print(len(nonce), one.recv(1))\n"
            "except ConnectionError: print(len(nonce), b'')\n"
        )
        address = others[0]["status"]["podIP"]
        assert sandbox.exec(["python3", "-c", ask, address, secrets.token_hex(64)]).result().stdout == "32 b''\n"


def test_a_server_takes_up_what_came_from_the_pool(
    make_kubernetes: Callable[..., Any], make_pool: Callable[..., str], namespace: Agents, claim: str
) -> None:
    pool = make_pool(claim, ready=False)
    own = {"kubernetes_claim": claim, "kubernetes_objects": "agent-sandbox", "kubernetes_warm_pool": pool}
    server = make_kubernetes(**own)
    wait_until(lambda: namespace.has_ready(pool, 1), 60)
    sandbox = aviato.Sandbox.run(detached=True)
    sandbox.write_file("f", b"kept").result()
    assert len(namespace.claims()) == 1
    running = sandbox.exec(["sh", "-c", "sleep 2; echo done"])
    time.sleep(0.2)
    server.stop(signal.SIGKILL)
    server.restart(**namespace.settings() | own)
    assert running.result().stdout == "done\n"
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    assert again.read_file("f").result() == b"kept"
    # A pod that the controller makes in place of a lost one has nothing of the sandbox, its labels included.
    running = again.exec(["sleep", "100"])
    name = namespace.pod(sandbox.sandbox_id)["metadata"]["name"]
    namespace.kubectl("delete", "pod", name, "--wait=false", "--grace-period=0", "--force")
    with pytest.raises(aviato.AviatoError) as caught:
        running.result()
    assert caught.value.is_infrastructure
    wait_until(lambda: not namespace.claims(), 60)


def test_another_server_takes_over_what_came_from_the_pool(
    make_server: Callable[..., Any],
    make_kubernetes: Callable[..., Any],
    make_pool: Callable[..., str],
    namespace: Agents,
    claim: str,
) -> None:
    """One that takes none from there itself, and was there before the pool."""
    two = make_server(**namespace.settings(claim), kubernetes_objects="agent-sandbox")
    pool = make_pool(claim, ready=False)
    make_kubernetes(kubernetes_claim=claim, kubernetes_warm_pool=pool)
    wait_until(lambda: namespace.has_ready(pool, 1), 60)
    sandbox = aviato.Sandbox.run(detached=True).wait()
    sandbox.write_file("f", b"kept").result()
    (found,) = namespace.claims()
    assert read_by(two, sandbox) == "kept\n"
    (again,) = namespace.claims()
    assert again["metadata"]["labels"]["aviato.dev/server"] != found["metadata"]["labels"]["aviato.dev/server"]
    sandbox.stop().result()
    wait_until(lambda: not namespace.claims() and not namespace.all("pods", "aviato.dev/place"))


def test_one_whose_server_dies_before_it_is_told_anything_is_taken_away(
    make_kubernetes: Callable[..., Any],
    make_pool: Callable[..., str],
    namespace: Agents,
    claim: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process 1 would wait for ever, as one in a pool does. One that was told is left alone, whoever has it."""
    pool = make_pool(claim, count=2, ready=False)
    make_kubernetes(kubernetes_claim=claim, kubernetes_warm_pool=pool)
    wait_until(lambda: namespace.has_ready(pool, 2), 60)
    options = {"objects": "agent-sandbox", "warm_pool": pool}
    with aviato.Session() as session:
        sandbox = session.sandbox()
        running = sandbox.exec(["sh", "-c", "echo begun; read line; echo $line"], stdin=True)
        assert next(iter(running.stdout)) == "begun\n"
        kept = namespace.pod(sandbox.sandbox_id)["metadata"]["name"]
        assert len(namespace.claims()) == 1

        async def look() -> None:
            place_id, pod = await die_unproved(namespace, claim, monkeypatch, **options)
            assert pod["metadata"]["name"] != kept and len(namespace.claims()) == 2
            async with looking(namespace, claim, monkeypatch, **options):
                async with asyncio.timeout(60):
                    while len(await asyncio.to_thread(namespace.claims)) > 1:
                        await asyncio.sleep(0.2)
                await asyncio.sleep(2 * (ABANDONED_SECONDS + START_SECONDS))
            found = [one for kind in ("pods", "secrets") for one in namespace.all(kind, f"aviato.dev/place={place_id}")]
            assert all(one["metadata"].get("deletionTimestamp") for one in found)

        asyncio.run(look())
        running.stdin.write(b"still\n").result()
        assert running.result().stdout == "begun\nstill\n"
        assert namespace.pod(sandbox.sandbox_id)["metadata"]["name"] == kept
    wait_until(lambda: not namespace.claims() and not namespace.all("pods", "aviato.dev/place"))


def test_from_the_pool_through_the_api_server(
    make_kubernetes: Callable[..., Any], make_pool: Callable[..., str], namespace: Agents, claim: str
) -> None:
    pool = make_pool(claim, ready=False)
    make_kubernetes(kubernetes_claim=claim, kubernetes_warm_pool=pool, kubernetes_reach="forward")
    wait_until(lambda: namespace.has_ready(pool, 1), 60)
    with aviato.Session() as session:
        assert session.sandbox().exec(["cat"], stdin="in").result().stdout == "in"
        assert len(namespace.claims()) == 1


def test_an_empty_pool_and_none_at_all(
    make_kubernetes: Callable[..., Any], make_pool: Callable[..., str], namespace: Agents, claim: str
) -> None:
    """A claim of an empty pool is made from its template; of a pool that is gone nothing is, and the sandbox is made anew."""
    pool = make_pool(claim, ready=False)
    make_kubernetes(kubernetes_claim=claim, kubernetes_warm_pool=pool)
    namespace.kubectl("patch", POOLS, pool, "--type=merge", "-p", json.dumps({"spec": {"replicas": 0}}))
    wait_until(lambda: namespace.has_ready(pool, 1), 60)
    for one in namespace.sandboxes():
        namespace.kubectl("delete", "sandboxes.agents.x-k8s.io", one["metadata"]["name"])
    with aviato.Session() as session:
        assert session.sandbox().exec(["echo", "made"]).result().stdout == "made\n"
        assert len(namespace.claims()) == 1 and not namespace.sandboxes("aviato.dev/place")
        namespace.kubectl("delete", POOLS, pool)
        assert session.sandbox().exec(["echo", "anew"]).result().stdout == "anew\n"
        assert len(namespace.claims()) == 1 and len(namespace.sandboxes("aviato.dev/place")) == 1
    wait_until(lambda: not namespace.claims() and not namespace.sandboxes("aviato.dev/place"))


def test_a_template_that_changes_is_noticed(
    make_kubernetes: Callable[..., Any], make_pool: Callable[..., str], namespace: Agents, claim: str
) -> None:
    pool = make_pool(claim, ready=False)
    make_kubernetes(kubernetes_claim=claim, kubernetes_warm_pool=pool)
    wait_until(lambda: namespace.has_ready(pool, 1), 60)
    with aviato.Session() as session:
        session.sandbox().wait()
        assert len(namespace.claims()) == 1
        other = {"spec": {"podTemplate": {"metadata": {"annotations": {"aviato.dev/fits": "others"}}}}}
        namespace.kubectl("patch", TEMPLATES, pool, "--type=merge", "-p", json.dumps(other))
        wait_until(lambda: namespace.has_ready(pool, 1), 60)
        for one in namespace.sandboxes():
            if owner_of(one)[0] == "SandboxWarmPool":
                namespace.kubectl("delete", "sandboxes.agents.x-k8s.io", one["metadata"]["name"])
        assert session.sandbox().exec(["echo", "made"]).result().stdout == "made\n"
        assert len(namespace.sandboxes("aviato.dev/place")) == 1
    wait_until(lambda: not namespace.claims() and not namespace.sandboxes("aviato.dev/place"))


def test_a_claim_that_nobody_binds(
    make_kubernetes: Callable[..., Any], make_pool: Callable[..., str], namespace: Agents, claim: str
) -> None:
    pool = make_pool(claim, ready=False)
    make_kubernetes(kubernetes_claim=claim, kubernetes_warm_pool=pool, kubernetes_start=10)
    namespace.controller.ignores = {"sandboxclaims"}
    try:
        with aviato.Session() as session:
            with pytest.raises(aviato.AviatoError, match="has taken up SandboxClaim") as caught:
                session.sandbox().wait()
            assert caught.value.is_infrastructure
    finally:
        namespace.controller.ignores = set()
    wait_until(lambda: not namespace.claims())


def test_the_image_of_the_template_cannot_be_had(
    make_kubernetes: Callable[..., Any], make_pool: Callable[..., str], namespace: Agents, claim: str
) -> None:
    image = "registry.invalid/nothing:1"
    pool = make_pool(claim, image=image, ready=False)
    make_kubernetes(kubernetes_claim=claim, kubernetes_warm_pool=pool)
    with aviato.Session() as session:
        with pytest.raises(aviato.SandboxImageError, match=r"registry\.invalid/nothing") as caught:
            session.sandbox(container_image=image).wait()
        assert caught.value.is_infrastructure
    wait_until(lambda: not namespace.claims(), 60)
