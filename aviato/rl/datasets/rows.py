"""Rows as data sets have them: fields read and checked, and what a row asks for."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias

from aviato.exceptions import AviatoValidationError

if TYPE_CHECKING:
    from aviato.rl.task import Task

Row: TypeAlias = Mapping[str, Any]
_Given = ParamSpec("_Given")


def put(task: Task, code: str) -> Task:
    """The task with the code as it is."""
    return replace(task, code=code)


@dataclass(frozen=True)
class Problem:
    """What a row asks for, whatever code comes.

    Attributes:
        task: without code; its language is that of the code to be looked for.
        compose: puts code into the task, as the data set's harness puts it together.
        language: of the code to be looked for; None is the task's.
    """

    task: Task
    compose: Callable[[Task, str], Task] = put
    language: str | None = None

    def with_code(self, code: str | None) -> Task:
        """The task for one answer; without code it is skipped."""
        return self.task if code is None or not code.strip() else self.compose(self.task, code)

    @property
    def code_language(self) -> str:
        """The language of the code to be looked for."""
        return self.language or self.task.language


def of_rows(problem: Callable[Concatenate[Row, _Given], Problem]) -> Callable[Concatenate[Row, _Given], Problem]:
    """For what makes a `Problem` of a row: the row that it is given has plain values, whatever read it from its file."""

    @functools.wraps(problem)
    def made(row: Row, /, *args: _Given.args, **kwargs: _Given.kwargs) -> Problem:
        return problem(plain_row(row), *args, **kwargs)

    return made


def plain_row(row: Any) -> Row:
    """A row of pandas, numpy or pyarrow as a dict. A field that is missing there, which may be NaN, is None."""
    found = plain(row)
    if not isinstance(found, Mapping):
        return found  # type: ignore[no-any-return]  # what reads it refuses it, by its name
    return {name: None if isinstance(value, float) and value != value else value for name, value in found.items()}


def plain(value: Any) -> Any:
    """A value of pandas, numpy or pyarrow as Python's own, and all that it holds."""
    if value is None or isinstance(value, (str, bytes)):
        return value
    if hasattr(value, "as_py"):
        return value.as_py()
    if hasattr(value, "to_dict") and hasattr(value, "index"):
        return plain(value.to_dict())
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def refused(schema: str, name: str, message: str) -> AviatoValidationError:
    """The error for a row that cannot be judged."""
    return AviatoValidationError(f"this row of {schema} cannot be judged: {message}", field_violations={name: message})


def text(schema: str, row: Row, name: str, *, blank: bool = False) -> str:
    """A field of text.

    Args:
        schema: named in the error.
        row: where to look.
        name: of the field.
        blank: whether the field may be missing or empty.

    Raises:
        AviatoValidationError: it is missing, or no text.
    """
    value = row.get(name)
    if value is None and blank:
        return ""
    if not isinstance(value, str):
        what = "is missing" if value is None else f"is no text but {type(value).__name__}"
        raise refused(schema, name, f"its field {name!r} {what}")
    if not blank and not value.strip():
        raise refused(schema, name, f"its field {name!r} is empty")
    return value


def items(value: Any) -> list[Any] | None:
    """The items of a list, a tuple or an array; None for anything else."""
    value = plain(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else None


def listed(schema: str, row: Row, name: str) -> list[Any]:
    """A field that is a list; one that is missing is empty.

    Raises:
        AviatoValidationError: it is something else.
    """
    value = row.get(name)
    if value is None:
        return []
    found = items(value)
    if found is None:
        raise refused(schema, name, f"its field {name!r} is no list but {type(value).__name__}")
    return found


def data(schema: str, name: str, value: Any, *, literals: bool = False) -> Any:
    """A field that is data, or text of it.

    Args:
        schema: named in the error.
        name: of the field.
        value: what it holds.
        literals: whether the text may also be a Python literal, as `str()` makes it of a dict.

    Raises:
        AviatoValidationError: it is text that cannot be read.
    """
    if not isinstance(value, (str, bytes)):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        if literals and (found := _literal(value)) is not None:
            return found
        raise refused(schema, name, f"its field {name!r} is no JSON: {error}") from None


def mapping(schema: str, name: str, value: Any) -> Mapping[str, Any]:
    """A field that is a dict.

    Raises:
        AviatoValidationError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise refused(schema, name, f"its field {name!r} is no dict but {type(value).__name__}")
    return value


def pairs(schema: str, inputs: Any, outputs: Any) -> list[tuple[Any, Any]]:
    """Inputs with their outputs.

    Raises:
        AviatoValidationError: there is none, or their numbers differ.
    """
    left, right = items(inputs), items(outputs)
    if left is None or right is None:
        raise refused(schema, "inputs", "its inputs and outputs are not both lists")
    if len(left) != len(right):
        raise refused(schema, "inputs", f"it has {len(left)} inputs and {len(right)} outputs")
    if not left:
        raise refused(schema, "inputs", "it has no tests")
    return list(zip(left, right, strict=True))


def lines(value: Any) -> str:
    """What a program reads or prints: text, or a list of its lines."""
    found = items(value)
    return str(value) if found is None else "\n".join(map(str, found))


def _literal(value: str | bytes) -> Any:
    try:
        return ast.literal_eval(value if isinstance(value, str) else value.decode())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
