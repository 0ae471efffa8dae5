"""What users do, in pods: the promises of sandboxes, whatever carries them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import Task, evaluate
from tests.kubernetes.pods.conftest import Namespace


def test_commands(session: aviato.Session) -> None:
    sandbox = session.sandbox(environment_variables={"OWN": "own"})
    result = sandbox.exec(["sh", "-c", "cat; echo $OWN $OF; echo err >&2; exit 3"], stdin="in\n").result()
    assert (result.stdout, result.stderr, result.returncode) == ("in\nown the-image\n", "err\n", 3)
    assert sandbox.exec(["nothing-of-this-name"]).result().returncode == 127
    assert sandbox.exec(["sh", "-c", "kill -TERM $$"]).result().returncode == 128 + signal.SIGTERM
    with pytest.raises(aviato.SandboxCommandTimeoutError):
        sandbox.exec(["sleep", "60"], timeout_seconds=0.2).result()
    left = sandbox.exec(["sh", "-c", "sleep 100 & echo $!"]).result()
    assert sandbox.exec(["kill", "-0", left.stdout.strip()]).result().returncode == 0
    running = sandbox.exec(["sleep", "100"])
    running.send_signal(signal.SIGKILL).result()
    assert running.result().returncode == 128 + signal.SIGKILL
    commands = [sandbox.exec(["echo", str(number)]) for number in range(20)]
    assert [one.result().stdout for one in commands] == [f"{number}\n" for number in range(20)]


def test_input_output_and_files(session: aviato.Session) -> None:
    sandbox = session.sandbox()
    process = sandbox.exec(["cat"], stdin=True)
    lines = iter(process.stdout)
    for word in ("one\n", "two\n"):
        process.stdin.write(word.encode()).result()
        assert next(lines) == word
    process.stdin.close().result()
    assert process.result().returncode == 0
    content = os.urandom(3 << 20)
    sandbox.write_file("f", content).result()
    assert sandbox.read_file("f").result() == content
    assert sandbox.exec(["sh", "-c", "pwd; wc -c < f"]).result().stdout.split() == ["/workspace", str(3 << 20)]
    much = sandbox.exec(["sh", "-c", "head -c 8000000 /dev/zero | tr '\\0' x"]).result()
    assert len(much.stdout) == 8_000_000
    with pytest.raises(aviato.SandboxFileError):
        sandbox.read_file("/nothing").result()


def test_who_one_is(session: aviato.Session, namespace: Namespace, make_kubernetes: Callable[..., Any]) -> None:
    """Restricted, and root where the server is told so."""
    seen = "id -u; grep -h CapEff /proc/self/status; cat /proc/1/environ >/dev/null 2>&1 && echo open; env | grep -c AVIATO"
    sandbox = session.sandbox()
    assert sandbox.exec(["sh", "-c", seen]).result().stdout.split() == ["65532", "CapEff:", "0" * 16, "0"]
    make_kubernetes(kubernetes_security="root")
    with aviato.Session() as other:
        root = other.sandbox()
        said = root.exec(["sh", "-c", seen]).result().stdout.split()
        assert (said[0], said[-1]) == ("0", "0")
        done = root.exec(["sh", "-c", "touch /f && chown 5:6 /f && stat -c %u:%g /f; id -u nobody"]).result()
        assert done.stdout.split()[0] == "5:6"
        assert root.exec(["id", "-u"], user="nobody").result().stdout.strip() == done.stdout.split()[1]


def test_mounted_files_and_secrets(session: aviato.Session, namespace: Namespace) -> None:
    given = [{"mount_path": "/data/cases", "file_content": b"1 2 3\n"}]
    sandbox = session.sandbox(mounted_files=given, tags=["eval"])
    script = "cat /data/cases; echo x > /data/cases; rm /data/cases; cat /data/cases"
    assert sandbox.exec(["sh", "-c", script]).result().stdout == "1 2 3\n1 2 3\n"
    with pytest.raises(aviato.AviatoValidationError, match="/proc/cases"):
        session.sandbox(mounted_files=[{"mount_path": "/proc/cases", "file_content": b""}]).wait()


@pytest.mark.parametrize("path", ["/etc/hosts", "/etc/resolv.conf", "/workspace/cases", "/usr/bin/new"])
def test_a_file_can_be_mounted_where_the_image_or_the_node_has_one(session: aviato.Session, path: str) -> None:
    given = [{"mount_path": path, "file_content": b"127.0.0.1 own\n"}]
    assert session.sandbox(mounted_files=given).exec(["cat", path]).result().stdout == "127.0.0.1 own\n"


def test_environment_is_shown_by_no_pod_and_no_event(session: aviato.Session, namespace: Namespace) -> None:
    sandbox = session.sandbox(environment_variables={"TOKEN": "never-to-be-seen"})
    assert sandbox.exec(["sh", "-c", "echo $TOKEN"]).result().stdout == "never-to-be-seen\n"
    assert "never-to-be-seen" not in json.dumps([namespace.all(kind) for kind in ("pods", "events")])


def test_tags_are_labels(session: aviato.Session, namespace: Namespace) -> None:
    tags = ["eval", "wandb-run:abc", "step=7", "what fits/no label"]
    sandbox = session.sandbox(tags=tags).wait()
    for selector in ("tag.aviato.dev/eval", "tag.aviato.dev/wandb-run=abc", "tag.aviato.dev/step=7"):
        found = [one["metadata"]["labels"]["aviato.dev/sandbox"] for one in namespace.all("pods", selector)]
        assert found == [sandbox.sandbox_id], selector
    pod = namespace.pod(sandbox.sandbox_id)
    assert json.loads(pod["metadata"]["annotations"]["aviato.dev/tags"]) == tags
    assert sandbox.tower_id == pod["spec"]["nodeName"]


def test_a_pod_keeps_to_restricted_pod_security(session: aviato.Session, namespace: Namespace) -> None:
    sandbox = session.sandbox(resources={"cpu": "250m", "memory": "128Mi", "disk": "64Mi"}).wait()
    spec = namespace.pod(sandbox.sandbox_id)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert spec["containers"][0]["resources"]["limits"]["cpu"] == "250m"
    assert not spec["automountServiceAccountToken"] and not spec.get("hostNetwork") and not spec.get("hostPID")


def test_the_network_is_closed_by_policy(session: aviato.Session, namespace: Namespace) -> None:
    session.sandbox().wait()
    for policy in namespace.all("networkpolicies"):
        assert set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
        assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 7723}]}]
    assert any("network: " in line for line in session.sandbox().wait().unkept_promises)


def test_code_inside_cannot_be_a_server(session: aviato.Session) -> None:
    """Process 1 answers nobody who does not know the key, and goes on."""
    ask = (
        "import socket, os\n"
        "for said in (b'', b'c' + bytes(64), os.urandom(65), b'GET / HTTP/1.1\\r\\n\\r\\n' * 9):\n"
        "    one = socket.create_connection(('127.0.0.1', 7723)); one.settimeout(20)\n"
        "    nonce = one.recv(32); one.sendall(said)\n"
        "    try: print(len(nonce), one.recv(100) if said else b'')\n"
        "    except ConnectionResetError: print(len(nonce), b'')\n"
        "idle = [socket.create_connection(('127.0.0.1', 7723)) for _ in range(50)]\n"
        "print('done')\n"
    )
    sandbox = session.sandbox()
    assert sandbox.exec(["python3", "-c", ask]).result().stdout.split() == ["32", "b''"] * 4 + ["done"]
    assert sandbox.exec(["echo", "on"]).result().stdout == "on\n"


def test_code_inside_cannot_reach_what_keeps_it(session: aviato.Session) -> None:
    """Its subreaper has its uid."""
    attack = (
        "import os, signal, resource\n"
        "def tried(call, *words):\n"
        "    try: call(*words); return 'done'\n"
        "    except OSError as error: return type(error).__name__\n"
        "above = os.getppid()\n"
        "print([tried(os.kill, pid, number) for pid in (above, -1) for number in (signal.SIGKILL, signal.SIGSTOP)])\n"
        "print([tried(resource.prlimit, pid, resource.RLIMIT_NOFILE, (1, 1)) for pid in (1, above)])\n"
        "print([tried(open, f'/proc/{pid}/{name}', 'rb') for pid in (1, above) for name in ('mem', 'environ', 'maps')])\n"
    )
    sandbox = session.sandbox()
    said = sandbox.exec(["python3", "-c", attack]).result().stdout.splitlines()
    assert said == [str(["PermissionError"] * count) for count in (4, 2, 6)]
    assert sandbox.exec(["echo", "on"]).result().stdout == "on\n"


def test_verdicts(session: aviato.Session) -> None:
    tests = "from solution import double\n\ndef test_it():\n    assert double(2) == 4\n"
    codes = ["def double(n):\n    return 2 * n\n", "def double(n):\n    return n\n", "while True: pass\n"]
    outcomes = evaluate([Task(code=code, tests=[tests]) for code in codes], timeout_seconds=5).result()
    assert [outcome.passed for outcome in outcomes] == [True, False, False]


def test_the_example(make_kubernetes: Callable[..., Any]) -> None:
    make_kubernetes()
    example = Path(__file__).parents[3] / "examples" / "rl_training" / "reward_function.py"
    done = subprocess.run([sys.executable, "-W", "error", example], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "Pass rate: 3/5" in done.stdout and "UNEXPECTED" not in done.stdout


def test_on_a_loop(make_kubernetes: Callable[..., Any], namespace: Namespace) -> None:
    make_kubernetes()

    async def main() -> list[str]:
        async with aviato.AsyncClient() as client, await client.sandbox() as one, await client.sandbox() as two:
            results = await asyncio.gather(*(sandbox.exec(["hostname"]) for sandbox in (one, two)))
            return [result.stdout.strip() for result in results]

    assert len(set(asyncio.run(main()))) == 2


def test_through_the_api_server(make_kubernetes: Callable[..., Any]) -> None:
    make_kubernetes(kubernetes_reach="forward")
    with aviato.Session() as session:
        sandbox = session.sandbox()
        content = os.urandom(2 << 20)
        sandbox.write_file("f", content).result()
        assert sandbox.read_file("f").result() == content
        assert sandbox.exec(["cat"], stdin="in").result().stdout == "in"


def test_resets_and_a_main_command(session: aviato.Session) -> None:
    sandbox = session.sandbox(environment_variables={"A": "1"})
    sandbox.write_file("f", b"x").result()
    sandbox.reset().result()
    assert sandbox.exec(["sh", "-c", "ls; echo $A"]).result().stdout == "1\n"
    main = session.sandbox(command="sh", args=["-c", "echo out; sleep 0.2; exit 4"])
    assert main.wait_until_complete(raise_on_termination=False).result().returncode == 4


def test_placement(session: aviato.Session, namespace: Namespace) -> None:
    nodes = json.loads(namespace.kubectl("get", "nodes", "-o", "json"))["items"]
    name = nodes[-1]["metadata"]["name"]
    sandbox = session.sandbox(tower_ids=[name]).wait()
    assert namespace.pod(sandbox.sandbox_id)["spec"]["nodeName"] == name == sandbox.tower_id
