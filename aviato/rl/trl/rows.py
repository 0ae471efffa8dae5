"""What a row of the dataset asks of a completion."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoValidationError
from aviato.log import logger
from aviato.rl import datasets
from aviato.rl.cases import TestCase
from aviato.rl.datasets.rows import plain_row
from aviato.rl.extraction import extract_code
from aviato.rl.outcome import Outcome, Verdict
from aviato.rl.task import MODES, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aviato.rl.datasets import Problem

    Extract = Callable[[Any], str | None]

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
        dataset: a name of `aviato.rl.datasets.NAMES`, in place of all these: the columns are a row of it.
        row: the column in which that row stands whole, as a dict or as JSON.
        grading: of test cases, as in `Task`.
    """

    tests: str | None = None
    expected_output: str | None = None
    make_task: Callable[[str | None, Mapping[str, Any]], Task | None] | None = None
    dataset: str | None = None
    row: str | None = None
    grading: str = "in_process"

    def __post_init__(self) -> None:
        if self.grading not in MODES:
            raise AviatoValidationError(f"grading must be 'in_process' or 'separate', got {self.grading!r}")
        if self.make_task is not None and (self.tests or self.expected_output):
            raise AviatoValidationError("make_task takes the place of tests_column and expected_output_column")
        if self.dataset is not None:
            datasets.fields_missing(self.dataset, {})
            if self.make_task is not None or self.tests or self.expected_output:
                raise AviatoValidationError("dataset takes the place of make_task, tests_column and expected_output_column")
        elif self.row is not None:
            raise AviatoValidationError("row_column is for dataset=: it names the column of the data set's row")


@dataclass(frozen=True)
class Asked:
    """One completion's task.

    Attributes:
        task: without code it is skipped.
        skipped_because: a reason other than that there was no code.
    """

    task: Task
    skipped_because: str = ""

    def settle(self, outcome: Outcome) -> Outcome:
        """The outcome, with what only the row knows."""
        if outcome.verdict is Verdict.SKIPPED and self.skipped_because:
            return replace(outcome, message=self.skipped_because)
        return outcome


def ask(columns: Columns, completions: Sequence[Any], extract: Extract, given: Mapping[str, Any]) -> list[Asked]:
    """One task for each completion.

    Args:
        columns: where to look.
        completions: what the model gave.
        extract: the code of a completion, or None if it offers none.
        given: everything that the trainer handed over by keyword.

    Raises:
        AviatoValidationError: a column that was named, or that the data set needs, is not there, or has not a value for each
            completion.
        TypeError: completions that are no list; or `make_task` returned no task.
    """
    completions = _completions(completions)
    found = {name: _values(value, len(completions)) for name, value in given.items() if name not in NOT_COLUMNS}
    values = {name: value for name, value in found.items() if value is not None}
    if columns.dataset is None and columns.make_task is None:
        for name in (columns.tests or TESTS, columns.expected_output or EXPECTED_OUTPUT):
            _check_column(name, given.get(name), values, len(completions))
    rows = [{name: value[index] for name, value in values.items()} for index in range(len(completions))]
    if columns.dataset is not None:
        return _of_dataset(columns, columns.dataset, completions, extract, _data_rows(columns, rows, values))
    tests = _column(columns.tests, TESTS, values)
    expected = _column(columns.expected_output, EXPECTED_OUTPUT, values)
    asked = []
    for completion, row in zip(completions, rows, strict=True):
        code = extract(completion)
        if columns.make_task is not None:
            asked.append(_made(columns.make_task, code, row))
        elif tests is None and expected is None:
            asked.append(Asked(Task(code=code)))
        else:
            asked.append(_of_row(code, row, tests, expected, columns.grading))
    return asked


def _completions(completions: Any) -> list[Any]:
    if isinstance(completions, (str, bytes, bytearray, Mapping)) or not isinstance(completions, Iterable):
        raise TypeError(f"completions must be a list of completions, not {type(completions).__name__}")
    return list(completions)


def _values(column: Any, count: int) -> list[Any] | None:
    """The values of a column, of whatever kind of list it is, such as an array's; None of what is no column of so many rows."""
    if isinstance(column, (str, bytes, bytearray, Mapping, Set)) or not isinstance(column, Collection):
        return None
    try:
        return list(column) if len(column) == count else None
    except TypeError:  # an array without dimensions
        return None


def _check_column(name: str, value: Any, values: Mapping[str, Any], count: int) -> None:
    """Refuse a column that decides and cannot be one: without it all code would pass that runs to its end."""
    if value is not None and name not in values:
        what = f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (list, tuple)) else "")
        raise AviatoValidationError(f"{name!r} is {what}, and no list with a value for each of the {count} completions")


def _data_rows(columns: Columns, rows: list[dict[str, Any]], values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The data set's row of each completion."""
    if columns.row is None:
        return list(rows)
    name = _column(columns.row, columns.row, values)
    assert name is not None
    return [datasets.row_of(columns.dataset or "", row[name]) for row in rows]


def _of_dataset(
    columns: Columns, name: str, completions: Sequence[Any], extract: Extract, rows: Sequence[Mapping[str, Any]]
) -> list[Asked]:
    """A row that cannot be judged is skipped, and that is told; columns that no row of the data set has are a mistake."""
    asked: list[Asked] = []
    last: tuple[Mapping[str, Any], Problem | AviatoValidationError] | None = None
    for completion, row in zip(completions, rows, strict=True):
        if missing := datasets.fields_missing(name, row):
            found = ", ".join(sorted(row)) or "none"
            raise AviatoValidationError(f"a row of {name} needs {' and '.join(missing)}; the columns are: {found}")
        if last is None or not _same(row, last[0]):
            last = row, _problem(name, row)
        asked.append(_answered(columns, last[1], completion, extract))
    return asked


def _problem(name: str, row: Mapping[str, Any]) -> Problem | AviatoValidationError:
    try:
        return datasets.problem_of(name, row)
    except AviatoValidationError as error:
        return error


def _answered(columns: Columns, problem: Problem | AviatoValidationError, completion: Any, extract: Extract) -> Asked:
    try:
        if isinstance(problem, AviatoValidationError):
            raise problem
        language = problem.code_language
        other = language != "python" and extract is extract_code
        task = problem.with_code(extract_code(completion, language=language) if other else extract(completion))
        grading = columns.grading if task.kind == "test" else task.grading
        # The reward is that of all cases together.
        return Asked(replace(task, grading=grading, stop_at_first_failure=True))
    except AviatoValidationError as error:
        return _skipped(str(error))


def _same(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows are equal; the completions of one prompt come one after the other."""
    try:
        return bool(row == other)
    except ValueError:  # arrays, which have no one answer
        return False


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


def _of_row(
    code: str | None, row: Mapping[str, Any], tests_column: str | None, expected_column: str | None, grading: str
) -> Asked:
    row = plain_row(row)
    found = cases(row[tests_column] if tests_column else None)
    expected = row[expected_column] if expected_column else None
    try:
        if found:
            return Asked(Task(code=code, tests=found, grading=grading))
        if expected is not None:
            return Asked(Task(code=code, expected_output=expected if isinstance(expected, bytes) else str(expected)))
    except AviatoValidationError as error:
        return _skipped(str(error))
    names = " and ".join(repr(name) for name in (tests_column, expected_column) if name)
    reason = f"the row has nothing to test with in {names}" if found is not None else f"{tests_column!r} holds no tests"
    return _skipped(reason)


def _skipped(reason: str) -> Asked:
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
