"""GRPO runs under the real TRL: the reward function is called, and rewards and advantages are those computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.rl_trl.by_hand import advantages, logged, mean

GROUP = 4
STEPS = 10
KINDS = ("blocking, strings", "async, messages")


@pytest.fixture(scope="module")
def runs(run_script: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return run_script("training.py", *KINDS, "lost", "lost beside another")


@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_with_the_reward_function(runs: dict[str, Any], kind: str) -> None:
    run = runs[kind]
    assert run["error"] is None
    assert (len(run["batches"]), run["moved"]) == (STEPS, True)
    expected = [1.0, 0.0, 0.0, 1.0] * 2
    for batch in run["batches"]:
        assert batch["names"] == ["unit"]
        assert [value for (value,) in batch["rewards"]] == expected
        assert batch["advantages"] == batch["logged_advantages"] == pytest.approx(advantages(expected, GROUP), abs=1e-5)
    assert {number for batch in run["batches"] for number in batch["numbers"]} == set(range(5))
    assert logged(run, "rewards/unit/mean") == [0.5] * STEPS
    if int(runs["version"].split(".")[0]) >= 1:
        assert (logged(run, "unit/skipped"), logged(run, "unit/infrastructure")) == ([0.25] * STEPS, [0.0] * STEPS)


def test_every_third_sandbox_lost_to_the_machine(runs: dict[str, Any]) -> None:
    run = runs["lost"]
    if tuple(map(int, runs["version"].split(".")[:2])) < (1, 6):
        name, _, note = run["error"]
        assert name.startswith("Sandbox")
        assert "code_reward: 2 of 8 completions have no verdict" in note
        assert (run["batches"], logged(run, "reward")) == ([], [])  # raised: not one reward of 0 was logged
        return
    expected = [None if index % 3 == 2 else float(index % 2 == 0) for index in range(2 * GROUP)]
    assert expected.count(None) == 2
    assert run["error"] is None
    assert len(run["batches"]) == STEPS
    for batch in run["batches"]:
        assert [value for (value,) in batch["rewards"]] == expected
        assert batch["advantages"] == batch["logged_advantages"] == pytest.approx(advantages(expected, GROUP), abs=1e-5)
        assert [batch["advantages"][index] for index, reward in enumerate(expected) if reward is None] == [0.0] * 2
    assert logged(run, "reward") == pytest.approx([mean(expected)] * STEPS)
    assert logged(run, "rewards/code_reward/mean") == pytest.approx([mean(expected)] * STEPS)
    assert logged(run, "code_reward/infrastructure") == [0.25] * STEPS
    assert all(math.isfinite(loss) for loss in logged(run, "loss"))


def test_beside_another_reward_function_a_lost_sandbox_raises(runs: dict[str, Any]) -> None:
    """There every version of TRL would add a 0 for it."""
    run = runs["lost beside another"]
    name, _, note = run["error"]
    assert name.startswith("Sandbox")
    assert "code_reward: 2 of 8 completions have no verdict" in note
    assert (run["batches"], logged(run, "reward")) == ([], [])
