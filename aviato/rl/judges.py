"""How what came out is compared with what is expected.

A judge is a callable `(case, actual)`. It returns True if the case has passed, else False or the reason as a text. `actual` is
what a program printed, as bytes, or what a call returned, as a value. It runs in the caller's process: what is expected never
stands in the sandbox of the code.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aviato import defaults as checks
from aviato.languages import RECIPES
from aviato.rl import given
from aviato.rl.equality import ATOL, RTOL, close, equal_values, identical, is_sequence, read_json, same_items
from aviato.values import text as texts

Judge: TypeAlias = Callable[[Any, Any], "bool | str"]

SHOWN_CHARACTERS = 200


def exact(case: Any, actual: Any) -> bool | str:
    """Every byte; of values also every type: a tuple is no list, and 1 neither 1.0 nor True."""
    expected = expected_of(case)
    if is_printed(case):
        return actual == as_bytes(expected) or differs(case, actual)
    return identical(actual, expected) or differs(case, actual)


def text(case: Any, actual: Any) -> bool | str:
    """What a program printed, line by line: blanks at the end of a line, empty lines at the end and CRLF do not count."""
    expected = expected_of(case)
    return as_lines(as_bytes(actual)) == as_lines(as_bytes(expected)) or differs(case, actual)


def tokens(case: Any, actual: Any) -> bool | str:
    """What a program printed, word by word: no blank space counts."""
    expected = expected_of(case)
    return as_bytes(actual).split() == as_bytes(expected).split() or differs(case, actual)


def unordered(case: Any, actual: Any) -> bool | str:
    """The lines of a program, or the items of a list, in any order; lines as `text` and items as `value` has them.

    A tuple counts as a list, and a set does not. Values that are neither are compared as by `value`.
    """
    expected = expected_of(case)
    if is_printed(case):
        return sorted(as_lines(actual)) == sorted(as_lines(as_bytes(expected))) or differs(case, actual)
    if is_sequence(actual) and is_sequence(expected):
        return same_items(actual, expected) or differs(case, actual)
    return equal_values(actual, expected) or differs(case, actual)


@dataclass(frozen=True)
class Floats:
    """See `floats`."""

    rtol: float
    atol: float

    def __call__(self, case: Any, actual: Any) -> bool | str:
        """As every judge."""
        expected = expected_of(case)
        if not is_printed(case):
            return equal_values(actual, expected, self.rtol, self.atol) or differs(case, actual)
        found, wanted = actual.split(), as_bytes(expected).split()
        same = len(found) == len(wanted) and all(map(self._close, found, wanted))
        return same or differs(case, actual)

    def _close(self, found: bytes, wanted: bytes) -> bool:
        if found == wanted:
            return True
        try:
            return b"_" not in found and close(float(found), float(wanted), self.rtol, self.atol)
        except ValueError:
            return False


@dataclass(frozen=True)
class Value:
    """See `value`."""

    rtol: float
    atol: float

    def __call__(self, case: Any, actual: Any) -> bool | str:
        """As every judge.

        Raises:
            ValueError: what is expected of a program is no JSON.
        """
        expected = expected_of(case)
        if not is_printed(case):
            return equal_values(actual, expected, self.rtol, self.atol) or differs(case, actual)
        wanted = read_json(as_bytes(expected))
        if as_lines(actual) == as_lines(as_bytes(expected)):
            return True
        try:
            found = read_json(actual)
        except ValueError as error:
            return f"no JSON ({texts.shown(str(error), SHOWN_CHARACTERS)}): {differs(case, actual)}"
        return equal_values(found, wanted, self.rtol, self.atol) or differs(case, actual)


BY_VALUE = Value(RTOL, ATOL)
"""`value()`, the judge of calls that name none."""


@dataclass(frozen=True)
class Checker:
    """See `checker`."""

    source: str = field(repr=False)
    language: str
    convention: str
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 10.0


def floats(*, rtol: float = RTOL, atol: float = ATOL) -> Floats:
    """Word by word as `tokens`, and numbers within a tolerance: `abs(found - expected) <= max(atol, rtol * abs(expected))`."""
    return Floats(*_tolerances(rtol, atol))


def value(*, rtol: float = RTOL, atol: float = ATOL) -> Value:
    """Values as JSON has them; the default of calls. What a program printed is read as JSON, in which no key comes twice.

    Lists equal tuples, sets frozensets, and bytes bytearrays, of equal items; no list equals a set. Integers are equal exactly;
    numbers of which one is a float, a complex number, or expected as a `Decimal` or a `Fraction`, within the tolerance as in
    `floats`, in sets too. Booleans equal booleans alone. Keys of dicts are equal exactly, either as Python has them (1.0 is 1)
    or as JSON does (1 is "1"); two keys that JSON makes one are two all the same.
    """
    return Value(*_tolerances(rtol, atol))


def checker(
    source: str,
    language: str,
    *,
    convention: str | None = None,
    files: Mapping[str, bytes] | None = None,
    timeout_seconds: float = 10.0,
) -> Checker:
    """A program that decides, in a sandbox of its own.

    Args:
        source: of the program.
        language: a name of `aviato.languages.RECIPES`, or another that is used for it, such as `py` or `C++`.
        convention: how it is called and answers. `"testlib"`: with the files of input, output and answer; it ends with 0 if
            the output is right, with 1 or 2 if not, and with 7 for a part of the points, which is not right. `"open-r1"`: with
            the files of input, expected output and output; it ends with 0 and prints its points and nothing else, and 1 or
            100 is right. None is testlib's for sources that name `testlib.h`, and else open-r1's.
        files: beside the program, path → content, such as `testlib.h`.
        timeout_seconds: of each answer.

    Raises:
        TypeError: a source that is no text, or files that are no bytes.
        AviatoValidationError: a language or a convention that is not known, files that cannot be written, or a time that is
            none.
    """
    if not isinstance(source, str):
        raise TypeError(f"source must be a str, not {type(source).__name__}")
    name = given.language(language)
    found = convention or ("testlib" if "testlib.h" in source else "open-r1")
    if found not in ("testlib", "open-r1"):
        raise given.wrong("convention", f"convention must be 'testlib' or 'open-r1', got {convention!r}")
    own = given.files({} if files is None else files)
    given.check_own(own, given.files_of(RECIPES[name]), "the checker")
    return Checker(source, name, found, own, checks.seconds("timeout_seconds", timeout_seconds))


def check_judge(judge: Any) -> None:
    """Refuse what is no judge.

    Raises:
        TypeError: it cannot be called, makes judges and is none, or answers only to `await`.
    """
    if judge in (floats, value, checker):
        raise TypeError(f"judge must be a judge, and {judge.__name__} makes one: write {judge.__name__}(…)")
    if isinstance(judge, type):
        raise TypeError(f"judge must be a judge, and not the class {judge.__name__}")
    if not callable(judge) and not isinstance(judge, Checker):
        raise TypeError(f"judge must be a judge of aviato.rl, or a callable (case, actual), not {type(judge).__name__}")
    for one in (judge, type(judge).__call__ if callable(judge) else None):
        if inspect.iscoroutinefunction(one) or inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise TypeError("judge must be an ordinary function: one with `async` or `yield` says neither True nor False")


def is_ours(judge: Any) -> bool:
    """Whether it is a judge of this module, which compares with what a case expects."""
    return isinstance(judge, (Floats, Value)) or any(judge is one for one in (exact, text, tokens, unordered))


def is_printed(case: Any) -> bool:
    """Whether a case is about what a program printed, and not about what a call returned."""
    return hasattr(case, "expected_stdout")


def expected_of(case: Any) -> Any:
    """What a case expects, of a program or of a call."""
    return case.expected_stdout if is_printed(case) else case.expected


def as_bytes(data: Any) -> bytes:
    """Printed text as bytes."""
    return data if isinstance(data, bytes) else texts.encode(data if isinstance(data, str) else str(data))


def as_lines(data: bytes) -> list[bytes]:
    """Lines without blanks at their ends, and without the empty ones at the end."""
    lines = [line.rstrip() for line in data.replace(b"\r\n", b"\n").split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def differs(case: Any, actual: Any) -> str:
    """A line that says how."""
    expected = expected_of(case)
    if is_printed(case):
        return f"printed {_short(actual)}, expected {_short(as_bytes(expected))}"
    return f"returned {_shown(actual)}, expected {_shown(expected)}"


def _tolerances(rtol: float, atol: float) -> tuple[float, float]:
    for name, one in (("rtol", rtol), ("atol", atol)):
        if isinstance(one, bool) or not isinstance(one, (int, float)) or not 0 <= one < math.inf:
            raise given.wrong(name, f"{name} must be 0 or more, got {one!r}")
    return float(rtol), float(atol)


def _short(data: bytes) -> str:
    stripped = data[: 8 * SHOWN_CHARACTERS].strip().decode(errors="replace")
    return repr(stripped if len(stripped) <= SHOWN_CHARACTERS else stripped[: SHOWN_CHARACTERS - 1] + "…")


def _shown(one: Any) -> str:
    try:
        return texts.shown(repr(one), SHOWN_CHARACTERS)
    except (RecursionError, ValueError):  # a value that deep, an integer that long
        return f"a {type(one).__name__}"
