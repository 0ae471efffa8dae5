"""verl's reward function: the forms of its ground truths, and what is said where the machine fails."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
from typing import Any

import pytest

from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.rl.verl import compute_score

pytestmark = pytest.mark.anyio

RIGHT = "```python\ndef double(n):\n    return 2 * n\n```"
PROGRAM = "```python\nprint(int(input()) * 2)\n```"
KEYS = {"score", "pass_rate", "timed_out", "no_code", "infra_error"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def served(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)


async def score(solution: str, truth: Any, **options: Any) -> tuple[float, float]:
    found = await compute_score("source", solution, truth, {}, **options)
    assert found.keys() == KEYS and all(isinstance(value, float) for value in found.values())
    return found["score"], found["pass_rate"]


def test_it_is_what_verl_takes() -> None:
    """A plain `async def` of a module: an async `__call__` would be taken for sync, and its coroutine for the score."""
    assert inspect.iscoroutinefunction(compute_score) and pickle.loads(pickle.dumps(compute_score)) is compute_score


async def test_tests(served: None) -> None:
    assert await score(RIGHT, "assert double(2) == 4") == (1.0, 1.0)
    assert await score(RIGHT, ["assert double(2) == 4", "assert double(3) == 9"]) == (0.0, 0.5)
    assert await score(
        RIGHT, json.dumps({"assert_case": ["assert double(2) == 4", "assert double(3) == 9"]}), continuous=True
    ) == (0.5, 0.5)
    assert await score("I do not know.", "assert double(2) == 4") == (0.0, 0.0)
    assert await score("```python\nimport os; os._exit(0)\n```", "assert double(2) == 4") == (0.0, 0.0)


async def test_programs_and_functions(served: None) -> None:
    cases = {"inputs": ["2\n", "5"], "outputs": ["4", "10\n\n"]}
    assert await score(PROGRAM, json.dumps(cases), reward_router_address=None) == (1.0, 1.0)
    assert await score(PROGRAM, {**cases, "outputs": ["4", "11"]}) == (0.0, 0.5)
    functions = {"inputs": ["2", "[1]"], "outputs": ["4", "[1, 1]"], "fn_name": "double"}
    assert await score(RIGHT, functions) == (1.0, 1.0)
    method = "```python\nclass Solution:\n    def double(self, n): return 2 * n\n```"
    assert await score(method, {**functions, "outputs": ["4", "[1]"]}) == (0.0, 0.5)


async def test_too_slow(served: None) -> None:
    found = await compute_score("", "```python\nwhile True: pass\n```", "assert double(1) == 2", timeout_seconds=0.5)
    assert found["score"] == 0.0 and found["timed_out"] == 1.0


@pytest.mark.parametrize("truth", [None, [], {}, {"inputs": ["1"], "outputs": []}, ["", " "]])
async def test_nothing_to_test_with(served: None, truth: Any) -> None:
    with pytest.raises(AviatoValidationError):
        await compute_score("", RIGHT, truth)


@pytest.mark.usefixtures("soon_given_up")
async def test_the_machine_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", "unix:///nowhere/aviato.sock")
    raised, found = await asyncio.gather(
        compute_score("", RIGHT, "assert double(1) == 2", retry_budget_seconds=0),
        compute_score(
            "",
            RIGHT,
            {"inputs": ["1"], "outputs": ["1"]},
            retry_budget_seconds=0,
            on_infrastructure="score",
            infrastructure_score=-1.0,
        ),
        return_exceptions=True,
    )
    assert isinstance(raised, AviatoError) and raised.is_infrastructure
    assert isinstance(found, dict) and found.keys() == KEYS
    assert (found["score"], found["infra_error"]) == (-1.0, 1.0)
