"""A backend of one folder and one line: what a server does by its contract alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato

SERVE = """
from aviato.server.backends.registry import BACKENDS
BACKENDS["bubblewrap"] = "tests.bubblewrap_backend:BubblewrapBackend"
from aviato.cli.main import main; main()
"""


@pytest.fixture
def server(make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("tests.conftest.SERVE", SERVE)
    running = make_server(backend="bubblewrap")
    monkeypatch.setenv("AVIATO_BASE_URL", running.url)
    return running


def places(server: Any) -> list[str]:
    return os.listdir(Path(server.state_dir, "serve", "bubblewrap"))


def test_what_users_do(server: Any) -> None:
    with aviato.Session() as session:
        sandbox = session.sandbox(environment_variables={"OWN": "own"})
        assert sandbox.exec(["sh", "-c", "cat; echo $OWN; exit 3"], stdin="in\n").result().stdout == "in\nown\n"
        left = sandbox.exec(["sh", "-c", "sleep 100 & echo $!"]).result()
        assert sandbox.exec(["kill", "-0", left.stdout.strip()]).result().returncode == 0
        content = os.urandom(1 << 20)
        for _ in range(3):
            sandbox.write_file("f", content).result()
            assert sandbox.read_file("f").result() == content
        assert [Path(entry.path).name for entry in sandbox.list_files(".").result()] == ["f"]
        with pytest.raises(aviato.SandboxCommandTimeoutError):
            sandbox.exec(["sleep", "60"], timeout_seconds=0.2).result()
        commands = [sandbox.exec(["echo", str(number)]) for number in range(20)]
        assert [one.result().stdout for one in commands] == [f"{number}\n" for number in range(20)]
        with pytest.raises(aviato.AviatoValidationError, match="'bubblewrap' does not have 'images'"):
            session.sandbox(container_image="other").wait()
        assert len(places(server)) == 1
    assert not places(server)


def test_a_sandbox_that_dies(server: Any) -> None:
    with aviato.Session() as session:
        sandbox = session.sandbox().wait()
        pid = int(Path(server.state_dir, "serve", "bubblewrap", sandbox.sandbox_id, "pid").read_text())
        os.killpg(pid, signal.SIGKILL)
        with pytest.raises(aviato.AviatoError) as caught:
            sandbox.exec(["true"]).result()
        assert caught.value.is_infrastructure
        assert session.sandbox().exec(["echo", "x"]).result().stdout == "x\n"
    assert not places(server)
