"""MBPP, its sanitized form, and MBPP+ of EvalPlus."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aviato.rl.cases import TestCase
from aviato.rl.datasets.rows import Problem, Row, listed, of_rows, refused, text
from aviato.rl.datasets.sources import defines
from aviato.rl.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterable

_SCHEMA = "mbpp"
_DEFINED = re.compile(r"^(?:def|class)[ \t]+(\w+)", re.M)
PLUS_TIMEOUT_SECONDS = 60.0
"""Of all inputs of a row of MBPP+ together, as EvalPlus has it."""


def mbpp(row: Row, code: str | None = None) -> Task:
    """A row of `google-research-datasets/mbpp` (`full` or `sanitized`) or of `evalplus/mbppplus`.

    Each assertion of `test_list` is a case, after `test_setup_code` and `test_imports`; `challenge_test_list` is not
    looked at. A row of MBPP+ is one case, its `test`, which needs numpy in the sandbox.

    Args:
        row: with `test_list`, or `test`; `code` is the reference, and tells what `grading="separate"` needs to know.
        code: of the answer.

    Raises:
        AviatoValidationError: a row without tests.
    """
    return problem(row).with_code(code)


@of_rows
def problem(row: Row) -> Problem:
    """What the row asks for."""
    ahead = "\n".join([*map(str, listed(_SCHEMA, row, "test_imports")), text(_SCHEMA, row, "test_setup_code", blank=True)])
    plus = text(_SCHEMA, row, "test", blank=True)
    sources = [plus] if plus.strip() else [str(test) for test in listed(_SCHEMA, row, "test_list") if str(test).strip()]
    if not sources:
        raise refused(_SCHEMA, "test_list", "it has no tests in 'test_list' or 'test'")
    cases = [TestCase(source=f"{ahead}\n{source}" if ahead.strip() else source) for source in sources]
    limit = PLUS_TIMEOUT_SECONDS if plus.strip() else None
    names = _names(text(_SCHEMA, row, "code", blank=True), sources)
    return Problem(Task(tests=cases, code_names=names, timeout_seconds=limit))


def _names(reference: str, sources: Iterable[str]) -> list[str]:
    """What the reference defines and the tests use and do not define."""
    tests = "\n".join(sources)
    found = dict.fromkeys(_DEFINED.findall(reference))
    return [name for name in found if re.search(rf"\b{name}\b", tests) and not defines(tests, name)]
