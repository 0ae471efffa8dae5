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
    """Equal but for blank space at both ends, whatever the line ends: TACO's rule.

    Where every line that is expected is one character, blank space between them does not count either, as in TACO's harness.
    """
    found, wanted = _one_line_end(printed_text(actual)).strip(), _one_line_end(printed_text(expected_of(case))).strip()
    same = found == wanted or (all(len(line) == 1 for line in _full_lines(wanted)) and found.split() == wanted.split())
    return same or differs(case, actual)


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
    found, wanted = _printed_lines(actual), _full_lines(printed_text(expected_of(case)))
    whole = all(line.isdigit() for line in found + wanted)
    return found == wanted or (not whole and _all_close(found, wanted)) or differs(case, actual)


def loose_lines(case: Any, actual: Any) -> bool | str:
    """Line by line without the empty ones and word by word: APPS's rule, but in order.

    Or every line is one number that is close, as in `close_lines` and integers too; or all words are numbers, equal to three
    digits. APPS itself takes lines, and the words of a line, as sets: two lines `YES` and `NO` then pass for any list of them.
    That is left out.
    """
    found, wanted = _printed_lines(actual), _full_lines(printed_text(expected_of(case)))
    same = _all_close(found, wanted) or _same_words([line.split() for line in found], [line.split() for line in wanted])
    return same or differs(case, actual)


def _same_words(found: list[list[str]], wanted: list[list[str]]) -> bool:
    if found == wanted:
        return True
    try:
        return [_rounded(line) for line in found] == [_rounded(line) for line in wanted]
    except ValueError:  # a word that is no number: in such an output none is rounded
        return False


def _rounded(words: list[str]) -> list[float]:
    return [round(float(word), 3) for word in words]


def _one_line_end(text: str) -> str:
    """As Python reads text: CRLF and CR are line ends."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _printed_lines(actual: Any) -> list[str]:
    """The lines that those harnesses have of an output, for whom form feeds and the like end one too."""
    return _full_lines("\n".join(printed_text(actual).splitlines()))


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


def _all_close(found: list[str], wanted: list[str]) -> bool:
    return len(found) == len(wanted) and all(map(_close, found, wanted))


def _close(found: str, wanted: str) -> bool:
    try:
        left, right = float(found), float(wanted)
    except ValueError:
        return False
    if not (isfinite(left) and isfinite(right)):
        return left == right
    return abs(left - right) <= 1e-8 + 1e-5 * abs(right)
