"""Codeforces as open-r1 has it, with its checkers."""

from __future__ import annotations

import re
from typing import Any

from aviato.languages import ALIASES, RECIPES
from aviato.rl.cases import ProgramCase
from aviato.rl.datasets.file_programs import file_problem
from aviato.rl.datasets.rows import Problem, Row, items, mapping, of_rows, refused, text
from aviato.rl.datasets.sources import for_online_judge, inserted
from aviato.rl.judges import Checker, Judge, as_bytes, checker, differs, expected_of
from aviato.rl.task import Task

_SCHEMA = "codeforces"
CHECKER_TIMEOUT_SECONDS = 10.0
_READ, _WRITTEN = "input.txt", "output.txt"
_WITHOUT_EMPTY_LINES = (
    "(lambda path, sub: path.write_bytes(sub(rb'(?m)^\\n', b'', path.read_bytes())))"
    "(__import__('pathlib').Path(__import__('sys').argv[3]), __import__('re').sub)\n"
)
"""Before a checker: its harness takes empty lines out of what was printed, and names nothing there."""
_ANSWERS = re.compile(rb"\b(yes|no)\b", re.I)


def codeforces(row: Row, code: str | None = None, language: str | None = None) -> Task:
    """A row of `open-r1/codeforces`: its official tests and those in `generated_tests`, if that is a list of tests.

    The row's `generated_checker` decides, if it has one, about the output without its empty lines; else words are compared,
    where yes and no may be in any case. The row's time and memory hold. C and C++ have `ONLINE_JUDGE` defined.

    Args:
        row: with `official_tests`, `generated_checker`, `input_mode`, `time_limit` (seconds) and `memory_limit` (MB). On the
            hub the generated tests are files apart, and `generated_tests` is their number: put the list there.
        code: of the answer.
        language: of the code; None is the row's `language`, or Python.

    Raises:
        AviatoValidationError: an interactive problem, a row without tests, or one whose official tests are not complete and
            that has no generated ones.
    """
    return problem(row, language).with_code(code)


@of_rows
def problem(row: Row, language: str | None = None) -> Problem:
    """What the row asks for."""
    if text(_SCHEMA, row, "interaction_format", blank=True).strip():
        raise refused(_SCHEMA, "interaction_format", "it is interactive, and its tests are no inputs and outputs")
    mode = row.get("input_mode") or "stdio"
    if mode not in ("stdio", "file"):
        raise refused(_SCHEMA, "input_mode", f"its input_mode is {mode!r}, and neither 'stdio' nor 'file'")
    given = str(language or row.get("language") or "python").lower()
    name = ALIASES.get(given, given)
    if name not in RECIPES:
        raise refused(_SCHEMA, "language", f"the language is {given!r}, and not one of {', '.join(sorted(RECIPES))}")
    limit, memory = row.get("time_limit"), row.get("memory_limit")
    judge, memory_bytes = _judge(row), int(float(memory) * (1 << 20)) if memory else None
    cases = [_case(test, mode, judge, memory_bytes) for test in _tests(row)]
    seconds = float(limit) if limit else 10.0
    task = Task(tests=cases, language=name, case_timeout_seconds=seconds, timeout_seconds=seconds * len(cases) + 60.0)
    return Problem(task, for_online_judge) if mode == "stdio" else file_problem(_SCHEMA, task, _WRITTEN)


def same_answers(case: Any, actual: Any) -> bool | str:
    """Word by word; yes and no may be in any case."""
    return _words(actual) == _words(expected_of(case)) or differs(case, actual)


def _words(printed: Any) -> list[bytes]:
    return _ANSWERS.sub(lambda found: found[0].upper(), as_bytes(printed)).split()


def _judge(row: Row) -> Judge | Checker:
    source = text(_SCHEMA, row, "generated_checker", blank=True)
    if not source.strip():
        return same_answers
    return checker(
        inserted(_WITHOUT_EMPTY_LINES, source), "python", convention="open-r1", timeout_seconds=CHECKER_TIMEOUT_SECONDS
    )


def _case(test: Any, mode: str, judge: Judge | Checker, memory_limit_bytes: int | None) -> ProgramCase:
    given = re.sub(r"(?m)\r$", "", str(test["input"]))
    expected = "".join(line + "\n" for line in re.sub(r"(?m)\r$", "", str(test["output"])).split("\n") if line)
    files = {} if mode == "stdio" else {_READ: given.encode()}
    return ProgramCase(given, expected, files=files, judge=judge, memory_limit_bytes=memory_limit_bytes)


def _tests(row: Row) -> list[Any]:
    official, generated = items(row.get("official_tests")) or [], items(row.get("generated_tests")) or []
    found = [mapping(_SCHEMA, "official_tests", test) for test in [*official, *generated]]
    if not found:
        raise refused(_SCHEMA, "official_tests", "it has no tests; put the generated ones into 'generated_tests', as a list")
    if row.get("official_tests_complete") is False and not generated:
        message = "its official tests are not complete; put the generated ones into 'generated_tests', as a list"
        raise refused(_SCHEMA, "official_tests", message)
    for test in found:
        if "input" not in test or "output" not in test:
            raise refused(_SCHEMA, "official_tests", "a test has no 'input' and 'output'")
    return found
