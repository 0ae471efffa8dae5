"""The README, by somebody who has nothing but a fresh clone: each command as it stands, from top to bottom."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import make_state_dir, remove, stop_embedded
from tests.installation.conftest import call, clean

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ACTIVATED = "With the environment activated (`source .venv/bin/activate`)"
TESTS = ".venv/bin/python -m pytest -q -n auto"


@pytest.fixture(scope="module")
def newcomer(clone: Path, uv: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """A clone that nothing was done to, and variables without an environment of ours."""
    folder = tmp_path_factory.mktemp("newcomer") / "aviato"
    shutil.copytree(clone, folder)
    python = Path(os.path.realpath(sys.executable)).parent
    state = make_state_dir()
    yield folder, {"PATH": f"{python}:/usr/local/bin:/usr/bin:/bin:{uv.parent}", "AVIATO_STATE_DIR": str(state)}
    stop_embedded(state)
    remove(state)


def test_each_command_from_top_to_bottom(newcomer: tuple[Path, dict[str, str]]) -> None:
    folder, variables = newcomer
    page = (folder / "README.md").read_text(encoding="utf-8")
    ran = 0
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        language, source = match.groups()
        begin = "source .venv/bin/activate && " if ACTIVATED in page[: match.start()] else ""
        if language == "python":
            (folder / "snippet.py").write_text(source)
            said = call("bash", "-c", f"{begin}python snippet.py", cwd=folder, environment=variables)
            assert said
            (folder / "snippet.py").unlink()
        elif source.startswith("aviato serve"):
            serve(f"{begin}exec {source}", folder, variables)
        else:
            # The whole suite is not for here: that it begins is.
            line = source.replace(TESTS, f"{TESTS} --collect-only tests/server/test_settings.py")
            said = call("bash", "-c", f"{begin}{line}", cwd=folder, environment=variables, seconds=600)
            assert "Pass rate: 3/5 (60%)" in said or "tests collected" in said or "test_settings" in said, said
        ran += 1
    assert ran == 6
    assert call("git", "status", "--porcelain", cwd=folder) == ""


def test_commands_in_the_text(newcomer: tuple[Path, dict[str, str]]) -> None:
    """What stands between backticks and begins like a command is there after the first one."""
    folder, variables = newcomer
    assert (folder / ".venv").exists(), "the first command makes it"
    text = (folder / "README.md").read_text(encoding="utf-8")
    found = re.findall(
        r"`((?:\.venv/bin/|source |aviato )[^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    )
    assert found == [".venv/bin/aviato doctor", "source .venv/bin/activate"]
    for line in found:
        call("bash", "-c", line, cwd=folder, environment=variables)


def serve(command: str, folder: Path, variables: dict[str, str]) -> None:
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=clean(variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        printed = next((line for line in process.stdout if line.startswith("export AVIATO_BASE_URL=unix://")), None)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(20) == 0, rest
    assert printed and shlex.split(printed)
