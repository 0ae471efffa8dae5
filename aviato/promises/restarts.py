"""Servers that end, die and come back while sandboxes live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace

import pytest

import aviato
from aviato.promises.declared import needs
from aviato.promises.network import ASKS, SERVES
from aviato.promises.serving import SECRET, Server, Serving
from aviato.rl import Task, evaluate
from aviato.server.backends.capabilities import Capability

HOLDER = """
import sys, aviato
sandbox = aviato.Session().sandbox().wait()
print(sandbox.sandbox_id, flush=True)
sys.stdin.read()
"""


def test_a_server_that_is_killed_amid_a_command(own_server: Server) -> None:
    """A server killed by SIGKILL in the middle of a command loses no output, and nothing is run twice."""
    sandbox = aviato.Sandbox.run(detached=True)
    line = "echo ran >> ran; echo before; while [ ! -e go ]; do sleep 0.02; done; echo after; exit 5"
    attached = sandbox.exec(["sh", "-c", line])
    left = sandbox.exec(["sh", "-c", line], detach=True)
    arriving = iter(attached.stdout)
    assert next(arriving) == "before\n"
    left_id = left.exec_id
    sandbox.exec(["sh", "-c", "while [ $(wc -l < ran) -lt 2 ]; do sleep 0.02; done"], check=True).result()
    own_server.stop(signal.SIGKILL)
    own_server.start()
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    again.write_file("go", b"").result()
    for command in (attached, left, again.attach(left_id)):
        assert (command.result().stdout, command.result().returncode) == ("before\nafter\n", 5)
    assert "".join(arriving) == "after\n"
    assert again.read_file("ran").result() == b"ran\nran\n"
    again.stop(graceful_shutdown_seconds=0).result()


def test_what_ended_while_there_was_no_server(own_server: Server) -> None:
    """A command that ends, and a lifetime that is over, while there is no server are told by the next one as they were."""
    works = aviato.Sandbox.run(detached=True, environment_variables={"A": "1"})
    short = aviato.Sandbox.run(detached=True, max_lifetime_seconds=3.0)
    begun = works.exec(["sh", "-c", "while [ ! -e go ]; do sleep 0.02; done; echo done; exit 4"], detach=True)
    works.exec(["sh", "-c", "(sleep 1; touch go) >/dev/null 2>&1 &"], check=True).result()
    assert short.wait().get_status() == "running"
    own_server.stop(signal.SIGKILL)
    time.sleep(4.0)  # A lifetime, which nobody can be asked about.
    own_server.start()
    short = aviato.Sandbox.from_id(short.sandbox_id).result()
    short.wait_until_complete(raise_on_termination=False).result()
    assert (short.status, short.status_reason) == ("terminated", "lifetime")
    for command in (begun, works.attach(begun.exec_id)):
        assert (command.result().stdout, command.result().returncode) == ("done\n", 4)
    assert works.exec(["sh", "-c", "echo $A"]).result().stdout == "1\n"
    works.stop(graceful_shutdown_seconds=0).result()


def test_a_server_that_hands_over(own_server: Server) -> None:
    """SIGTERM hands sandboxes over: files, tags, limits and running commands are there for the next server."""
    sandbox = aviato.Sandbox.run(detached=True, tags=["handed-over"])
    sandbox.write_file("f", b"kept").result()
    running = sandbox.exec(["sh", "-c", "echo on; while [ ! -e go ]; do sleep 0.02; done; exit 3"])
    assert next(iter(running.stdout)) == "on\n"
    limits = sandbox.limits
    own_server.stop(signal.SIGTERM)
    own_server.start()
    found = aviato.Sandbox.list(tags=["handed-over"]).result()
    assert [one.sandbox_id for one in found] == [sandbox.sandbox_id]
    assert found[0].read_file("f").result() == b"kept" and found[0].limits == limits
    found[0].write_file("go", b"").result()
    assert running.result().returncode == 3
    own_server.stop(signal.SIGINT)
    assert own_server.places() == []


@needs(Capability.PORTS)
def test_ports_are_as_before(own_server: Server) -> None:
    """A port has the same address after a restart, and what listens inside is reached by it."""
    sandbox = aviato.Sandbox.run(detached=True, ports=[8000])
    sandbox.exec(["sh", "-c", 'python3 -c "$0" >/dev/null 2>&1 &', SERVES], check=True).result()
    url = sandbox.wait_for_port(8000).result()
    own_server.stop(signal.SIGKILL)
    own_server.start()
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    assert again.wait_for_port(8000).result() == url
    with urllib.request.urlopen(url.rstrip("/") + "/again", timeout=10) as answer:
        assert answer.read() == b"from inside: /again"
    again.stop(graceful_shutdown_seconds=0).result()


@needs(Capability.EGRESS)
def test_the_way_out_is_as_before(own_server: Server) -> None:
    """A sandbox with a list of hosts has its proxy after a restart, which refuses the others."""
    sandbox = aviato.Sandbox.run(detached=True, network=aviato.NetworkOptions(egress_mode=["listed.example"]))
    ask = ["python3", "-c", ASKS, "http://other.example/"]
    assert sandbox.exec(ask).result().stdout == "HTTP 403\n"
    own_server.stop(signal.SIGKILL)
    own_server.start()
    assert sandbox.exec(ask).result().stdout == "HTTP 403\n"
    sandbox.stop(graceful_shutdown_seconds=0).result()


@needs(Capability.SNAPSHOTS)
def test_what_was_written_before(own_server: Server) -> None:
    """A snapshot of a sandbox that was taken up again has what it wrote under the server before; so has a reset to it."""
    sandbox = aviato.Sandbox.run(detached=True)
    sandbox.write_file("f", b"before").result()
    own_server.stop(signal.SIGKILL)
    own_server.start()
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    taken = again.snapshot().result()
    with aviato.Sandbox(container_image=taken.snapshot_id) as other:
        assert other.read_file("f").result() == b"before"
    again.remove("f").result()
    again.reset(to=taken).result()
    assert again.read_file("f").result() == b"before"
    again.stop(graceful_shutdown_seconds=0).result()


def test_what_it_was_made_with(own_server: Server) -> None:
    """Variables and secrets are those of a sandbox's commands under the next server, too."""
    secret = aviato.Secret(store="env", name=SECRET[0], env_var="TOKEN")
    sandbox = aviato.Sandbox.run(detached=True, secrets=[secret], environment_variables={"A": "1"})
    look = ["sh", "-c", 'printf "%s %s" "$A" "$TOKEN"']
    assert sandbox.exec(look).result().stdout == f"1 {SECRET[1]}"
    own_server.stop(signal.SIGKILL)
    own_server.start()
    assert sandbox.exec(look).result().stdout == f"1 {SECRET[1]}"
    sandbox.stop(graceful_shutdown_seconds=0).result()


