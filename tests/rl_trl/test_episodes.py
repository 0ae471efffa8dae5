"""Episodes with tools under the real TRL: the model's calls reach the sandbox, and the rewards are those of its files."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from tests.rl_trl.by_hand import advantages, logged, mean

GROUP = 4
STEPS = 3


def version() -> tuple[int, ...]:
    found = importlib.metadata.version("trl") if importlib.util.find_spec("trl") else "99.0"
    return tuple(map(int, found.split(".")[:2]))


pytestmark = pytest.mark.skipif(version() < (1, 8), reason="environment_factory as tried here is that of TRL 1.8 and later")


@pytest.fixture(scope="module")
def runs(run_script: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return run_script("episodes.py", "whole", "own reward", "lost")


def test_the_model_is_told_what_the_tools_do(runs: dict[str, Any]) -> None:
    schemas = [schema["function"] for schema in runs["schemas"]]
    assert [schema["name"] for schema in schemas] == ["bash", "read_file", "write_file"]
    for schema in schemas:
        assert len(schema["description"]) > 10
        described = schema["parameters"]["properties"]
        assert set(schema["parameters"]["required"]) == set(described)
        assert all(parameter["type"] == "string" and parameter["description"] for parameter in described.values())


@pytest.mark.parametrize(("run", "name"), [("whole", "environment_reward"), ("own reward", "SelfGradingEnvironment")])
def test_rewards_are_those_of_the_files(runs: dict[str, Any], run: str, name: str) -> None:
    """By place: a right file, a wrong one, an unknown tool, a call that is broken JSON."""
    expected = [1.0, 0.0, 0.0, 0.0] * 2
    assert len(runs[run]["batches"]) == STEPS
    for batch in runs[run]["batches"]:
        assert batch["names"] == [name]
        assert [value for (value,) in batch["rewards"]] == expected
        assert batch["advantages"] == pytest.approx(advantages(expected, GROUP), abs=1e-5)
    assert logged(runs[run], f"rewards/{name}/mean") == [0.25] * STEPS


def test_the_model_reads_what_its_calls_did(runs: dict[str, Any]) -> None:
    heard = runs["whole"]["heard"]
    assert "{'error': 'Tool fly not found.'}" in heard
    assert "exit=0\n1\n2\n3\n" in heard
    assert "bytes left out …]" in heard


def test_every_third_episode_lost_to_the_machine(runs: dict[str, Any]) -> None:
    expected: list[float | None] = [1.0, 0.0, None, 0.0, 1.0, None, 0.0, 0.0]
    for batch in runs["lost"]["batches"]:
        assert [value for (value,) in batch["rewards"]] == expected
        assert batch["advantages"] == batch["logged_advantages"] == pytest.approx(advantages(expected, GROUP), abs=1e-5)
    assert logged(runs["lost"], "reward") == pytest.approx([mean(expected)] * STEPS)
    assert logged(runs["lost"], "environment_reward/infrastructure") == [0.25] * STEPS
