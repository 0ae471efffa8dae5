"""Over TCP a lease lives by heartbeats, as often as the server's `--lease` asks for."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aviato import Sandbox
from tests.conftest import SERVE, RunningServer, make_state_dir, remove
from tests.endings.conftest import until

LEASE_SECONDS = 3.0
CONNECTED_PATIENCE = 3.0
"""As the server has it."""


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """A server on a port, with a short lease."""
    state = make_state_dir()
    (state / "keys").write_text("the-key\n")
    command = [sys.executable, "-c", SERVE, "serve", "--port", "0", "--lease", str(LEASE_SECONDS)]
    command += ["--state-dir", str(state / "state"), "--api-key-file", str(state / "keys")]
    log = state / "server.log"
    with log.open("wb") as err:
        process: Any = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err)
    found = re.search(rb"http://\S+", process.stdout.readline())
    assert found is not None, log.read_text()
    monkeypatch.setenv("AVIATO_API_KEY", "the-key")
    server = RunningServer(found[0].decode(), process.pid, str(state / "state"), process, log)
    yield server
    server.stop()
    process.stdout.close()
    remove(Path(state))


@pytest.mark.deep
def test_a_trainer_far_away(trainer: Any, remote: RunningServer) -> None:
    """It lives longer than a lease, and after its death nothing of it lives longer than that."""
    one = trainer("hold()\nsay('up')\ntime.sleep(60)", remote)
    one.says()
    begin = time.monotonic()
    while time.monotonic() < begin + 1.5 * LEASE_SECONDS:
        assert [box.status for box in one.living()] == ["running"] * 2 and one.commands() == 2
        time.sleep(0.2)
    one.send(signal.SIGKILL)
    one.process.wait()
    assert one.living()
    one.leaves_nothing(LEASE_SECONDS + 5)
    assert one.reasons() == {"lease_expired"}


HOLD_THE_INTERPRETER = """
import ctypes
hold()
mine = [alone.exec(["sh", "-c", "sleep 1; echo done"]) for _ in range(3)]
say("up")
ctypes.PyDLL(None).sleep({seconds})
assert [one.result().stdout for one in mine] == ["done\\n"] * 3
assert made.exec(["echo", "on"]).result(20).stdout == "on\\n"
say("over")
"""


@pytest.mark.deep
def test_a_call_that_holds_the_interpreter_for_longer_than_the_lease(trainer: Any, remote: RunningServer) -> None:
    """No heartbeat is sent meanwhile; the connection lives. On a Unix socket the process itself is watched."""
    seconds = int(2 * LEASE_SECONDS)
    far, near = trainer(HOLD_THE_INTERPRETER.format(seconds=seconds), remote), trainer(HOLD_THE_INTERPRETER.format(seconds=4))
    for one in (far, near):
        one.says()
    for one in (far, near):
        one.says("over")
        one.end()


@pytest.mark.deep
def test_a_pause_that_is_shorter_than_the_patience(trainer: Any, remote: RunningServer) -> None:
    one = trainer("hold()\nsay('up')\ntime.sleep(60)", remote)
    one.says()
    for _ in range(3):
        one.send(signal.SIGSTOP)
        time.sleep(1.5 * LEASE_SECONDS)
        one.send(signal.SIGCONT)
        time.sleep(LEASE_SECONDS / 3)
    assert len(one.living()) == 2 and one.commands() == 2
    one.send(signal.SIGSTOP)
    until(lambda: not one.living(), CONNECTED_PATIENCE * LEASE_SECONDS + 5)
    assert Sandbox.list(tags=[one.mark], status="terminated", base_url=remote.url).result()[0].status_reason == "lease_expired"
