"""BigCodeBench: a function that uses libraries, with a unittest class."""

from __future__ import annotations

from functools import partial

from aviato.rl.cases import TestCase
from aviato.rl.datasets.rows import Problem, Row, of_rows, put, refused, text
from aviato.rl.datasets.sources import completed, defines
from aviato.rl.task import Task

_SCHEMA = "bigcodebench"
TIMEOUT_SECONDS = 240.0
"""Of all tests of a row, as BigCodeBench has it."""


def bigcodebench(row: Row, code: str | None = None) -> Task:
    """A row of `bigcode/bigcodebench` or `bigcode/bigcodebench-hard`.

    The tests of `class TestCases` decide. As in its calibrated harness the imports and the constants of `code_prompt` stand
    before the function; code that does not define it is the rest of `complete_prompt`. The sandbox has to have the libraries
    that the row names in `libs`.

    Args:
        row: with `test`, `entry_point`, `code_prompt` and, for bodies, `complete_prompt`.
        code: of the answer: the function, or its body.

    Raises:
        AviatoValidationError: a field that is missing.
    """
    return problem(row).with_code(code)


@of_rows
def problem(row: Row) -> Problem:
    """What the row asks for."""
    test = text(_SCHEMA, row, "test")
    entry = text(_SCHEMA, row, "entry_point").strip()
    if not defines(test, "TestCases"):
        raise refused(_SCHEMA, "test", "its field 'test' has no class 'TestCases'")
    stub = text(_SCHEMA, row, "code_prompt").rstrip("\n") + "\n    pass\n"
    prompt = text(_SCHEMA, row, "complete_prompt", blank=True) or text(_SCHEMA, row, "code_prompt")
    task = Task(tests=[TestCase(source=test)], code_names=[entry], timeout_seconds=TIMEOUT_SECONDS)
    return Problem(task, partial(_compose, prompt, stub, entry))


def _compose(prompt: str, stub: str, entry: str, task: Task, code: str) -> Task:
    return put(task, completed(prompt, stub, code, entry))
