"""Sandboxes that die from outside, the long and the failing ones most: no reward changes, some are missing at most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import aviato
from aviato.core import files
from aviato.rl import Outcome, Task, evaluate
from tests.rl.machine import killer

TESTS = ["assert f(2) == 4"]
SLOW = "import time; time.sleep(0.6)\n"
KINDS = [
    "def f(n): return n * 2",
    SLOW + "def f(n): return n * 2",
    SLOW + "def f(n): return n * 3",
    "def f(n):\n    while True: pass",
]
TASKS = [Task(code=code, tests=TESTS) for code in KINDS * 4]


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with aviato.Session() as made:
        yield made


def scored(session: aviato.Session, **options: Any) -> list[Outcome]:
    return evaluate(TASKS, session=session, timeout_seconds=2, max_concurrency=8, **options).result(55)


def disturbed(server: Any, session: aviato.Session, every: int, least: int, **options: Any) -> tuple[list[Outcome], int]:
    """What comes of them while some die, and how many did; a busy machine has the killer look too seldom now and then."""
    for _ in range(8):
        with killer(server.pid, every) as killed:
            outcomes = scored(session, **options)
        if len(killed) >= least:
            return outcomes, len(killed)
    raise AssertionError(f"never {least} were killed")


def test_rewards_of_a_disturbed_run_are_those_of_the_undisturbed_one(server: Any, session: aviato.Session) -> None:
    expected = [outcome.reward() for outcome in scored(session)]
    assert expected == [1.0, 1.0, 0.0, 0.0] * 4
    outcomes, killed = disturbed(server, session, 2, 3, retry_budget_seconds=0)
    rewards = [outcome.reward() for outcome in outcomes]
    assert 1 <= rewards.count(None) <= killed
    assert [(found, due) for found, due in zip(rewards, expected, strict=True) if found not in (None, due)] == []


def test_tried_again_none_is_missing(server: Any, session: aviato.Session) -> None:
    outcomes, _ = disturbed(server, session, 3, 2, retry_budget_seconds=60)
    assert [outcome.reward() for outcome in outcomes] == [1.0, 1.0, 0.0, 0.0] * 4
    assert any(outcome.attempts > 1 for outcome in outcomes), "some die when their results are there"


def test_a_sandbox_that_stands_still_before_the_code_is_there_is_tried_again(
    session: aviato.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tries = files.write_file, 0

    async def stands_still(handle: Any, path: str, *content: Any, **more: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise aviato.SandboxFileError(f"{path}: no answer in 45 s", filepath=path, reason="timeout")
        await write(handle, path, *content, **more)

    monkeypatch.setattr(files, "write_file", stands_still)
    tasks = [Task(code="def f(n): return n * 2", tests=TESTS, files={"data.txt": b"data"}), TASKS[0]]
    outcomes = evaluate(tasks, session=session).result(50)
    assert [(outcome.reward(), outcome.attempts) for outcome in outcomes] == [(1.0, 2), (1.0, 1)]
