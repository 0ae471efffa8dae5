"""Episodes that are judged by tests which the model never sees: of files, of patterns, of a repository."""

from __future__ import annotations

import importlib.metadata
import logging
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.rl import Outcome, Verdict
from aviato.rl.trl import SandboxEnvironment, SelfGradingEnvironment, environment_reward
from aviato.rl.trl.hidden_tests import words

TESTS = (
    "import unittest\nfrom shop.prices import total\n"
    "class TestTotal(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(total([2, 3]), 5)\n"
)
UNITTEST = "python3 -m unittest -q"
RIGHT = "from shop.sums import add\ndef total(prices): return add(prices)\n"
SUMS = "def add(numbers): return sum(numbers)\n"
LIAR = "class Equal(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\ndef total(prices): return Equal()\n"


@pytest.fixture
def session(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[aviato.Session]:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.16.0")
    with aviato.Session() as made:
        yield made


def graded(environment: SandboxEnvironment) -> Outcome:
    found: list[Outcome] = []
    environment_reward(on_outcomes=found.extend)(environments=[environment])
    return found[0]


def episode(session: aviato.Session, made: dict[str, str], row: dict[str, Any], **options: Any) -> Outcome:
    environment = SandboxEnvironment(session=session, grading_timeout_seconds=20, **options)
    environment.reset(**row)
    for path, text in made.items():
        assert "written" in environment.write_file(path, text)
    return graded(environment)


ROW = {"test_files": {"test_total.py": TESTS, "unused.txt": None}, "test_command": UNITTEST}


@pytest.mark.parametrize("paths", [["shop/"], ["shop/**/*.py"], ["shop/prices.py", "shop/sums.py"]])
def test_files_that_the_model_made_are_graded(session: aviato.Session, paths: list[str]) -> None:
    right = {"shop/prices.py": RIGHT, "shop/sums.py": SUMS}
    outcome = episode(session, right, ROW, result_paths=paths)
    assert outcome.passed and outcome.grading_mode == "separate", outcome
    assert [(case.name, str(case.status)) for case in outcome.cases] == [("test_total.TestTotal.test_it", "passed")]
    wrong = episode(session, {**right, "shop/sums.py": "def add(numbers): return 0\n"}, {**ROW, "result_paths": paths})
    assert (wrong.verdict, wrong.cases[0].status) == (Verdict.FAILED, "failed")


def test_the_mode_is_the_rows_or_the_environments(session: aviato.Session) -> None:
    row = {"test_files": {"test_it.py": TESTS.replace("shop.prices", "solution")}, "test_command": UNITTEST}
    made = {"solution.py": LIAR}
    assert not episode(session, made, row).passed
    assert episode(session, made, row, grading="in_process").passed
    assert not episode(session, made, {**row, "grading": "separate"}, grading="in_process").passed
    tests = {"tests": ["assert total([2, 3]) == 5"]}
    assert episode(session, made, tests).passed
    assert not episode(session, made, tests, grading="separate").passed
    assert (
        episode(session, {"solution.py": "def total(p): return sum(p)\n"}, {**tests, "grading": "separate"}).grading_mode
        == "separate"
    )


def test_the_model_does_not_see_them(session: aviato.Session) -> None:
    environment = SandboxEnvironment(session=session)
    environment.reset(**ROW)
    assert environment.bash("find / -name 'test_total*' -newer /etc/hostname 2>/dev/null; ls") == "exit=0\n"


def test_a_repository(session: aviato.Session, tmp_path: Path) -> None:
    repository = tmp_path / "repo"
    repository.mkdir()
    (repository / "prices.py").write_text("def total(prices): return 0\n")
    (repository / "old.py").write_text("")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *who, *arguments], cwd=repository, check=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True
    ).stdout.strip()
    files = {
        f"repo/{path.relative_to(repository)}": path.read_bytes()
        for path in repository.rglob("*")
        if path.is_file() and "hooks" not in path.parts
    }
    tests = (
        "import os, sys, unittest\nsys.path.insert(0, 'repo')\nfrom prices import total\n"
        "class TestIt(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(total([2, 3]), 5)\n"
        "        self.assertFalse(os.path.exists('repo/old.py'))\n"
    )
    row = {
        "files": files,
        "test_files": {"test_it.py": tests},
        "test_command": ["python3", "-m", "unittest"],
        "base_commit": commit,
        "result_changes": "repo",
        "grading": "in_process",
    }
    for work, passed in (("true", False), ("cd repo && rm old.py && echo 'total = sum' > prices.py", True)):
        environment = SandboxEnvironment(session=session, grading_timeout_seconds=20)
        environment.reset(**row)
        assert environment.bash(work).startswith("exit=0")
        outcome = graded(environment)
        assert outcome.passed is passed, outcome


def test_what_the_model_did_not_make_is_its_failure(session: aviato.Session) -> None:
    for paths in (["solution.py"], ["src/"], ["*.py"]):
        outcome = episode(session, {}, ROW, result_paths=paths)
        assert outcome.verdict is Verdict.FAILED and outcome.message
    slow = "import time\ntime.sleep(60)\n"
    environment = SandboxEnvironment(session=session, grading_timeout_seconds=1)
    environment.reset(
        test_files={"test_it.py": "import unittest, solution\nsolution.f()\n"}, test_command=UNITTEST, grading="in_process"
    )
    environment.write_file("solution.py", slow)
    assert graded(environment).verdict is Verdict.TIMED_OUT


