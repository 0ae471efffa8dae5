"""Which operation a method and a path ask for, where no framework of HTTP's tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote

from aviato.exceptions import AviatoValidationError
from aviato.server.operations.table import Operation, parse_query

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

REMEMBERED = 1024


class Target(NamedTuple):
    """What is asked for.

    Attributes:
        operation: does it.
        variables: of its path.
        query: as its model has it.
    """

    operation: Operation
    variables: dict[str, str]
    query: BaseModel | None


class NoSuchRouteError(AviatoValidationError):
    """There is no such operation."""

    default_reason = "http"


class NoSuchMethodError(AviatoValidationError):
    """There is one of this path, and of another method."""

    default_reason = "http"


class Routes:
    """Finds operations. What was asked for is remembered: of one sandbox the same things are asked again and again.

    Args:
        operations: all that there are.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._of_size: dict[int, list[tuple[list[str], Operation]]] = {}
        for operation in operations:
            parts = operation.path.split("/")
            self._of_size.setdefault(len(parts), []).append((parts, operation))
        self._remembered: dict[str, Target] = {}

    def find(self, line: str) -> Target:
        """What a line like `GET /v1/sandboxes?limit=3` asks for.

        Raises:
            AviatoValidationError: nothing that there is, or its query is wrong.
        """
        found = self._remembered.get(line)
        if found is None:
            found = self._find(line)
            if len(self._remembered) >= REMEMBERED:
                self._remembered.clear()
            self._remembered[line] = found
        return found

    def _find(self, line: str) -> Target:
        method, _, whole = line.partition(" ")
        path, _, query = whole.partition("?")
        given = path.split("/")
        others = False
        for parts, operation in self._of_size.get(len(given), ()):
            if not all(part == one or part.startswith("{") for part, one in zip(parts, given, strict=True)):
                continue
            if operation.method != method:
                others = True
                continue
            variables = {part[1:-1]: unquote(one) for part, one in zip(parts, given, strict=True) if part.startswith("{")}
            return Target(operation, variables, _query(operation, query))
        if others:
            raise NoSuchMethodError(f"{method} {path}: Method Not Allowed")
        raise NoSuchRouteError(f"{method} {path}: Not Found")


def _query(operation: Operation, text: str) -> BaseModel | None:
    if not text and operation.query is None:
        return None
    return parse_query(operation.query, parse_qsl(text, keep_blank_values=True))
