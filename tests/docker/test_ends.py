"""How containers end, from within, from outside, and with their server or their engine."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import Task, evaluate
from tests.docker import engines
from tests.docker.conftest import SMALL
from tests.docker.engines import Engine
from tests.docker.test_sandboxes import mine


def name_of(sandbox: aviato.Sandbox) -> str:
    return f"aviato-{sandbox.sandbox_id}"


def wait_until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_sandbox_outlives_its_server_and_is_taken_up(make_docker: Callable[..., Any], engine: Engine) -> None:
    server = make_docker()
    sandbox = aviato.Sandbox.run(detached=True)
    sandbox.write_file("f", b"kept").result()
    running = sandbox.exec(["sh", "-c", "sleep 2; echo done"])
    time.sleep(0.2)
    server.stop(signal.SIGKILL)
    server.restart(backend="docker", default_image=SMALL, docker_host=engine.address)
    assert running.result().stdout == "done\n"
    again = aviato.Sandbox.from_id(sandbox.sandbox_id).result()
    assert again.read_file("f").result() == b"kept"
    again.stop().result()
    assert mine(engine) == []


def test_what_was_given_up_while_no_server_looked_is_taken_away(make_docker: Callable[..., Any], engine: Engine) -> None:
    server = make_docker()
    sandbox = aviato.Sandbox.run(detached=True).wait()
    server.stop(signal.SIGKILL)
    for file in Path(server.state_dir, "serve", "docker", "sandboxes").iterdir():
        for one in file.iterdir():
            one.unlink()
        file.rmdir()  # Its place is lost: the label alone tells whose the container is.
    server.restart(backend="docker", default_image=SMALL, docker_host=engine.address)
    with pytest.raises(aviato.AviatoError) as caught:
        aviato.Sandbox.from_id(sandbox.sandbox_id).result().exec(["true"]).result()
    assert caught.value.is_infrastructure
    wait_until(lambda: mine(engine) == [])


def test_another_server_s_containers_are_left_alone(make_docker: Callable[..., Any], engine: Engine) -> None:
    make_docker()
    sandbox = aviato.Sandbox.run(detached=True).wait()
    make_docker()
    with aviato.Session() as session:
        session.sandbox().exec(["true"]).result()
        assert len(mine(engine)) == 2
    assert [one["Labels"]["aviato.sandbox"] for one in mine(engine)] == [sandbox.sandbox_id]


def test_a_container_that_is_killed_is_the_machine_s_failure(make_docker: Callable[..., Any], engine: Engine) -> None:
    make_docker()
    with aviato.Session() as session:
        sandbox = session.sandbox().wait()
        running = sandbox.exec(["sleep", "60"])
        engine.kill(name_of(sandbox))
        with pytest.raises(aviato.AviatoError) as caught:
            running.result()
        assert caught.value.is_infrastructure
        assert session.sandbox().exec(["echo", "x"]).result().stdout == "x\n"
    assert mine(engine) == []


def test_a_container_that_is_killed_is_no_verdict(make_docker: Callable[..., Any], engine: Engine, python_image: str) -> None:
    make_docker(python_image)
    tests = "import time\nfrom solution import x\ndef test_it():\n    time.sleep(3)\n    assert x == 1\n"
    verdict = evaluate([Task(code="x = 1\n", tests=[tests])], timeout_seconds=20)
    wait_until(lambda: [one for one in mine(engine) if one["State"] == "running"])
    engine.kill(mine(engine)[0]["Id"])
    assert verdict.result()[0].passed is True  # By another sandbox.


@pytest.fixture
def _starts_engines() -> None:
    try:
        engines.check_starts()
    except engines.NoEngineError as why:
        pytest.skip(str(why))


@pytest.mark.usefixtures("_starts_engines")
def test_an_engine_that_is_restarted(make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="aviato-engine-", ignore_cleanup_errors=True) as directory:
        with engines.start_dockerd(Path(directory)) as own:
            own.make_image(SMALL, engines.busybox_root())
            server = make_server(backend="docker", default_image=SMALL, docker_host=own.address)
            monkeypatch.setenv("AVIATO_BASE_URL", server.url)
            running = aviato.Sandbox.run(detached=True).exec(["sleep", "60"])
            wait_until(lambda: len(mine(own)) == 1)
        with pytest.raises(aviato.AviatoError) as caught:
            running.result()  # An engine that is told to end takes its containers along.
        assert caught.value.is_infrastructure
        with engines.start_dockerd(Path(directory)) as own, aviato.Session() as session:
            assert session.sandbox().exec(["echo", "again"]).result().stdout == "again\n"


@pytest.mark.usefixtures("_starts_engines", "soon_given_up")
def test_an_engine_that_goes_away(make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="aviato-engine-", ignore_cleanup_errors=True) as directory:
        try:
            with engines.start_dockerd(Path(directory)) as own:
                own.make_image(SMALL, engines.busybox_root())
                server = make_server(backend="docker", default_image=SMALL, docker_host=own.address)
                monkeypatch.setenv("AVIATO_BASE_URL", server.url)
                sandbox = aviato.Sandbox.run(detached=True).wait()
                assert own.pid is not None
                os.kill(own.pid, signal.SIGSTOP)
                # The way to a sandbox does not lead by the engine.
                assert sandbox.exec(["echo", "still"]).result().stdout == "still\n"
                os.kill(own.pid, signal.SIGCONT)
                sandbox.stop().result()
        except (engines.NoEngineError, FileNotFoundError) as why:
            pytest.skip(str(why))
        with pytest.raises(aviato.AviatoError) as caught:
            aviato.Sandbox.run(detached=True).wait()
        assert caught.value.is_infrastructure
