"""How harnesses of data sets compare what a program printed."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any

from aviato.rl.judges import as_bytes, differs, expected_of


def printed_text(data: Any) -> str:
    """What was printed, as text; bytes that are no UTF-8 are replaced."""
    return as_bytes(data).decode(errors="replace")


def stripped(case: Any, actual: Any) -> bool | str:
    """Equal but for blank space at both ends: TACO's rule."""
    return printed_text(actual).strip() == printed_text(expected_of(case)).strip() or differs(case, actual)


def stripped_lines(case: Any, actual: Any) -> bool | str:
    """Line by line, without blank space at both ends of the whole and of each line: SYNTHETIC-1's rule."""
    return _stripped_lines(printed_text(actual)) == _stripped_lines(printed_text(expected_of(case))) or differs(case, actual)


def decimal_lines(case: Any, actual: Any) -> bool | str:
    """As `stripped_lines`, where lines of numbers are compared number by number, exactly: LiveCodeBench's rule."""
    found, wanted = _stripped_lines(printed_text(actual)), _stripped_lines(printed_text(expected_of(case)))
    same = len(found) == len(wanted) and all(map(_same_decimals, found, wanted))
    return same or differs(case, actual)


def close_lines(case: Any, actual: Any) -> bool | str:
    """As `stripped_lines` without the empty lines, or every line one number that is close: PRIME's and verl's rule.

    Close is `numpy.allclose`'s default. Where all lines are integers, they have to be equal.
    """
    return _close_lines(actual, case, rounded=False) or differs(case, actual)


def loose_lines(case: Any, actual: Any) -> bool | str:
    """As `close_lines`, integers included, or word by word with numbers rounded to three digits: APPS's rule, but in order.

    APPS itself takes lines, and the words of a line, as sets: two lines `YES` and `NO` then pass for any list of them. That is
    left out.
    """
    return _close_lines(actual, case, rounded=True) or differs(case, actual)


def _close_lines(actual: Any, case: Any, *, rounded: bool) -> bool:
    output, truth = printed_text(actual), printed_text(expected_of(case))
    found, wanted = _full_lines(output), _full_lines(truth)
    if output.strip() == truth.strip() or found == wanted:
        return True
    if len(found) != len(wanted):
        return False
    if (rounded or not all(line.isdigit() for line in found + wanted)) and all(map(_close, found, wanted)):
        return True
    return rounded and all(map(_same_rounded, found, wanted))


def _stripped_lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _full_lines(text: str) -> list[str]:
    return [line for line in _stripped_lines(text) if line]


def _same_decimals(found: str, wanted: str) -> bool:
    if found == wanted:
        return True
    try:
        return [Decimal(word) for word in found.split()] == [Decimal(word) for word in wanted.split()]
    except InvalidOperation:
        return False


def _close(found: str, wanted: str) -> bool:
    try:
        left, right = float(found), float(wanted)
    except ValueError:
        return False
    if not (isfinite(left) and isfinite(right)):
        return left == right
    return abs(left - right) <= 1e-8 + 1e-5 * abs(right)


def _same_rounded(found: str, wanted: str) -> bool:
    left, right = found.split(), wanted.split()
    return len(left) == len(right) and all(map(_equal_rounded, left, right))


def _equal_rounded(found: str, wanted: str) -> bool:
    if found == wanted:
        return True
    try:
        return round(float(found), 3) == round(float(wanted), 3)
    except (ValueError, OverflowError):
        return False
