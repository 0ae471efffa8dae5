"""`aviato image build` against a real server, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
TEXT = "FROM host AS one\nARG A=1\nRUN echo {} $A >/srv/a\nFROM one\nCOPY f /srv/\nCMD true\n"


@pytest.fixture
def cli(server: Any, tmp_path: Path) -> Cli:
    """Run `aviato image …` to its end."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "AVIATO_BASE_URL": server.url, **variables}
        command = [sys.executable, "-m", "aviato", "image", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, timeout=250, check=False, text=True, cwd=tmp_path)

    return run


def test_a_build(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(TEXT.format(tmp_path.name))
    (tmp_path / "f").write_text("f")
    done = cli("build", "-t", "cli/built:1", ".")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        f"step 1 of 3: Dockerfile:3: RUN echo {tmp_path.name} $A >/srv/a",
        "step 2 of 3: Dockerfile:5: COPY f /srv/",
        "step 3 of 3: Dockerfile:6: CMD true",
    ]
    image_id, name = done.stdout.split()
    assert name == "cli/built:1" and json.loads(cli("inspect", name).stdout)["image_id"] == image_id
    again = cli("build", "--tag", "cli/built:1", str(tmp_path))
    assert again.stdout == done.stdout and [line[:9] for line in again.stderr.splitlines()] == ["CACHED st"] * 3


def test_its_options(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "other").write_text(TEXT.format(tmp_path))
    one = cli("build", "-f", "other", "--target", "one", "--build-arg", "A=2", "--network", "none", "context")
    same = cli("build", "-f", "other", "--target", "0", "--build-arg", "A", "context", A="2")
    assert (one.returncode, same.stderr[:6]) == (0, "CACHED") and one.stdout == same.stdout
    assert one.stdout.split()[1].startswith("aviato.build/")
    for arguments, status, said in (
        (["-f", "other", "context"], 125, "aviato: an image cannot be built: other:5: COPY f /srv/: "),
        (["context"], 125, "context/Dockerfile"),
        (["-f", "other", "--target", "two", "context"], 125, "aviato: other has no stage 'two'"),
        (["none"], 2, "'none' does not exist"),
        (["-f", "other", "--build-arg", "=1", "context"], 2, "'=1' is not NAME=VALUE"),
        (["-f", "other", "--network", "host", "context"], 2, "'host' is not available"),
    ):
        done = cli("build", *arguments)
        assert done.returncode == status and said in done.stderr and not done.stdout, done
