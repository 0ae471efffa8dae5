"""The example, as a user runs it: its lines are the guides', numbers and names masked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guides import blocks

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "rl_training" / "trl_grpo_integration.py"
SCRIPTED = Path(__file__).with_name("scripted_example.py")
CALL = re.compile(r"^\s*\[Aviato\] Reward call (\d+): \d+ sandboxes, \d+/\d+ passed(, \d+ skipped \(no code\))?$")


def run(environment: dict[str, str], script: Path, *flags: str) -> list[str]:
    command = [sys.executable, str(script), *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def guide(name: str) -> list[str]:
    """The lines that a guide shows for this example; the middle ones stand as `...` there."""
    text = blocks.renamed((blocks.SEEDS / {**blocks.FENCED, "c": blocks.HOSTED}[name]).read_text(encoding="utf-8"))
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("TRL GRPO Integration Example"))
    last = next(n for n in range(first, len(lines)) if lines[n].startswith("Training completed"))
    return lines[first : last + 1]


def masked(lines: list[str]) -> list[str]:
    """Every reward call is the same line; what the trainer logs is one."""
    found = []
    for line in lines:
        line = re.sub(r"\(job: [0-9a-f]{8}\)", "(job: X)", line)
        line = re.sub(r"^Loading model: .*", "Loading model: X", line)
        line = re.sub(r"^\{'(loss|train_runtime)'.*", "[training logs]", line)
        if CALL.match(line) or line.strip() == "...":
            line = "  [Aviato] Reward call"
        if not (found and line == found[-1]):
            found.append(line)
    return found


@pytest.fixture(scope="module")
def tiny(environment: dict[str, str]) -> list[str]:
    return run(environment, EXAMPLE, "--tiny")


@pytest.mark.skipif(not blocks.SEEDS.exists(), reason="the guides are not on this machine (../shared/seeds)")
def test_output_is_the_guides_line_by_line(tiny: list[str]) -> None:
    assert masked(tiny) == masked(guide("a")) == masked(guide("b"))
    assert [line.strip() for line in masked(tiny) if line] == [line.strip() for line in masked(guide("c")) if line]


def test_ten_calls_in_order(tiny: list[str]) -> None:
    assert [int(found[1]) for line in tiny if (found := CALL.match(line))] == list(range(1, 11))


def test_what_the_lines_count(environment: dict[str, str], tmp_path: Path) -> None:
    printed = run(environment, SCRIPTED, "--tiny", "--steps", "4", "--counts", str(tmp_path / "counts.json"))
    assert [line for line in printed if CALL.match(line)] == [
        "  [Aviato] Reward call 1: 2 sandboxes, 1/2 passed",
        "  [Aviato] Reward call 2: 1 sandboxes, 1/1 passed, 1 skipped (no code)",
        "  [Aviato] Reward call 3: 0 sandboxes, 0/0 passed, 2 skipped (no code)",
        "  [Aviato] Reward call 4: 2 sandboxes, 1/2 passed",
    ]
    assert [each["passed"] for each in json.loads((tmp_path / "counts.json").read_text())] == [1, 1, 0, 1]


def test_without_a_hub_it_ends_with_the_way_without_one(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--model", "nobody/no-such-model"],
        env={**environment, "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "The model nobody/no-such-model cannot be loaded: " in done.stderr
    assert "Without a hub: --tiny, --smollm2 DIR, or --model FOLDER." in done.stderr
