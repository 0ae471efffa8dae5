"""KodCode: functions with tests of pytest."""

from __future__ import annotations

import re

from aviato.rl.cases import TestCase
from aviato.rl.datasets.rows import Problem, Row, of_rows, refused, text
from aviato.rl.task import Task

_SCHEMA = "kodcode"
TIMEOUT_SECONDS = 30.0
"""Of all tests of a row, as KodCode has it."""
_IMPORTED = re.compile(r"^[ \t]*from[ \t]+solution[ \t]+import[ \t]+\(?([\w \t,]+)", re.M)


def kodcode(row: Row, code: str | None = None) -> Task:
    """A row of `KodCode/KodCode-V1` or its light forms: the answer is `solution.py`, which the tests import.

    Args:
        row: with `test`, functions for pytest, which the sandbox has to have.
        code: of the answer.

    Raises:
        AviatoValidationError: a row without tests.
    """
    return problem(row).with_code(code)


@of_rows
def problem(row: Row) -> Problem:
    """What the row asks for."""
    test = text(_SCHEMA, row, "test")
    if re.search(r"^[ \t]*(?:async[ \t]+)?def[ \t]+test|^class[ \t]+Test", test, re.M) is None:
        raise refused(_SCHEMA, "test", "its field 'test' has no function or class of tests")
    names = [name.strip() for found in _IMPORTED.findall(test) for name in found.split(",") if name.strip().isidentifier()]
    return Problem(Task(tests=[TestCase(source=test)], code_names=list(dict.fromkeys(names)), timeout_seconds=TIMEOUT_SECONDS))