def test_a_server_that_is_told_to_end(own_server: Server) -> None:
    """SIGINT to the server ends its sandboxes: `terminated`, reason `shutdown`, which is infrastructure; nothing is left."""
    sandbox = aviato.Sandbox.run(detached=True).wait()
    own_server.stop(signal.SIGINT)
    assert own_server.places() == []
    own_server.start()
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    assert (again.status, again.status_reason) == ("terminated", "shutdown")
    with pytest.raises(aviato.SandboxTerminatedError) as caught:
        again.exec(["true"]).result()
    assert caught.value.is_infrastructure


def test_no_server_for_long(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server for the orphan timeout a sandbox ends by itself: reason `orphaned`, which is infrastructure."""
    if serving.base_url is not None:
        pytest.skip("the server that is asked is not the suite's own")
    server = Server(replace(serving, variables={**serving.variables, "AVIATO_ORPHAN_TIMEOUT": "2"}))
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    try:
        sandbox = aviato.Sandbox.run(detached=True).wait()
        server.stop(signal.SIGKILL)
        time.sleep(4.0)  # Nobody can be asked meanwhile.
        server.start()
        again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
        again.wait_until_complete(raise_on_termination=False).result()
        assert (again.status, again.status_reason) == ("terminated", "orphaned")
        with pytest.raises(aviato.SandboxTerminatedError) as caught:
            again.exec(["true"]).result()
        assert caught.value.is_infrastructure
    finally:
        server.close()


def test_verdicts_that_a_server_dies_in(own_server: Server) -> None:
    """A server that is killed while code is judged changes no verdict."""
    test = "import time\nfrom solution import x\ndef test_it():\n    time.sleep(3)\n    assert x == 1\n"
    judged = evaluate([Task(code=f"x = {value}\n", tests=[test]) for value in (1, 2)], timeout_seconds=30)
    while own_server.health()["live_sandboxes"] < 2:
        assert not judged.done()
        time.sleep(0.05)
    own_server.stop(signal.SIGKILL)
    own_server.start()
    assert [outcome.passed for outcome in judged.result()] == [True, False]


def test_a_client_that_is_killed(own_server: Server) -> None:
    """When a process dies, even by SIGKILL, its sandboxes are removed within seconds: reason `lease_expired`."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert holder.stdout is not None and holder.stdin is not None
    with holder, holder.stdout, holder.stdin:
        sandbox_id = holder.stdout.readline().strip()
        kept = aviato.Sandbox.run(detached=True).wait()
        holder.kill()
    gone = aviato.Sandbox.from_id(sandbox_id).result()
    gone.wait_until_complete(raise_on_termination=False).result(60)
    assert (gone.status, gone.status_reason) == ("terminated", "lease_expired")
    with pytest.raises(aviato.SandboxTerminatedError) as caught:
        gone.exec(["true"]).result()
    assert caught.value.is_infrastructure
    assert kept.get_status() == "running"
    kept.stop(graceful_shutdown_seconds=0).result()
