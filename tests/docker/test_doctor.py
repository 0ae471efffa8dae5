"""`aviato doctor` with containers, and servers without an engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.server.backends.docker import probe
from aviato.server.backends.docker.containers import labels, unmountable
from aviato.server.backends.docker.engine import find_address


def doctor(directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AVIATO_BACKEND": "docker", "AVIATO_STATE_DIR": str(directory), **variables}
    command = [sys.executable, "-W", "error", "-m", "aviato", "doctor"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=250)


def test_an_engine_that_answers(engine: Any, tmp_path: Path) -> None:
    done = doctor(tmp_path, AVIATO_DOCKER_HOST=engine.address, AVIATO_DEFAULT_IMAGE="aviato-test-small:1")
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("engine ", "engine's machine", "seccomp", "limits", "default image", "Sandboxes can run here"):
        assert line in done.stdout


def test_no_engine(tmp_path: Path) -> None:
    done = doctor(tmp_path, AVIATO_DOCKER_HOST=f"unix://{tmp_path}/nothing.sock")
    assert done.returncode == 1 and "does not answer" in done.stdout
    assert "repair: sudo apt install docker.io, or name another engine by DOCKER_HOST" in done.stdout


def test_an_engine_elsewhere(tmp_path: Path) -> None:
    done = doctor(tmp_path, AVIATO_DOCKER_HOST="tcp://127.0.0.1:1")
    assert done.returncode == 1 and "repair: run the server on the engine's machine" in done.stdout


def test_an_address_that_is_none(tmp_path: Path) -> None:
    done = doctor(tmp_path, AVIATO_DOCKER_HOST="nonsense")
    assert done.returncode == 1 and "nonsense" in done.stdout and "Traceback" not in done.stderr


def test_without_the_library(tmp_path: Path) -> None:
    (tmp_path / "aiodocker.py").write_text("raise ImportError('none')\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = doctor(tmp_path, PYTHONPATH=path, AVIATO_DOCKER_HOST=f"unix://{tmp_path}/nothing.sock")
    assert done.returncode == 1
    assert f"repair: {sys.executable} -m pip install -e {Path(aviato.__file__).parents[1]}[docker]" in done.stdout.replace(
        "'", ""
    )


def test_a_server_without_an_engine_says_so(make_server: Callable[..., Any], tmp_path: Path) -> None:
    running = make_server(backend="docker", docker_host=f"unix://{tmp_path}/nothing.sock")
    with (
        aviato.Session(defaults=aviato.SandboxDefaults(base_url=running.url)) as session,
        pytest.raises(aviato.SandboxUnavailableError) as caught,
    ):
        session.sandbox().wait()
    assert "cannot run in containers here: engine" in str(caught.value) and "apt install docker.io" in str(caught.value)
    assert caught.value.is_infrastructure


def test_where_an_engine_is_looked_for(tmp_path: Path) -> None:
    assert find_address("unix:///a", {"DOCKER_HOST": "unix:///b"}, 0) == "unix:///a"
    assert find_address(None, {"DOCKER_HOST": "unix:///b"}, 0) == "unix:///b"
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman" / "podman.sock").touch()
    assert find_address(None, {"XDG_RUNTIME_DIR": str(tmp_path)}, 1000) == f"unix://{tmp_path}/podman/podman.sock"


def test_engines_differ() -> None:
    info = {"KernelVersion": "6.1", "OperatingSystem": "Docker Desktop", "SecurityOptions": ["name=seccomp,profile=builtin"]}
    checks = {check.name: check for check in probe.explain("unix:///x", {"Version": "27"}, info, "6.2")}
    assert not checks["engine's machine"].ok and "Docker Desktop" in checks["engine's machine"].detail
    assert checks["seccomp"].ok and not checks["limits"].ok and not checks["limits"].required
    podman = {"Version": "4.3", "Components": [{"Name": "Podman Engine"}]}
    assert probe.is_podman(podman) and not probe.is_podman({"Components": [{"Name": "Engine"}]})


def test_labels_and_paths() -> None:
    assert labels("c", "s", []) == {"aviato.server": "c", "aviato.sandbox": "s"}
    assert labels("c", "s", ["a=b=c"])["aviato.tag.a"] == "b=c"
    assert unmountable("/data/x") is None
    assert all(map(unmountable, ("/proc", "/proc/1", "/dev/x", "/sys", "/.aviato-init", "/.aviato-place/x", "/a,b")))
