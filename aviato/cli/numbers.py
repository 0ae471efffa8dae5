"""Numbers on a command line: which are meant, and what is said of the others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from typing import Any


class Number(click.ParamType[float]):
    """A number within bounds.

    Args:
        what: it is, in words, such as `number of seconds`.
        example: values that can be meant, in words.
        least: the smallest one.
        above: `least` itself is too small.
        whole: no fraction.
        endless: `inf` is meant, too: no limit.
    """

    name = "number"

    def __init__(
        self, what: str, example: str, *, least: float = 0, above: bool = False, whole: bool = False, endless: bool = False
    ) -> None:
        self._what, self._example = what, example
        self._least, self._above, self._whole, self._endless = least, above, whole, endless

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As click has it."""
        try:
            number: float = int(value) if self._whole else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if math.isnan(number) or (math.isinf(number) and not self._endless):
            self.fail(f"{value!r} is no {self._what}, such as {self._example}", param, ctx)
        if number < self._least or (self._above and number == self._least):
            bound = "be more than" if self._above else "be at least"
            hint = "; inf is no limit" if self._endless else ""
            self.fail(f"it must {bound} {self._least:g}, got {value}{hint}", param, ctx)
        return number


LIMIT_SECONDS = Number("number of seconds", "30 or 0.5", above=True, endless=True)
"""A limit of time."""
SECONDS = Number("number of seconds", "30 or 0.5")
"""A length of time."""
DAYS = Number("number of days", "7 or 0.5")
COUNT = Number("whole number", "1 or 20", least=1, whole=True)
BYTES = Number("number of bytes", "0 or 4096", whole=True)
PROCESSORS = Number("number of processors", "2 or 0.5")
