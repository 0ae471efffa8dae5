"""Servers that end, die and come back while sandboxes live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import aviato
from aviato.promises.serving import Server

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
