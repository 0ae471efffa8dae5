"""Verdicts on code, and functions."""

from __future__ import annotations

import pytest

import aviato
from aviato.promises.declared import limits, needs
from aviato.rl import ProgramCase, Task, Verdict, evaluate
from aviato.server.backends.capabilities import Capability

TEST = """
from solution import double

def test_it():
    assert double(2) == 4

def test_more():
    assert double(3) == 6
"""
CHEATS = """
def double(n):
    return Equal()

class Equal(int):
    def __eq__(self, other):
        return True
"""
GOOD, WRONG, HANGS, EXITS = (
    "def double(n):\n    return 2 * n\n",
    "def double(n):\n    return n + 2\n",
    "def double(n):\n    while True: pass\n",
    "import os\ndef double(n):\n    os._exit(0)\n",
)


def test_cases(session: aviato.Session) -> None:
    """Each case has a verdict of its own: right, wrong, too slow, gone; none of them is the infrastructure's."""
    tests = ("assert double(2) == 4", "assert double(5) == 10")
    tasks = [Task(code=code, tests=tests) for code in (GOOD, WRONG, HANGS, EXITS)]
    outcomes = evaluate(tasks, timeout_seconds=5).result()
    assert [outcome.passed for outcome in outcomes] == [True, False, False, False]
    assert [outcome.reward() for outcome in outcomes] == [1.0, 0.0, 0.0, 0.0]
    assert outcomes[0].verdict is Verdict.PASSED and outcomes[2].verdict is Verdict.TIMED_OUT
    assert [case.status for case in outcomes[1].cases] == ["passed", "failed"]
    assert Verdict.INFRASTRUCTURE not in [outcome.verdict for outcome in outcomes]


def test_a_test_file(session: aviato.Session) -> None:
    """Tests in the form of a file are run against the code as a module."""
    outcomes = evaluate([Task(code=code, tests=[TEST]) for code in (GOOD, WRONG)]).result()
    assert [outcome.passed for outcome in outcomes] == [True, False]


def test_programs(session: aviato.Session) -> None:
    """Programs are given input and judged by what they print."""
    cases = (ProgramCase(stdin="2 3\n", expected_stdout="5\n"), ProgramCase(stdin="10 -4\n", expected_stdout="6\n"))
    codes = tuple(f"a, b = map(int, input().split())\nprint({result})\n" for result in ("a + b", "a + abs(b)", "a / 0"))
    outcomes = evaluate([Task(code=code, tests=cases) for code in codes]).result()
    assert [outcome.passed for outcome in outcomes] == [True, False, False]


@limits("memory")
def test_out_of_memory(session: aviato.Session) -> None:
    """Code that goes over the memory limit has failed, and not the machine."""
    code = "def double(n):\n    return len(bytearray(b'x') * (1 << 30))\n"
    (outcome,) = evaluate([Task(code=code, tests=("assert double(2) == 4",))], resources={"memory": "256Mi"}).result()
    assert outcome.reward() == 0.0 and outcome.verdict is not Verdict.INFRASTRUCTURE


@pytest.mark.parametrize("mode", ["in_process", "separate"])
def test_a_grade(session: aviato.Session, declared, mode: str) -> None:
    """`grade` runs tests in a sandbox of their own over the results that are named."""
    if mode == "separate" and Capability.LOCAL_SOCKETS not in declared.capabilities:
        pytest.skip("declares no 'local_sockets'; see refusals")
    test = {"test_it.py": b"from solution import double\nassert double(5) == 10\n"}
    for code, passed in ((GOOD, True), (WRONG, False)):
        sandbox = session.sandbox()
        sandbox.write_file("solution.py", code.encode()).result()
        given = {"result_paths": ["solution.py"], "timeout_seconds": 30}
        assert sandbox.grade(test, ["python3", "test_it.py"], mode=mode, **given).result().passed is passed  # type: ignore[arg-type]


@needs(Capability.LOCAL_SOCKETS)
def test_separate_evaluation(session: aviato.Session) -> None:
    """`grading="separate"`: what the code does in its own process cannot make its tests pass."""
    tasks = [Task(code=code, tests=("n = 2\nassert double(n) == 4",), grading="separate") for code in (GOOD, CHEATS)]
    assert [outcome.passed for outcome in evaluate(tasks).result()] == [True, False]


def test_a_function(session: aviato.Session) -> None:
    """A remote function gives its value, and its exception as an error of the task."""

    @session.function()
    def divide(one, two):
        return one / two

    assert divide.remote(6, 3).result() == 2
    with pytest.raises(aviato.SandboxExecutionError) as caught:
        divide.remote(1, 0).result()
    assert caught.value.exception_type == "ZeroDivisionError" and not caught.value.is_infrastructure
