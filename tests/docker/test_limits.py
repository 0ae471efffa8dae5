"""Limits of containers: what the engine keeps, and what it is refused for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import aviato
from tests.docker.engines import Engine


def keeps(engine: Engine) -> bool:
    """Whether it is one that can keep limits: an ordinary user's has no control groups of version 1."""
    info = json.loads(engine.ask("GET", "/info")[1])
    return not (info.get("Rootless") and info["CgroupVersion"] == "1") and bool(info["MemoryLimit"])


def test_memory(make_docker: Callable[..., Any], engine: Engine, python_image: str) -> None:
    make_docker(python_image)
    with aviato.Session() as session:
        sandbox = session.sandbox(resources={"memory": "64Mi"})
        greedy = "import time; x = b'x' * (400 << 20); time.sleep(10)"  # A limit that is watched takes a moment.
        result = sandbox.exec(["python3", "-c", greedy]).result()
        assert (result.returncode, result.oom_killed) == (137, True)
        assert sandbox.exec(["echo", "lives"]).result().stdout == "lives\n"
        assert sandbox.limits["memory"].strength == ("hard" if keeps(engine) else "watched")


def test_processes(make_docker: Callable[..., Any]) -> None:
    make_docker()
    with aviato.Session() as session:
        sandbox = session.sandbox(resources={"processes": 20})
        script = "for i in $(seq 60); do sleep 5 & done; echo begun"
        result = sandbox.exec(["sh", "-c", script]).result()
        assert (result.returncode, result.stdout) == (2, "") and "can't fork" in result.stderr


def test_cpu(make_docker: Callable[..., Any], engine: Engine, python_image: str) -> None:
    if not keeps(engine):
        pytest.skip("this engine has no control groups")
    make_docker(python_image)
    with aviato.Session() as session:
        sandbox = session.sandbox(resources={"cpu": 0.2})
        burn = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
        assert float(sandbox.exec(["python3", "-c", burn]).result().stdout) < 0.8


def test_shared_memory(make_docker: Callable[..., Any]) -> None:
    make_docker()
    with aviato.Session() as session:
        sandbox = session.sandbox(resources={"shm": "1Mi"})
        assert sandbox.exec(["dd", "if=/dev/zero", "of=/dev/shm/f", "bs=1M", "count=2"]).result().returncode != 0


@pytest.mark.parametrize("resources", [{"disk": "1Gi"}, {"inodes": 100}, {"gpu": 1}, {"memory": "100000Gi"}])
def test_what_cannot_be_kept_is_refused_by_name(make_docker: Callable[..., Any], resources: dict[str, Any]) -> None:
    make_docker()
    with aviato.Session() as session, pytest.raises(aviato.AviatoValidationError, match=next(iter(resources))):
        session.sandbox(resources=resources).wait()
