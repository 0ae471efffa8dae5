"""The first example, as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.guides import blocks
from tests.matrices import deep

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "rl_training" / "reward_function.py"


def run_example(base_url: str, *flags: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AVIATO_BASE_URL": base_url}
    command = [sys.executable, str(EXAMPLE), *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)


def masked(line: str) -> str:
    return re.sub(r"\(job: [0-9a-f]{8}\)", "(job: XXXXXXXX)", line)


def in_any_order(lines: list[str]) -> list[str]:
    """The two completions that do not sleep may arrive in either order."""
    first = next(n for n, line in enumerate(lines) if line.lstrip().startswith("[1/5]"))
    pair = sorted(re.sub(r"\[\d/5\]", "[?/5]", line) for line in lines[first : first + 2])
    return [*lines[:first], *pair, *lines[first + 2 :]]


@pytest.mark.skipif(not blocks.SEEDS.exists(), reason="the guides are not on this machine (../shared/seeds)")
def test_output_is_the_guide_s_line_by_line(server: Any) -> None:
    done = run_example(server.url)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    printed = [masked(line) for line in done.stdout.splitlines()]
    words = in_any_order([line.strip() for line in printed if line.strip()])
    assert words == in_any_order([masked(line) for line in blocks.expected_output("c") if line.strip()])
    layout = [masked(line) for line in blocks.expected_output("a")]
    assert [line == "" for line in printed] == [line == "" for line in layout]
    assert [len(line) - len(line.lstrip()) for line in printed] == [len(line) - len(line.lstrip()) for line in layout]
    assert [line for line in printed if "reward=" in line] == [line for line in layout if "reward=" in line]


def test_shuffled_sleeps_change_the_order_of_arrival_and_no_reward(server: Any) -> None:
    done = run_example(server.url, "--shuffle")
    assert done.returncode == 0, done.stderr
    assert "UNEXPECTED" not in done.stdout
    assert "Total reward: 3.0/5" in done.stdout


@pytest.mark.parametrize("url", ["unix:///nowhere/at/all/aviato.sock", *deep(["http://127.0.0.1:9"])])
def test_an_unreachable_server_gives_no_reward(url: str) -> None:
    done = run_example(url)
    assert done.returncode not in (0, None)
    assert "reward=" not in done.stdout
    assert "Total reward" not in done.stdout
    assert "SandboxUnavailableError" in done.stderr or "AviatoAuthenticationError" in done.stderr
    assert "Traceback" not in done.stderr
