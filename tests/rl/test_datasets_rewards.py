"""Rows of data sets in the reward functions: TRL's, which has them as columns, and verl's, which has them as ground truths."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import aviato
from aviato.exceptions import AviatoValidationError
from aviato.rl import Outcome
from aviato.rl.trl import code_reward
from aviato.rl.verl import compute_score
from tests.rl import dataset_rows as rows


@pytest.fixture(autouse=True)
def served(server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    return server


@pytest.fixture
def session(served: Any) -> Iterator[aviato.Session]:
    with aviato.Session() as made:
        yield made


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}```\n"


def call(reward: Any, example: rows.Example, answers: list[str], **columns: list[Any]) -> list[float | None]:
    """As a trainer calls it: a row's columns, each as often as there are completions of its prompt."""
    given = {name: [value] * len(answers) for name, value in example.row.items() if name != "prompt"}
    completions = [fenced(example.answers[answer]) for answer in answers]
    found: list[float | None] = reward(completions=completions, prompts=["?"] * len(answers), **{**given, **columns})
    return found


@pytest.mark.parametrize(
    "name", ["mbpp", "apps", "apps_calls", "livecodebench", "codeforces_files", "synthetic1_calls", "prime"]
)
def test_columns_are_a_row(name: str, session: aviato.Session) -> None:
    example = rows.EXAMPLES[name]
    reward = code_reward(dataset=example.dataset, grading=example.grading, session=session)
    answers = list(example.answers)
    wanted = {**example.harness, **example.here}
    assert call(reward, example, answers) == [float(wanted[answer]) for answer in answers]


def test_a_row_whole_in_a_column(session: aviato.Session) -> None:
    reward = code_reward(dataset="humaneval", row_column="row", grading="separate", session=session)
    for row in (rows.HUMANEVAL.row, json.dumps(rows.HUMANEVAL.row)):
        assert call(reward, rows.HUMANEVAL, ["right", "wrong"], row=[row, row]) == [1.0, 0.0]
    with pytest.raises(AviatoValidationError, match="a row of humaneval needs prompt; the columns are: canonical_solution"):
        call(code_reward(dataset="humaneval", session=session), rows.HUMANEVAL, ["right"])
    with pytest.raises(AviatoValidationError, match="no column 'rows'; its columns are"):
        call(code_reward(dataset="humaneval", row_column="rows", session=session), rows.HUMANEVAL, ["right"])


CPP = """#include <iostream>
int main() { long n, x, s = 0; std::cin >> n; while (n-- && std::cin >> x) s += x; std::cout << s; }
"""


def test_code_is_taken_out_in_the_row_s_language(session: aviato.Session) -> None:
    reward = code_reward(dataset="codeforces", session=session)
    completion = f"In C++:\n```cpp\n{CPP}```\nand in Python:\n```python\n{rows.SUMS['wrong']}```\n"
    row = {**rows.CODEFORCES.row, "language": "cpp"}
    assert reward(completions=[completion], **{name: [value] for name, value in row.items()}) == [1.0]


@pytest.mark.anyio
async def test_verl_takes_code_out_in_that_language_too() -> None:
    found = await compute_score("open-r1/codeforces", f"```c++\n{CPP}```", {**rows.CODEFORCES.row, "language": "cpp"})
    assert found["score"] == 1.0


def test_a_row_that_cannot_be_judged_is_skipped_and_told(session: aviato.Session, caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[Outcome] = []
    reward = code_reward(dataset="codeforces", session=session, skipped=-0.5, on_outcomes=outcomes.extend)
    formats = [None, "Ask for a number.", None, None]
    with caplog.at_level(logging.WARNING, "aviato"):
        found = call(reward, rows.CODEFORCES, ["right", "right", "right", "wrong"], interaction_format=formats)
    assert found == [1.0, -0.5, 1.0, 0.0]
    assert "it is interactive" in outcomes[1].message and caplog.text.count("such rows are skipped") == 1


def test_what_is_given_with_it_is_checked() -> None:
    for given, why in (
        ({"dataset": "mpbb"}, "dataset must be one of"),
        ({"dataset": "mbpp", "tests_column": "tests"}, "takes the place of"),
        ({"dataset": "mbpp", "make_task": lambda code, row: None}, "takes the place of"),
        ({"row_column": "row"}, "row_column is for dataset="),
        ({"grading": "apart"}, "grading must be"),
    ):
        with pytest.raises(AviatoValidationError, match=why):
            code_reward(**given)
    reward = pickle.loads(pickle.dumps(code_reward(dataset="mbpp", grading="separate")))
    assert (reward.config.columns.dataset, reward.config.columns.grading) == ("mbpp", "separate")


async def score(source: str, answer: str, truth: Any, **options: Any) -> tuple[float, float]:
    found = await compute_score(source, fenced(answer), truth, **options)
    return found["score"], found["pass_rate"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "name", ["mbpp", "humaneval", "taco", "code_contests", "livecodebench_calls", "bigcodebench", "prime_calls"]
)
@pytest.mark.parametrize("told", [True, False])
async def test_a_ground_truth_is_told_by_its_fields_or_its_source(name: str, told: bool) -> None:
    example = rows.EXAMPLES[name]
    truth = json.dumps(example.row) if told else dict(example.row)
    source = example.dataset if told else "my/own"
    for answer in ("right", "wrong"):
        assert (await score(source, example.answers[answer], truth, grading=example.grading))[0] == float(answer == "right")


@pytest.mark.anyio
async def test_the_form_of_a_source_may_be_verl_s_own() -> None:
    """PRIME's data names its sources `apps`, `taco` and so on, and has one form for all."""
    for source in ("apps", "taco", "codecontests", "codeforces"):
        assert await score(source, rows.SUMS["right"], rows.PRIME.row) == (1.0, 1.0)
    assert await score("taco", rows.SUMS["wrong"], rows.PRIME.row, continuous=True) == (1 / 3, 1 / 3)


UNKNOWN = {
    "an answer": "42",
    "prose": "The function doubles its argument.",
    "a solution": "def double(n):\n    return 2 * n",
    "a number": 42,
    "JSON of another kind": json.dumps({"answer": "42"}),
    "a dict of another kind": {"question": "?", "answer": "42"},
    "a list of numbers": [1, 2],
    "a list with prose": ["assert double(2) == 4", "the function doubles"],
    "nothing": None,
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", UNKNOWN)
async def test_what_is_of_no_known_form_is_refused(name: str) -> None:
    with pytest.raises(AviatoValidationError, match="ground_truth is of no form that is known"):
        await compute_score("source", fenced(rows.DOUBLE), UNKNOWN[name])
