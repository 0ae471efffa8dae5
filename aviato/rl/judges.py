"""How what came out is compared with what is expected.

A judge is a callable `(case, actual)`. It returns True if the case has passed, else False or the reason as a text. `actual` is
what a program printed, as bytes, or what a call returned, as a value. It runs in the caller's process: what is expected never
stands in the sandbox of the code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aviato import text as texts
from aviato.exceptions import AviatoValidationError
from aviato.languages import RECIPES

Judge: TypeAlias = Callable[[Any, Any], "bool | str"]

SHOWN_CHARACTERS = 200
RTOL = 1e-6
ATOL = 1e-9


def exact(case: Any, actual: Any) -> bool | str:
    """Every byte; of values also every type: a tuple is no list, and 1 neither 1.0 nor True."""
    expected = expected_of(case)
    if is_printed(case):
        return actual == as_bytes(expected) or differs(case, actual)
    return _identical(actual, expected) or differs(case, actual)


def text(case: Any, actual: Any) -> bool | str:
    """What a program printed, line by line: blanks at the end of a line, empty lines at the end and CRLF do not count."""
    expected = expected_of(case)
    return as_lines(as_bytes(actual)) == as_lines(as_bytes(expected)) or differs(case, actual)


def tokens(case: Any, actual: Any) -> bool | str:
    """What a program printed, word by word: no blank space counts."""
    expected = expected_of(case)
    return as_bytes(actual).split() == as_bytes(expected).split() or differs(case, actual)


def unordered(case: Any, actual: Any) -> bool | str:
    """The lines of a program, or the items of a list, in any order; lines as `text` and items as `value` has them."""
    expected = expected_of(case)
    if is_printed(case):
        return sorted(as_lines(actual)) == sorted(as_lines(as_bytes(expected))) or differs(case, actual)
    if not (_is_sequence(actual) and _is_sequence(expected)) or len(actual) != len(expected):
        return differs(case, actual)
    left = list(expected)
    for item in actual:
        found = next((index for index, one in enumerate(left) if equal_values(item, one)), None)
        if found is None:
            return differs(case, actual)
        del left[found]
    return True


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
            return _close(float(found), float(wanted), self.rtol, self.atol)
        except ValueError:
            return False


@dataclass(frozen=True)
class Value:
    """See `value`."""

    rtol: float
    atol: float

    def __call__(self, case: Any, actual: Any) -> bool | str:
        """As every judge."""
        expected = expected_of(case)
        found = actual
        if is_printed(case):
            try:
                found, expected = json.loads(actual), json.loads(as_bytes(expected))
            except (ValueError, RecursionError):
                return f"no JSON: {differs(case, actual)}"
        return equal_values(found, expected, self.rtol, self.atol) or differs(case, actual)


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
    """Values as JSON has them; the default of calls. What a program printed is read as JSON.

    A list equals a tuple of equal items. Floats are equal within the tolerance, as in `floats`, and to integers; booleans only
    to booleans. The keys of dicts are what JSON makes of them: 1 is "1".
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
        language: a name of `aviato.languages.RECIPES`.
        convention: how it is called and answers. `"testlib"`: with the files of input, output and answer; it ends with 0 if
            the output is right, with 1 or 2 if not, and with 7 for a part of the points, which is not right. `"open-r1"`: with
            the files of input, expected output and output; the last word that it prints is its share of the points, and 1
            is right. None is testlib's for sources that name `testlib.h`, and else open-r1's.
        files: beside the program, path → content, such as `testlib.h`.
        timeout_seconds: of each answer.

    Raises:
        AviatoValidationError: a language or a convention that is not known.
    """
    if language not in RECIPES:
        raise _wrong("language", f"language must be one of {', '.join(sorted(RECIPES))}, got {language!r}")
    found = convention or ("testlib" if "testlib.h" in source else "open-r1")
    if found not in ("testlib", "open-r1"):
        raise _wrong("convention", f"convention must be 'testlib' or 'open-r1', got {convention!r}")
    return Checker(source, language, found, dict(files or {}), timeout_seconds)


def check_judge(judge: Any) -> None:
    """Refuse what is no judge.

    Raises:
        TypeError: it cannot be called, or makes judges and is none.
    """
    if judge in (floats, value, checker):
        raise TypeError(f"judge must be a judge, and {judge.__name__} makes one: write {judge.__name__}(…)")
    if not callable(judge) and not isinstance(judge, Checker):
        raise TypeError(f"judge must be a judge of aviato.rl, or a callable (case, actual), not {type(judge).__name__}")


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


def equal_values(actual: Any, expected: Any, rtol: float = RTOL, atol: float = ATOL) -> bool:
    """See `value`. Values that are nested too deep to be compared are not equal."""
    try:
        return _equal(actual, expected, rtol, atol)
    except RecursionError:
        return False


def _equal(actual: Any, expected: Any, rtol: float, atol: float) -> bool:
    if isinstance(actual, bool) or isinstance(expected, bool):
        return isinstance(actual, bool) and isinstance(expected, bool) and actual == expected
    if isinstance(actual, float) or isinstance(expected, float):
        return _is_number(actual) and _is_number(expected) and _close(actual, expected, rtol, atol)
    if _is_sequence(actual) and _is_sequence(expected):
        return len(actual) == len(expected) and all(_equal(a, b, rtol, atol) for a, b in zip(actual, expected, strict=True))
    if isinstance(actual, dict) and isinstance(expected, dict):
        found, wanted = _with_json_keys(actual), _with_json_keys(expected)
        return found.keys() == wanted.keys() and all(_equal(found[key], wanted[key], rtol, atol) for key in wanted)
    return type(actual) is type(expected) and bool(actual == expected)


def _identical(actual: Any, expected: Any) -> bool:
    """Whether two values are equal and of the same types all through."""
    if type(actual) is not type(expected):
        return False
    if isinstance(actual, (list, tuple)):
        return len(actual) == len(expected) and all(map(_identical, actual, expected))
    if isinstance(actual, dict):
        return actual.keys() == expected.keys() and all(_identical(actual[key], expected[key]) for key in expected)
    return bool(actual == expected) or (actual != actual and expected != expected)


def _close(found: Any, wanted: Any, rtol: float, atol: float) -> bool:
    try:
        if found == wanted or (found != found and wanted != wanted):
            return True
        return math.isfinite(found) and math.isfinite(wanted) and abs(found - wanted) <= max(atol, rtol * abs(wanted))
    except OverflowError:  # an integer beyond any float
        return False


def _is_number(one: Any) -> bool:
    return isinstance(one, (int, float))


def _is_sequence(one: Any) -> bool:
    return isinstance(one, (list, tuple))


def _with_json_keys(one: dict[Any, Any]) -> dict[Any, Any]:
    words = {True: "true", False: "false", None: "null"}
    return {
        words[key] if key is None or isinstance(key, bool) else str(key) if _is_number(key) else key: item
        for key, item in one.items()
    }


def _tolerances(rtol: float, atol: float) -> tuple[float, float]:
    for name, one in (("rtol", rtol), ("atol", atol)):
        if isinstance(one, bool) or not isinstance(one, (int, float)) or not 0 <= one < math.inf:
            raise _wrong(name, f"{name} must be 0 or more, got {one!r}")
    return float(rtol), float(atol)


def _short(data: bytes) -> str:
    stripped = data[: 8 * SHOWN_CHARACTERS].strip().decode(errors="replace")
    return repr(stripped if len(stripped) <= SHOWN_CHARACTERS else stripped[: SHOWN_CHARACTERS - 1] + "…")


def _shown(one: Any) -> str:
    try:
        return texts.shown(repr(one), SHOWN_CHARACTERS)
    except (RecursionError, ValueError):  # a value that deep, an integer that long
        return f"a {type(one).__name__}"


def _wrong(name: str, message: str) -> AviatoValidationError:
    return AviatoValidationError(message, field_violations={name: message})
