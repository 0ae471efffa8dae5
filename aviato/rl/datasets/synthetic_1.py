"""SYNTHETIC-1 of Prime Intellect: its code."""

from __future__ import annotations

from typing import Any

from aviato.languages import ALIASES, RECIPES
from aviato.rl.cases import CallCase, ProgramCase
from aviato.rl.datasets.printed import stripped_lines
from aviato.rl.datasets.returned import same_printed
from aviato.rl.datasets.rows import Problem, Row, data, items, lines, mapping, of_rows, refused
from aviato.rl.task import Task

_SCHEMA = "synthetic1"
PRELUDE = "from typing import List, Dict, Set, Tuple, Union, Optional\n"
"""What its verifier imports before functions."""
TIMEOUT_SECONDS = 120.0
"""Of all tests together, as its verifier has it."""
_TASK_TYPE = "verifiable_code"


def synthetic1(row: Row, code: str | None = None) -> Task:
    """A row of `PrimeIntellect/SYNTHETIC-1` or `PrimeIntellect/verifiable-coding-problems` whose task is `verifiable_code`.

    Programs in the row's language are compared line by line; calls, which are for Python, by what `print` shows. The verifier
    compares what came out on both streams; here it is stdout, and a program has to end with 0.

    Args:
        row: with `verification_info`, as JSON, as a Python literal or as a dict.
        code: of the answer.

    Raises:
        AviatoValidationError: another type of task, a language that is not known, or tests that cannot be read.
    """
    return problem(row).with_code(code)


@of_rows
def problem(row: Row) -> Problem:
    """What the row asks for."""
    kind = row.get("task_type", _TASK_TYPE)
    if kind != _TASK_TYPE:
        raise refused(_SCHEMA, "task_type", f"its task_type is {kind!r}, and only {_TASK_TYPE!r} is decided by running code")
    info = mapping(
        _SCHEMA, "verification_info", data(_SCHEMA, "verification_info", row.get("verification_info"), literals=True)
    )
    tests = items(data(_SCHEMA, "test_cases", info.get("test_cases"), literals=True))
    if not tests:
        raise refused(_SCHEMA, "test_cases", "it has no tests in 'verification_info'")
    given = str(info.get("language") or "python").lower()
    language = ALIASES.get(given, given)
    if language not in RECIPES:
        raise refused(_SCHEMA, "language", f"its language is {given!r}, and not one of {', '.join(sorted(RECIPES))}")
    found = [mapping(_SCHEMA, "test_cases", test) for test in tests]
    kinds = {str(test.get("type", "stdin_stdout")) for test in found}
    if kinds == {"function_call"}:
        return Problem(_calls(language, found))
    if kinds != {"stdin_stdout"}:
        raise refused(_SCHEMA, "test_cases", f"its tests are of the types {', '.join(sorted(kinds))}")
    runs = [ProgramCase(lines(_field(test, "input")), lines(_field(test, "output")), judge=stripped_lines) for test in found]
    return Problem(Task(tests=runs, language=language, timeout_seconds=TIMEOUT_SECONDS))


def _calls(language: str, tests: list[Any]) -> Task:
    if language != "python":
        raise refused(_SCHEMA, "language", f"its tests call functions, which is for Python, and its language is {language!r}")
    calls = []
    for test in tests:
        args = items(_field(test, "input"))
        if args is None:
            raise refused(_SCHEMA, "test_cases", "the 'input' of a call is no list of arguments")
        calls.append(CallCase(str(_field(test, "fn_name")), args, _field(test, "output"), judge=same_printed))
    return Task(tests=calls, prelude=PRELUDE, timeout_seconds=TIMEOUT_SECONDS)


def _field(test: Any, name: str) -> Any:
    if name not in test:
        raise refused(_SCHEMA, "test_cases", f"a test has no {name!r}")
    return test[name]
