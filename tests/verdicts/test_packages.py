"""Grading code that imports a package of a virtual environment: the verdict is that of a bare run in that environment."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AviatoValidationError, SandboxExecutionError
from aviato.grading.remedies import PACKAGES
from aviato.rl import CallCase, Outcome, ProgramCase, Task, TestCase, Verdict
from tests.environments import interpreter, make_environment, site_of

GREETINGS = "def greet(name, word='hello'):\n    return f'{word}, {name}'\n"
RIGHT = "import greetings\ndef welcome(name):\n    return greetings.greet(name) + '!'\n"
WRONG = "import greetings\ndef welcome(name):\n    return greetings.greet(name, 'hi') + '!'\n"
UNLOADABLE = "import farewells\ndef welcome(name):\n    return 'hello, ' + name + '!'\n"
PROGRAM = "print(welcome(input()))\n"
CODES = {"right": RIGHT, "wrong": WRONG, "no such package": UNLOADABLE}


def in_process(code: str, **rest: Any) -> Task:
    return Task(code=code, tests=["import greetings\nassert welcome('you') == greetings.greet('you') + '!'"], **rest)


def separate(code: str, **rest: Any) -> Task:
    """The grader's sandbox and the solution's import it."""
    return in_process(code, grading="separate", code_names=["welcome"], **rest)


def calls(code: str, **rest: Any) -> Task:
    return Task(code=code, tests=[CallCase("welcome", ["you"], "hello, you!")], **rest)


def programs(code: str, **rest: Any) -> Task:
    return Task(code=code + PROGRAM, tests=[ProgramCase("you\n", "hello, you!\n")], **rest)


def a_command(code: str, **rest: Any) -> Task:
    return Task(command=["python3", "-c", f"{code}\nassert welcome('you') == 'hello, you!'"], **rest)


def pytest_tests(code: str, **rest: Any) -> Task:
    tests = "import greetings\ndef test_welcome():\n    assert welcome('you') == greetings.greet('you') + '!'\n"
    return Task(code=code, tests=[TestCase(source=tests)], **rest)


MODES = {made.__name__: made for made in (in_process, separate, calls, programs, a_command, pytest_tests)}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("packages") / "env", greetings=GREETINGS)


@pytest.fixture(scope="module")
def bare(environment: Path) -> dict[str, bool]:
    """Whether each of the codes is right, by a bare Python that has the packages."""
    found = {}
    for name, code in CODES.items():
        source = f"import sys; sys.path.append({str(site_of(environment))!r})\n{code}\nassert welcome('you') == 'hello, you!'"
        done = subprocess.run([interpreter().executable, "-c", source], capture_output=True, check=False, timeout=250)
        found[name] = done.returncode == 0
    return found


@pytest.mark.parametrize("mode", MODES)
def test_code_and_tests_import_it(
    outcomes: Callable[..., list[Outcome]], environment: Path, bare: dict[str, bool], mode: str
) -> None:
    found = outcomes([MODES[mode](code) for code in CODES.values()], packages=environment)
    assert [one.verdict is Verdict.PASSED for one in found] == [*bare.values()] == [True, False, False]
    assert all(one.verdict in (Verdict.PASSED, Verdict.FAILED) for one in found)
    if mode != "a_command":
        assert found[-1].message.endswith(f"ModuleNotFoundError: No module named 'farewells'; {PACKAGES}")
        assert [case.message.endswith(PACKAGES) for case in found[-1].cases] == [True]


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "a_command"])
def test_without_it_the_message_says_how_packages_get_in(outcome: Callable[..., Outcome], mode: str) -> None:
    found = outcome(MODES[mode](RIGHT))
    needed = mode in ("in_process", "separate", "pytest_tests")
    assert found.verdict is (Verdict.INFRASTRUCTURE if needed else Verdict.FAILED)  # Tests that need it cannot run at all.
    assert re.search(r"No module named 'greetings'; packages get into a sandbox by packages=", found.message)
    assert found.message.count(PACKAGES) == 1


def test_those_of_a_task_win(outcomes: Callable[..., list[Outcome]], environment: Path, tmp_path: Path) -> None:
    """One after the other and back, in one call, with graders that are shared and kept."""
    other = make_environment(tmp_path / "other", greetings=GREETINGS.replace("hello", "good day"))
    code = "import greetings\ndef welcome(name):\n    return greetings.greet(name)\n"
    test = "import greetings\nassert welcome('you') == greetings.greet('you') == {!r}"
    made = [
        Task(code=code, tests=[test.format(said)], grading=grading, code_names=["welcome"], packages=packages)
        for said, packages in (("hello, you", None), ("good day, you", other), ("hello, you", str(environment)))
        for grading in ("in_process", "separate")
    ] * 2
    found = outcomes(made, packages=environment)
    assert [one.verdict for one in found] == [Verdict.PASSED] * len(made), [one.message for one in found]


def test_what_cannot_be_meant_is_refused(outcomes: Callable[..., list[Outcome]], environment: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="packages"):
        Task(code="x = 1", tests=["assert x"], packages=3)  # type: ignore[arg-type]
    with pytest.raises(AviatoValidationError, match="packages"):
        Task(code="x = 1", tests=["assert x"], packages="")
    older = make_environment(tmp_path / "older", minor=interpreter().minor - 1, greetings=GREETINGS)
    with pytest.raises(AviatoValidationError, match=rf"Python 3\.{interpreter().minor - 1}.*{interpreter().version}"):
        outcomes([calls(RIGHT, packages=older)], packages=environment)


GRADER = {
    "test_it.py": b"""
from solution import welcome
import greetings

def test_it():
    assert welcome("you") == greetings.greet("you") + "!"

test_it()
"""
}


@pytest.mark.parametrize("mode", ["in_process", "separate"])
def test_grade(session: aviato.Session, environment: Path, mode: str) -> None:
    for code, passes in ((RIGHT, True), (WRONG, False)):
        with aviato.Sandbox(packages=environment) as sandbox:
            sandbox.write_file("solution.py", code.encode()).result()
            graded = sandbox.grade(GRADER, ["python3", "test_it.py"], result_paths=["solution.py"], mode=mode).result(60)
            assert graded.passed is passes, graded


def test_grade_without_it_says_how_packages_get_in(session: aviato.Session) -> None:
    with session.sandbox() as sandbox:
        sandbox.write_file("solution.py", b"def welcome(name): ...").result()
        with pytest.raises(SandboxExecutionError, match=r"No module named 'greetings'.*packages=") as caught:
            sandbox.grade(GRADER, ["python3", "test_it.py"], result_paths=["solution.py"], mode="in_process").result(60)
        assert caught.value.is_infrastructure


TESTS = b"""
import unittest
from solution import welcome

class TestIt(unittest.TestCase):
    def test_it(self):
        self.assertTrue(welcome("you"))
"""
SCRIPT = b"from solution import welcome\nassert welcome('you')\n"


@pytest.mark.parametrize(
    ("source", "command"), [(TESTS, ["python3", "-m", "unittest", "test_it"]), (SCRIPT, ["python3", "test_it.py"])]
)
def test_grade_of_code_that_lacks_one(session: aviato.Session, source: bytes, command: list[str]) -> None:
    with session.sandbox() as sandbox:
        sandbox.write_file("solution.py", b"def welcome(name):\n    import farewells\n").result()
        files = {"test_it.py": source}
        graded = sandbox.grade(files, command, result_paths=["solution.py"], mode="in_process").result(60)
    assert not graded.passed and [case.message.endswith(PACKAGES) for case in graded.cases] == [True], graded
