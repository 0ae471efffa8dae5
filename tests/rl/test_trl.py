"""The reward function as a trainer calls it, without a trainer: real sandboxes, both kinds of function, bad input."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import inspect
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections import UserList
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import Outcome, Task, TestCase, Verdict
from aviato.rl.trl import code_reward
from aviato.rl.trl.verdicts import Scale

RIGHT = "<answer>def double(n): return 2 * n</answer>"
WRONG = "<answer>def double(n): return n * n</answer>"
TESTS = ["assert double(2) == 4", "assert double(3) == 6"]


@pytest.fixture
def served(server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    return server


@pytest.fixture
def session(served: Any) -> Iterator[aviato.Session]:
    with aviato.Session() as made:
        yield made


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    def find(name: str) -> str:
        assert name == "trl"
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", find)


def call(reward: Any, completions: list[Any], **columns: Any) -> list[float | None]:
    """As the trainers do: everything by keyword, more than is asked for, async functions on a loop of their own."""
    given = {
        "prompts": ["?"] * len(completions),
        "completion_ids": [[1]] * len(completions),
        "trainer_state": object(),
        **columns,
    }
    made = reward(completions=completions, **given)
    return asyncio.run(made) if asyncio.iscoroutinefunction(reward) else made


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_rewards_come_in_order_for_strings_and_messages(asynchronous: bool, session: aviato.Session) -> None:
    reward = code_reward(asynchronous=asynchronous, session=session)
    texts = [RIGHT, "I do not know.", WRONG, RIGHT]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    assert call(reward, texts, tests=[TESTS] * 4) == [1.0, 0.0, 0.0, 1.0]
    assert call(reward, messages, tests=[TESTS] * 4) == [1.0, 0.0, 0.0, 1.0]
    other = code_reward(asynchronous=asynchronous, session=session, passed=2.0, failed=-1.0, skipped=-2.0)
    assert call(other, texts, tests=[TESTS] * 4) == [2.0, -2.0, -1.0, 2.0]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_every_version_of_trl_finds_its_name_and_its_kind(asynchronous: bool) -> None:
    reward = code_reward(name="unit_tests", asynchronous=asynchronous)
    assert reward.__name__ == "unit_tests"
    assert asyncio.iscoroutinefunction(reward) is inspect.iscoroutinefunction(reward) is asynchronous
    inner: Any = reward
    while isinstance(inner, functools.partial):  # how TRL looks from 1.10 on
        inner = inner.func
    assert (inner.__name__, inspect.iscoroutinefunction(inner)) == ("unit_tests", asynchronous)


def first_fence(completion: Any) -> str | None:
    return str(completion).strip("`")


def by_row(code: str | None, row: Mapping[str, Any]) -> Task | None:
    return None if row["number"] is None else Task(code=code, tests=[f"assert double(1) == {row['number']}"])


seen: list[str] = []


def remember(outcomes: list[Outcome]) -> None:
    seen[:] = [str(outcome.verdict) for outcome in outcomes]


def test_columns_by_name_expected_output_and_a_task_of_ones_own(session: aviato.Session) -> None:
    named = code_reward(tests_column="unit_tests", session=session)
    assert call(named, [RIGHT, WRONG], unit_tests=[TESTS[1], [TestCase(source=TESTS[0])]]) == [1.0, 1.0]
    with pytest.raises(aviato.AviatoValidationError, match=r"no column 'unit_tests'; its columns are: prompt_set, tests"):
        call(named, [RIGHT], tests=[TESTS], prompt_set=[1])
    printed = code_reward(session=session)
    prints = ["<answer>print('hello ')</answer>", "<answer>print('bye')</answer>", "<answer>print('hello'); exit(0)</answer>"]
    assert call(printed, prints, expected_output=["hello", "hello", "hello"]) == [1.0, 0.0, 1.0]
    runs = code_reward(session=session)
    assert call(runs, ["<answer>1</answer>", "<answer>1/0</answer>"]) == [1.0, 0.0]
    own = code_reward(make_task=by_row, extract=first_fence, on_outcomes=remember, session=session)
    assert call(own, ["double = lambda n: 2", "double = abs", "x"], number=[2, 2, None]) == [1.0, 0.0, 0.0]
    assert seen == ["passed", "failed", "skipped"]


def test_bad_completions_have_clear_outcomes_and_the_run_goes_on(session: aviato.Session) -> None:
    outcomes: list[Outcome] = []
    reward = code_reward(session=session, on_outcomes=outcomes.extend)
    parts = [{"role": "assistant", "content": [{"type": "text", "text": RIGHT}, {"type": "image", "image": b"\0"}]}]
    huge = f"<answer>x = '{'a' * 10_000_000}'\ndef double(n): return 2 * n</answer>"
    bad = {
        "None": (None, "skipped"),
        "empty": ("", "skipped"),
        "no message": ([], "skipped"),
        "message of None": ([{"role": "assistant", "content": None}], "skipped"),
        "10 MB": (huge, "passed"),
        "10 MB of noise": ("<answer>" + "(" * 10_000_000, "failed"),
        "binary": (b"\xff\x00<answer>\x00\x80</answer>", "failed"),
        "surrogate": ("<answer>x = '\ud800'</answer>", "failed"),
        "parts": (parts, "passed"),
        "right": (RIGHT, "passed"),
    }
    rewards = call(reward, [completion for completion, _ in bad.values()], tests=[TESTS] * len(bad))
    assert {name: str(outcome.verdict) for name, outcome in zip(bad, outcomes, strict=True)} == {
        name: verdict for name, (_, verdict) in bad.items()
    }
    assert rewards == [1.0 if verdict == "passed" else 0.0 for _, verdict in bad.values()]


def test_a_row_without_tests_is_skipped_and_never_passes(session: aviato.Session, caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[Outcome] = []
    reward = code_reward(session=session, on_outcomes=outcomes.extend, skipped=-0.5)
    rows = [None, [], ["  "], [None], 7, {"a": 1}, TESTS]
    for _ in range(2):
        assert call(reward, [RIGHT] * len(rows), tests=rows) == [-0.5] * 6 + [1.0]
    assert outcomes[0].message == "the row has nothing to test with in 'tests'"
    assert outcomes[4].message == "'tests' holds no tests"
    assert caplog.text.count("such rows are skipped") == 2  # once for each reason
    assert call(reward, [RIGHT, RIGHT], tests=[None, None], expected_output=["", None]) == [1.0, -0.5]


LOST = aviato.SandboxUnavailableError("the server is gone")


def test_a_column_may_be_any_list_and_is_never_left_out(session: aviato.Session) -> None:
    rows = [*map(list, (TESTS, TESTS))]
    reward = code_reward(session=session)
    for column in (rows, tuple(rows), UserList(rows), dict(enumerate(rows)).values()):
        assert call(reward, [RIGHT, WRONG], tests=column) == [1.0, 0.0], type(column)
    assert call(reward, [RIGHT, "<answer>print(5)</answer>"], expected_output=UserList(["", "4"])) == [1.0, 0.0]
    for wrong in (rows[:1], [*rows, TESTS], TESTS[0], iter(rows), {"a": 1, "b": 2}, 7):
        for named in (reward, code_reward(tests_column="tests", session=session)):
            with pytest.raises(aviato.AviatoValidationError, match=r"'tests' .*2 completions"):
                call(named, [WRONG, WRONG], tests=wrong)
    with pytest.raises(aviato.AviatoValidationError, match=r"'expected_output' .*2 completions"):
        call(reward, [WRONG, WRONG], expected_output=["4"])
    assert call(reward, [RIGHT], tests=None) == [1.0]


def test_a_value_that_is_missing_is_missing_in_every_reader(session: aviato.Session) -> None:
    """pandas has NaN where a row has nothing; and a column of bytes is what the code has to print."""
    nan, prints = float("nan"), "<answer>print(4)</answer>"
    reward = code_reward(session=session, skipped=0.5)
    assert call(reward, [prints] * 3, expected_output=[b"4", nan, "nan"]) == [1.0, 0.5, 0.0]
    assert call(reward, [prints] * 3, tests=[nan, nan, ["print(5)"]], expected_output=["4", nan, "4"]) == [1.0, 0.5, 0.5]


def test_completions_are_a_list(session: aviato.Session) -> None:
    reward = code_reward(session=session)
    assert reward(completions=iter([RIGHT, WRONG]), tests=[TESTS, TESTS]) == [1.0, 0.0]
    assert reward(completions=[], tests=[]) == []
    for wrong in (RIGHT, RIGHT.encode(), {"role": "assistant", "content": RIGHT}, None):
        with pytest.raises(TypeError, match="completions must be a list"):
            reward(completions=wrong, tests=[TESTS])


@pytest.mark.parametrize("version", ["0.27.1", "1.5.2", "1.6.0.dev0", "1.6.0rc1", "unknown", None])
def test_no_verdict_raises_where_trl_would_count_it(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, version)
    outcomes = [Outcome(verdict=Verdict.PASSED), Outcome(verdict=Verdict.INFRASTRUCTURE, error=LOST)]
    with pytest.raises(aviato.SandboxUnavailableError, match="the server is gone") as caught:
        Scale().rewards("code_reward", outcomes)
    named = "A trainer" if version is None else f"TRL {version}"
    assert f"code_reward: 1 of 2 completions have no verdict. {named}" in caught.value.__notes__[-1]
    assert Scale(on_infrastructure="none").rewards("code_reward", outcomes) == [1.0, None]
    assert Scale().rewards("code_reward", outcomes[:1]) == [1.0]


@pytest.mark.parametrize("version", ["1.6.0", "1.16.0", "1.17.0.dev0", "2.0.0rc1"])
def test_no_verdict_is_none_where_trl_leaves_it_out(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed(monkeypatch, version)
    message = f"SandboxUnavailableError: {LOST}"
    outcomes = [Outcome(verdict=Verdict.INFRASTRUCTURE, message=message, error=LOST), Outcome(verdict=Verdict.FAILED)]
    assert Scale().rewards("code_reward", outcomes) == [None, 0.0]
    assert "code_reward: 1 of 2 completions have no verdict: SandboxUnavailableError: the server is gone" in caplog.text
    with pytest.raises(aviato.SandboxUnavailableError):
        Scale(on_infrastructure="raise").rewards("code_reward", outcomes)


@pytest.mark.usefixtures("soon_given_up")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_without_a_server_there_is_no_reward(asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = code_reward(base_url=f"unix://{tmp_path}/none.sock", retry_budget_seconds=0, asynchronous=asynchronous)
    logged: dict[str, float] = {}
    installed(monkeypatch, "1.6.0")
    assert call(reward, [RIGHT, "no code", WRONG], log_metric=logged.__setitem__) == [None, 0.0, None]
    assert (logged["code_reward/infrastructure"], logged["code_reward/skipped"]) == (2 / 3, 1 / 3)
    installed(monkeypatch, "1.5.2")
    with pytest.raises(aviato.SandboxUnavailableError):
        call(reward, [RIGHT, "no code"])


def in_a_child(reward: Callable[..., Any], base_url: str, queue: Any) -> None:
    os.environ["AVIATO_BASE_URL"] = base_url
    queue.put((reward.__name__, call(reward, [RIGHT, WRONG], unit_tests=[TESTS] * 2)))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_it_works_in_a_spawned_process(asynchronous: bool, session: aviato.Session) -> None:
    used = aviato.Session(aviato.SandboxDefaults(tags=("from-the-parent",)))
    reward = code_reward(
        name="unit_tests", asynchronous=asynchronous, tests_column="unit_tests", session=used, on_outcomes=remember
    )
    assert call(reward, [RIGHT], unit_tests=[TESTS]) == [1.0]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=in_a_child, args=(reward, os.environ["AVIATO_BASE_URL"], queue))
    child.start()
    try:
        assert queue.get(timeout=250) == ("unit_tests", [1.0, 0.0])
    finally:
        child.join(20)
        queue.close()
        queue.join_thread()
        used.close().result()
    copy = pickle.loads(pickle.dumps(reward))
    assert (copy.config.session, copy.config.options["defaults"].tags) == (None, ("from-the-parent",))
    assert not any(secret in pickle.dumps(reward) for secret in (b"Lock", b"loop"))


def test_a_mistake_is_refused_when_it_is_made() -> None:
    for wrong in (
        {"name": "two words"},
        {"on_infrastructure": "zero"},
        {"timeout_seconds": 0},
        {"max_concurrency": 0},
        {"retry_budget_seconds": -1},
        {"tests_column": "a", "make_task": by_row},
        {"tags": "one"},
        {"no_such_option": 1},
    ):
        with pytest.raises((TypeError, aviato.AviatoValidationError)):
            code_reward(**wrong)  # type: ignore[arg-type]


def test_importing_it_imports_no_trainer_and_starts_nothing() -> None:
    source = (
        "import json, sys, threading; from aviato.rl.trl import code_reward; code_reward(); code_reward(asynchronous=True);"
        "print(json.dumps([sorted({'trl', 'torch', 'transformers', 'datasets'} & set(sys.modules)), threading.active_count()]))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", source], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], 1]
