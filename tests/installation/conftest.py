"""A newly installed uv, a clone of this tree and what is built from it: for tests that install for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiling import QUICKLY

ROOT = Path(__file__).resolve().parents[2]


def call(*command: str | Path, cwd: Path | str = "/", environment: dict[str, str] | None = None, seconds: float = 840) -> str:
    """Run a command that must succeed; what it printed, both streams."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean(environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


def clean(more: dict[str, str]) -> dict[str, str]:
    """The variables of a user who has activated nothing. What each installation compiles need not be fast here."""
    ours = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in ours} | QUICKLY | more


@pytest.fixture(scope="session")
def uv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The newest one, in an environment of its own."""
    environment = tmp_path_factory.mktemp("uv") / "environment"
    call(sys.executable, "-m", "venv", environment)
    call(environment / "bin" / "python", "-m", "pip", "install", "-q", "uv")
    return environment / "bin" / "uv"


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree as a fresh clone would have it: what git knows, as it stands, committed to a repository of its own."""
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is no git repository, so that nobody can clone it")
    target = tmp_path_factory.mktemp("clone") / "aviato"
    target.mkdir()
    listed = call("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    names = [name for name in listed.split("\0") if name and (ROOT / name).exists()]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    call("git", "init", "-q", target)
    call("git", "-C", target, "add", "-A")
    call("git", "-C", target, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "as it stands")
    return target
