"""Attacks on verdicts: each fails as things are, and succeeds where its defence is taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aviato
from aviato.grading import driver
from aviato.rl import CallCase, Outcome, ProgramCase, Task, blame, checker, checkers, evaluate, graders, separation

pytestmark = pytest.mark.attack


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with aviato.Session() as made:
        yield made


@pytest.fixture
def outcome(session: aviato.Session) -> Callable[[Task], Outcome]:
    return lambda task: evaluate([task], session=session, timeout_seconds=20).result(50)[0]


def test_what_is_expected_is_in_no_sandbox_of_a_program(outcome: Callable[[Task], Outcome]) -> None:
    thief = "import glob\nprint(next((open(path).read() for path in glob.glob('expected*')), 'nothing'))"
    task = Task(code=thief, tests=[ProgramCase("", "the answer")])
    assert outcome(task).reward() == 0.0
    given = Task(code=thief, tests=[ProgramCase("", "the answer", files={"expected.txt": b"the answer"})])
    assert outcome(given).reward() == 1.0, "the control: the same program, where its sandbox has the answer"


def test_a_value_is_data(outcome: Callable[[Task], Outcome]) -> None:
    equal = "class Equal(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\ndef double(n): return Equal(5)"
    assert outcome(Task(code=equal, tests=[CallCase("double", [2], 4)])).reward() == 0.0
    assert outcome(Task(code=equal, tests=["assert double(2) == 4"])).reward() == 1.0, "the control: compared where the code is"


def test_an_answer_that_breaks_the_checker_is_wrong(
    outcome: Callable[[Task], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = checker("import sys\nprint(int(int(open(sys.argv[3]).read()) == 4))", "python")
    task = Task(code="print('no number')", tests=[ProgramCase("", "4", judge=judge)])
    assert outcome(task).reward() == 0.0

    async def believed(*_: Any) -> None:
        raise checkers.JudgeFailed("the checker failed")

    monkeypatch.setattr(checkers, "_works", set())
    monkeypatch.setattr(checkers, "_check_works", believed)
    assert outcome(task).reward() is None, "the control: whoever fails the checker has no verdict"


def test_the_code_cannot_say_that_the_tests_cannot_be_loaded(
    outcome: Callable[[Task], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def double(n): raise ModuleNotFoundError(\"No module named 'math'\")"
    task = Task(code=code, tests=["import math\nassert double(2) == 4"])
    assert outcome(task).reward() == 0.0

    async def believed(_: Any, task: Task) -> str:
        return "the tests cannot be loaded"

    monkeypatch.setattr(blame.Blame, "_of_tests", believed)
    assert outcome(task).reward() is None, "the control: what the code says is believed"


def test_a_case_that_reached_no_check_has_not_passed(
    outcome: Callable[[Task], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(code="def items(n): return []", tests=["for item in items(3): assert item == 3"])
    assert outcome(task).reward() == 0.0
    monkeypatch.setattr(driver.Case, "told", lambda case: {**TOLD(case), "counts": False})
    assert outcome(task).reward() == 1.0, "the control: nobody counts"


TOLD = driver.Case.told
LEAVES = "assert double(2) == 4\npath = '/tmp/left'\nexec('open(path, \"w\").write(path)')"
FINDS = "import os\nassert double(2) == 4 and os.path.exists('/tmp/left')"


def test_what_a_test_leaves_in_a_grader_does_not_reach_the_next(
    session: aviato.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def double(n): return 2 * n"

    def second() -> bool:
        for source in (LEAVES, FINDS):
            task = Task(code=code, tests=[source], grading="separate")
            (found,) = evaluate([task], session=session, timeout_seconds=20).result(50)
        return found.passed

    assert second() is False
    monkeypatch.setattr(separation, "shares_grader", lambda task: True)
    assert second() is False, "a grader whose directories have changed has no further task either"

    def forgets(place: graders.Place, left: Any) -> None:
        place._begun -= 1
        place._look()

    monkeypatch.setattr(graders.Place, "_left", forgets)
    assert second() is True, "the control: neither the test's text nor what has changed is looked at"
