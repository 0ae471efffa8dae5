"""Rows of the data sets that people train on: right answers and wrong ones, and the verdict of each data set's own harness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import aviato
from aviato.rl import Verdict, evaluate
from aviato.rl.datasets import codeforces, task_of
from tests.attacks.grading.test_hacks import ENV, tools
from tests.rl.dataset_rows import EXAMPLES

# Answers whose harness passes them, though they are wrong: each is a way to be paid for nothing that is closed here.
DECEIVED = {
    ("mbpp", "equals everything"),
    ("mbpp_sanitized", "patches what the tests use"),
    ("apps_lines", "both answers for all"),
    ("apps_calls", "equals everything"),
    ("taco_calls", "equals everything"),
    ("livecodebench_calls", "equals everything"),
    ("kodcode", "early exit"),
    ("bigcodebench", "skips the tests"),
    ("codeforces_checker", "writes over the checker"),
}
# Answers that a bare run passes, and the harness does not for how it puts the program together.
HARNESS_AT_FAULT = {
    ("humaneval", "right, its body without its first indentation"),
    ("humaneval", "right, from the future"),
    ("apps", "right, as main"),
}


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with aviato.Session() as made:
        yield made


@pytest.mark.parametrize("name", EXAMPLES)
def test_verdicts_are_the_harness_s(name: str, session: aviato.Session) -> None:
    example = EXAMPLES[name]
    tasks = [task_of(example.dataset, example.row, code) for code in example.answers.values()]
    if example.grading == "separate":
        tasks = [replace(task, grading="separate") for task in tasks]
    if example.needs == "pytest":
        tasks = [replace(task, files={"tools.zip": tools()}, fresh_grader=True) for task in tasks]
    outcomes = evaluate(tasks, session=session, environment_variables=ENV).result(240)
    found = dict(zip(example.answers, outcomes, strict=True))
    if example.needs == "numpy" and not found["right"].passed:
        # Where the sandboxes' Python has none, that is said of an answer that comes to the tests, and none passes.
        assert found["right"].verdict is Verdict.INFRASTRUCTURE and "numpy" in found["right"].message
        assert not any(outcome.passed for outcome in outcomes)
        return
    wanted = {**example.harness, **example.here}
    assert {answer: outcome.passed for answer, outcome in found.items()} == wanted, {
        answer: outcome.message for answer, outcome in found.items()
    }


def test_what_an_earlier_case_wrote_is_no_answer(session: aviato.Session) -> None:
    once = "import os\nif not os.path.exists('done'):\n    open('done', 'w')\n    open('output.txt', 'w').write('3')\n"
    row = {**EXAMPLES["codeforces_files"].row, "official_tests": [{"input": "1 2", "output": "3"}] * 2}
    tasks = [codeforces(row, once), codeforces(row, "open('output.txt', 'w').write('3')")]
    first, second = evaluate(tasks, session=session).result(100)
    assert [case.passed for case in first.cases] == [True, False] and second.passed


def test_where_the_verdict_is_another_one_it_is_said_why() -> None:
    others = {(name, answer) for name, example in EXAMPLES.items() for answer in example.here}
    assert others == DECEIVED | HARNESS_AT_FAULT
    assert all(EXAMPLES[name].here[answer] is ((name, answer) in HARNESS_AT_FAULT) for name, answer in others)


def test_each_data_set_has_a_right_answer_and_three_wrong_ones() -> None:
    for name, example in EXAMPLES.items():
        wanted = {**example.harness, **example.here}
        assert wanted.keys() == example.answers.keys(), name
        assert wanted["right"] and sum(not one for one in wanted.values()) >= 3, name