def test_a_file_that_the_model_makes_has_no_row_skipped(session: aviato.Session) -> None:
    """As a module of the solution a helper of the tests could not be graded, since they read a value of it."""
    tests = TESTS.replace("class", "import helpers\nclass").replace(", 5)", ", helpers.FIVE)")
    row = {
        "test_files": {"test_total.py": tests, "helpers.py": "FIVE = 5\n"},
        "test_command": UNITTEST,
        "result_paths": ["**/*.py"],
    }
    for sums, passed in ((SUMS, True), ("def add(numbers): return 0\n", False)):
        made = {"shop/prices.py": RIGHT, "shop/sums.py": sums}
        for more in ({}, {"shop/helpers.py": ""}, {"helpers/__init__.py": ""}, {"lib/helpers.py": ""}):
            assert episode(session, {**made, **more}, row).verdict == ("passed" if passed else "failed"), more


def test_nor_has_one_that_it_changes(session: aviato.Session, caplog: pytest.LogCaptureFixture) -> None:
    tests = "import sys\nsys.path.insert(0, 'repo')\nimport table\n" + TESTS.replace("shop.", "").replace(
        ", 5)", ", table.FIVE)"
    )
    row = {
        "files": {"repo/prices.py": "", "repo/table.py": "FIVE = 5\n"},
        "test_files": {"test_total.py": tests, "repo/table.py": "FIVE = 5\n"},
        "test_command": UNITTEST,
        "result_changes": "repo",
    }
    assert episode(session, {"repo/prices.py": "def total(p): return sum(p)\n"}, row).passed
    del row["test_files"]["repo/table.py"]  # type: ignore[attr-defined]
    outcome = episode(session, {"repo/prices.py": "def total(p): return 0\n", "repo/table.py": "FIVE = 0\n"}, row)
    assert outcome.verdict is Verdict.FAILED and "mode 'separate'" in outcome.message, outcome
    assert "grade those rows 'in_process'" in caplog.text


UNGRADABLE: dict[str, dict[str, Any]] = {
    "an attribute": {
        "test_files": {"test_it.py": "from solution import X\nassert X == 3\n"},
        "test_command": "python3 test_it.py",
    },
    "no command": {"test_files": {"test_it.py": TESTS}},
    "a mode that is none": {**ROW, "grading": "both"},
    "a result that is none": {**ROW, "result_paths": ["/etc/"]},
    "tests that cannot be separated": {"tests": ["f(lambda: 1)\nassert f(1) == 1"], "grading": "separate"},
}


@pytest.mark.parametrize("kind", UNGRADABLE)
def test_a_row_that_cannot_be_graded_is_skipped_and_that_is_said(
    kind: str, session: aviato.Session, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="aviato"):
        outcome = episode(session, {"solution.py": "X = 3\n"}, UNGRADABLE[kind])
    assert outcome.verdict is Verdict.SKIPPED and outcome.message, outcome
    assert any("cannot be graded" in record.getMessage() for record in caplog.records)


def test_a_grader_that_cannot_run_is_no_reward(session: aviato.Session) -> None:
    environment = SandboxEnvironment(session=session, grading_timeout_seconds=20)
    environment.reset(test_files={"test_it.py": f"import no_such_module\n{TESTS}"}, test_command=UNITTEST)
    environment.write_file("solution.py", "raise ImportError('no')\n")
    assert environment_reward()(environments=[environment]) == [None]
    assert graded(environment).is_infrastructure


def test_what_is_no_text_is_no_python_either(session: aviato.Session) -> None:
    tests = {"tests": ["assert total([2, 3]) == 5"]}
    for text, passed in ((r"x = \"ab\"", True), (r"x = \"\xff\"", False)):
        environment = SandboxEnvironment(session=session)
        environment.reset(**tests)
        environment.bash(f"printf 'total = sum\\n{text}\\n' > solution.py")
        assert graded(environment).passed is passed


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_environment_that_owns_its_reward(session: aviato.Session, anyio_backend: str) -> None:
    made = SelfGradingEnvironment(session=session, result_paths=["shop/"])
    made.reset(**ROW, files={"shop/prices.py": RIGHT, "shop/sums.py": SUMS})
    assert await made.get_reward() == 1.0


def test_it_travels_and_its_mistakes_are_refused() -> None:
    made = SandboxEnvironment(grading="separate", result_paths=("src/",), result_changes="repo", grading_env={"A": "b"})
    assert pickle.loads(pickle.dumps(made))._hidden == made._hidden
    for wrong in ({"grading": "both"}, {"result_paths": "src/"}, {"grading_env": {"": "x"}}):
        with pytest.raises((TypeError, aviato.AviatoValidationError)):
            SandboxEnvironment(**wrong)  # type: ignore[arg-type]


def test_a_line_that_needs_no_shell_has_none() -> None:
    assert words("python3 -m pytest -q tests/test_a.py") == ["python3", "-m", "pytest", "-q", "tests/test_a.py"]
    for line in ("cd x && make", "echo $HOME", "a; b", "cat *", "A=1 make"):
        assert (words(line) or [])[:1] == ["bash"]
    assert words(["a b", "c"]) == ["a b", "c"]
    assert words("  ") is words(None) is words([]) is words([1]) is None
