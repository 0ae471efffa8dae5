"""What is wrong in the environment is said in one sentence that names the variable, at once: no traceback, no retries."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import make_state_dir, remove

PROGRAM = """
import aviato
try:
    aviato.Sandbox().exec(["true"]).result()
except aviato.AviatoError as error:
    print(type(error).__name__, error.reason, error.retryable, error.is_infrastructure)
    print(error)
"""
REWARD = """
import asyncio
from aviato.rl import Task, evaluate
async def main():
    return await evaluate([Task(code="ok = True", tests=["assert ok"])] * 2)
[one, two] = asyncio.run(main())
print(one.verdict, one.reward())
print(one.message)
"""


def run(program: str, variables: dict[str, str]) -> list[str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("AVIATO_")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=mine | variables, capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


# The settings are tabled in tests/server/test_settings.py: an embedded server hands on what that says.
WRONG = [
    (
        "AVIATO_BACKEND",
        "nope",
        "there is no such backend; there are 'docker', 'kubernetes', 'landlock', 'local', or MODULE:CLASS",
    ),
    ("AVIATO_MAX_SANDBOXES", "many", "it must be a valid integer"),
    ("AVIATO_SETTINGS_FILE", "/nope.toml", "the file cannot be read: No such file or directory"),
]


@pytest.mark.parametrize(("name", "value", "said"), WRONG)
def test_a_setting_of_the_embedded_server(name: str, value: str, said: str) -> None:
    state = make_state_dir()
    try:
        lines = run(PROGRAM, {"AVIATO_STATE_DIR": str(state), name: value})
    finally:
        remove(state)
    assert lines == [
        "SandboxUnavailableError configuration False True",
        f"the embedded server cannot start: {name} is {value!r}: {said}",
    ]


@pytest.mark.parametrize(("value", "said"), [("/nope", "is missing"), ("/etc/passwd", "is no program")])
def test_a_program_that_is_none(value: str, said: str) -> None:
    state = make_state_dir()
    try:
        first, text = run(PROGRAM, {"AVIATO_STATE_DIR": str(state), "AVIATO_INIT": value})
    finally:
        remove(state)
    assert first == "SandboxUnavailableError cannot_run False True"
    assert text.endswith(f"AVIATO_INIT='{value}' {said}; to repair it: unset AVIATO_INIT, or have it name an aviato-init")


@pytest.mark.parametrize(
    "value", ["relative", "~/state", "/proc/x", "/dev/null", "/dev/null/x", "/etc/passwd/x", f"/tmp/{'x' * 300}"]
)
def test_a_state_directory(value: str) -> None:
    first, text = run(PROGRAM, {"AVIATO_STATE_DIR": value})
    assert first == "SandboxUnavailableError state_dir False True"
    assert text.startswith(f"AVIATO_STATE_DIR is {value!r}: ")


def test_a_state_directory_that_is_a_link_or_has_a_loop(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("link", "loop"):
        first, text = run(PROGRAM, {"AVIATO_STATE_DIR": str(tmp_path / name)})
        assert first == "SandboxUnavailableError state_dir False True"
        assert text.startswith(f"AVIATO_STATE_DIR is '{tmp_path / name}': ")


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
@pytest.mark.parametrize("closed", ["state", "state/embedded"])
def test_a_state_directory_that_cannot_be_written(tmp_path: Path, closed: str) -> None:
    (tmp_path / closed).mkdir(parents=True)
    (tmp_path / closed).chmod(0o500)
    first, text = run(PROGRAM, {"AVIATO_STATE_DIR": str(tmp_path / "state")})
    (tmp_path / closed).chmod(0o700)
    assert first == "SandboxUnavailableError state_dir False True"
    assert text.startswith(f"AVIATO_STATE_DIR is '{tmp_path / 'state'}': ") and "Permission denied" in text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_state_directory_of_somebody_else(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    _, text = run(PROGRAM, {"AVIATO_STATE_DIR": str(tmp_path)})
    assert text == f"AVIATO_STATE_DIR is '{tmp_path}': belongs to uid 12345, not to 0"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AVIATO_IMAGE_FALLBACK", "newest", "the only value it has is 'nearest'"),
        ("AVIATO_BASE_URL", "localhost", "use http://host:port"),
        ("AVIATO_RAISE_DESCRIPTOR_LIMIT", "no", "it is 0 or 1"),
    ],
)
def test_a_variable_of_the_client(name: str, value: str, said: str) -> None:
    state = make_state_dir()
    try:
        first, text = run(PROGRAM, {"AVIATO_STATE_DIR": str(state), "AVIATO_IDLE_EXIT": "1", name: value})
    finally:
        remove(state)
    assert first == "AviatoValidationError invalid False False"
    assert text.startswith(f"{name} is {value!r}") and said in text


@pytest.mark.parametrize("variable", [{"AVIATO_BACKEND": "nope"}, {"AVIATO_STATE_DIR": "/dev/null/x"}])
def test_an_evaluation_has_no_verdict_at_once(variable: dict[str, str]) -> None:
    """Nobody mends a variable while its budget of a minute runs."""
    state = make_state_dir()
    begin = time.monotonic()
    try:
        first, text = run(REWARD, {"AVIATO_STATE_DIR": str(state), **variable})
    finally:
        remove(state)
    assert first == "infrastructure None"
    assert next(iter(variable)) in text
    assert time.monotonic() - begin < 40


STOPPED = """
import aviato
sandbox = aviato.Sandbox()
try:
    sandbox.exec(["true"]).result()
except aviato.SandboxUnavailableError:
    sandbox.stop().result()
"""


def test_a_stop_starts_no_other_server() -> None:
    """Nothing was ever made, so there is nothing to end."""
    state = make_state_dir()
    try:
        assert run(STOPPED, {"AVIATO_STATE_DIR": str(state), "AVIATO_BACKEND": "nope"}) == []
        [log] = state.glob("embedded/*/log/server.log")
        assert log.read_text().count("cannot start: ") == 1
    finally:
        remove(state)
