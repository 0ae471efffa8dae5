"""`math.inf` is no limit, of an item and of a case, whatever runs it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from aviato.rl import CallCase, ProgramCase, Task, TestCase, Verdict, evaluate, judges

CODE = "def double(n):\n    return 2 * n\n"
GRADED = "n = 2\nassert double(n) == 4"
CHECKER = judges.checker("print(1.0)", "python", timeout_seconds=math.inf)
ITEMS: dict[str, dict[str, Any]] = {
    "tests": {"code": CODE, "tests": ["assert double(2) == 4"]},
    "tests that are compared": {"code": CODE, "tests": ["assert double(2) == 4"], "grading": "separate"},
    "tests in a grader": {"code": CODE, "tests": [GRADED], "grading": "separate"},
    "calls": {"code": CODE, "tests": [CallCase("double", [2], 4)]},
    "programs": {"code": "print(1)", "tests": [ProgramCase("", "1")]},
    "a program": {"code": "print(1)", "expected_output": "1"},
    "a command": {"command": ["true"]},
}
CASES: dict[str, dict[str, Any]] = {
    "a test": {"code": CODE, "tests": [TestCase(source="assert double(2) == 4", timeout_seconds=math.inf)]},
    "a test in a grader": {"code": CODE, "tests": [TestCase(source=GRADED, timeout_seconds=math.inf)], "grading": "separate"},
    "a call": {"code": CODE, "tests": [CallCase("double", [2], 4, timeout_seconds=math.inf)]},
    "a program": {"code": "print(1)", "tests": [ProgramCase("", "1", timeout_seconds=math.inf)]},
    "a checker": {"code": "print(1)", "tests": [ProgramCase("", "1", judge=CHECKER)]},
    "a task's": {"code": CODE, "tests": ["assert double(2) == 4"], "case_timeout_seconds": math.inf},
    "beyond a task's": {
        "code": "import time\ndef double(n):\n    time.sleep(0.5)\n    return 2 * n\n",
        "tests": [CallCase("double", [2], 4, timeout_seconds=math.inf)],
        "case_timeout_seconds": 0.2,
    },
}


@pytest.mark.parametrize("kind", ITEMS)
def test_of_an_item(server: Any, kind: str) -> None:
    (outcome,) = evaluate([Task(**ITEMS[kind])], base_url=server.url, timeout_seconds=math.inf).result(50)
    assert (outcome.verdict, outcome.attempts) == (Verdict.PASSED, 1), outcome.message
    (outcome,) = evaluate([Task(**ITEMS[kind], timeout_seconds=math.inf)], base_url=server.url).result(50)
    assert (outcome.verdict, outcome.attempts) == (Verdict.PASSED, 1), outcome.message


@pytest.mark.parametrize("kind", CASES)
def test_of_a_case(server: Any, kind: str) -> None:
    (outcome,) = evaluate([Task(**CASES[kind])], base_url=server.url).result(50)
    assert (outcome.verdict, outcome.attempts) == (Verdict.PASSED, 1), outcome.message
