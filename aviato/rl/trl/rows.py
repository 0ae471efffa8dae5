"""What a row of the dataset asks of a completion."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError
from aviato.rl.outcome import Outcome, Verdict
from aviato.rl.task import Task, TestCase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger("aviato")

TESTS = "tests"
EXPECTED_OUTPUT = "expected_output"
NOT_COLUMNS = frozenset({"prompts", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"})
"""What a trainer hands over beside the completions and the dataset's columns."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns say what is asked.

    Attributes:
        tests: None is `tests`, if the dataset has it.
        expected_output: None is `expected_output`, if the dataset has it.
        make_task: in place of both.
    """

    tests: str | None = None
    expected_output: str | None = None
    make_task: Callable[[str | None, Mapping[str, Any]], Task | None] | None = None


@dataclass(frozen=True)
class Asked:
    """One completion's task, and what its outcome still has to satisfy.

    Attributes:
        task: without code it is skipped.
        expected_output: what the code must print.
        skipped_because: a reason other than that there was no code.
    """

    task: Task
    expected_output: str | None = None
    skipped_because: str = ""

    def settle(self, outcome: Outcome) -> Outcome:
        """The outcome, with what only the row knows."""
        if outcome.verdict is Verdict.SKIPPED and self.skipped_because:
            return replace(outcome, message=self.skipped_because)
        if outcome.passed and self.expected_output is not None:
            printed = outcome.cases[0].stdout
            if _lines(printed) != _lines(self.expected_output):
                wrong = f"printed {_short(printed)}, expected {_short(self.expected_output)}"
                return replace(outcome, verdict=Verdict.FAILED, message=wrong)
        return outcome


def ask(columns: Columns, codes: Sequence[str | None], given: Mapping[str, Any]) -> list[Asked]:
    """One task for each completion.

    Args:
        columns: where to look.
        codes: what each completion offers.
        given: everything that the trainer handed over by keyword.

    Raises:
        AviatoValidationError: a column that was named is not in the dataset.
        TypeError: `make_task` returned no task.
    """
    values = {
        name: value
        for name, value in given.items()
        if name not in NOT_COLUMNS and isinstance(value, (list, tuple)) and len(value) == len(codes)
    }
    tests = _column(columns.tests, TESTS, values)
    expected = _column(columns.expected_output, EXPECTED_OUTPUT, values)
    asked = []
    for index, code in enumerate(codes):
        if columns.make_task is not None:
            asked.append(_made(columns.make_task, code, {name: value[index] for name, value in values.items()}))
        elif tests is None and expected is None:
            asked.append(Asked(Task(code=code)))
        else:
            asked.append(_of_row(code, tests and values[tests][index], expected and values[expected][index], tests, expected))
    return asked


def _column(named: str | None, usual: str, values: Mapping[str, Any]) -> str | None:
    if named is None:
        return usual if usual in values else None
    if named not in values:
        found = ", ".join(sorted(values)) or "none"
        raise AviatoValidationError(f"the dataset has no column {named!r}; its columns are: {found}")
    return named


def _made(make_task: Callable[..., Task | None], code: str | None, row: Mapping[str, Any]) -> Asked:
    task = make_task(code, row)
    if task is None:
        return Asked(Task(), skipped_because="make_task gave no task")
    if not isinstance(task, Task):
        raise TypeError(f"make_task must return a Task or None, not {type(task).__name__}")
    return Asked(task)


def _of_row(code: str | None, tests: Any, expected: Any, tests_column: str | None, expected_column: str | None) -> Asked:
    found = cases(tests)
    wanted = None if expected is None else str(expected)
    if found:
        return Asked(Task(code=code, tests=found))
    if wanted is not None:
        return Asked(Task(code=code), expected_output=wanted)
    names = " and ".join(repr(name) for name in (tests_column, expected_column) if name)
    reason = f"the row has nothing to test with in {names}" if found is not None else f"{tests_column!r} holds no tests"
    warn_once(f"{reason}; such rows are skipped, their completions get the reward of skipped ones")
    return Asked(Task(), skipped_because=reason)


def cases(tests: Any) -> list[TestCase] | None:
    """The cases that a value stands for; None if it is nothing of the kind."""
    if tests is None:
        return []
    items = [tests] if isinstance(tests, (str, TestCase)) else tests
    if not isinstance(items, Iterable) or isinstance(items, (bytes, Mapping)):
        return None
    found = []
    for item in items:
        if isinstance(item, TestCase):
            found.append(item)
        elif isinstance(item, str):
            if item.strip():
                found.append(TestCase(source=item))
        elif item is not None:
            return None
    return found


_warned: set[str] = set()


def warn_once(message: str) -> None:
    """By `logging`, once a process: a dataset's fault comes back at every step."""
    if message not in _warned:
        _warned.add(message)
        logger.warning(message)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _short(text: str) -> str:
    stripped = text.strip()
    return repr(stripped if len(stripped) <= 200 else stripped[:199] + "…")
