"""When two values are equal: as JSON has them and within a tolerance, or to the last type.

One of the two comes from code that may be hostile. Nothing of it is put into a set or a dict but text, whose hashes nobody can
foresee, and nothing here takes the square of its size unless numbers stand within the tolerance of many others.
"""

from __future__ import annotations

import cmath
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from numbers import Integral, Number
from typing import Any, TypeAlias

from aviato.values.text import shown

Equal: TypeAlias = Callable[[Any, Any], bool]

RTOL = 1e-6
ATOL = 1e-9
LONGEST_DIGITS = 4300
"""Of an integer that Python reads and writes by itself."""
SHOWN_CHARACTERS = 100
KINDS = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict)
"""As what values cross, those of derived classes included."""


def equal_values(actual: Any, expected: Any, rtol: float = RTOL, atol: float = ATOL) -> bool:
    """See `judges.value`. Values that are nested too deep to be compared are not equal."""

    def equal(found: Any, wanted: Any) -> bool:
        return _equal(found, wanted, rtol, atol, equal)

    return _unless_too_deep(equal, actual, expected)


def identical(actual: Any, expected: Any) -> bool:
    """Whether two values are equal and of the same types all through. Those that are nested too deep are not."""
    return _unless_too_deep(_identical, actual, expected)


def same_items(actual: Any, expected: Any, rtol: float = RTOL, atol: float = ATOL) -> bool:
    """Whether two sequences or sets have items that are equal, by `equal_values`, one to one in any order."""

    def equal(found: Any, wanted: Any) -> bool:
        return _equal(found, wanted, rtol, atol, equal)

    return _unless_too_deep(lambda found, wanted: _match(found, wanted, equal), list(actual), list(expected))


def is_sequence(one: Any) -> bool:
    """Whether it is a list or a tuple."""
    return isinstance(one, (list, tuple))


def close(found: Any, wanted: Any, rtol: float, atol: float) -> bool:
    """Whether two numbers are equal within a tolerance; each NaN equals another."""
    try:
        if found == wanted or (found != found and wanted != wanted):
            return True
        found, wanted = _as_float(found), _as_float(wanted)
        return cmath.isfinite(found) and cmath.isfinite(wanted) and abs(found - wanted) <= max(atol, rtol * abs(wanted))
    except OverflowError:  # an integer beyond any float
        return False


def read_json(text: str | bytes) -> Any:
    """The value that JSON tells; an integer of very many digits is a `Decimal`.

    Raises:
        ValueError: it is no JSON, nested too deep, or has an object with the same key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_once, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the key {shown(repr(twice), SHOWN_CHARACTERS)} twice")
    return found


def _integer(digits: str) -> int | Decimal:
    # Many digits take the square of their number to become an int.
    return int(digits) if len(digits) <= LONGEST_DIGITS else Decimal(digits)


def _unless_too_deep(equal: Equal, actual: Any, expected: Any) -> bool:
    try:
        return equal(actual, expected)
    except RecursionError:
        return False


def _equal(actual: Any, expected: Any, rtol: float, atol: float, equal: Equal) -> bool:
    if isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    if _is_number(actual) and _is_number(expected):
        exactly = isinstance(actual, Integral) and isinstance(expected, Integral)
        return bool(actual == expected) if exactly else close(actual, expected, rtol, atol)
    if is_sequence(actual) and is_sequence(expected):
        return len(actual) == len(expected) and all(map(equal, actual, expected))
    if _is_set(actual) and _is_set(expected):
        return _match(list(actual), list(expected), equal)
    if isinstance(actual, dict) and isinstance(expected, dict):
        return _same_dicts(actual, expected, equal, _word, _json_word)
    if _is_binary(actual) and _is_binary(expected):
        return bytes(actual) == bytes(expected)
    return _kind(actual) is _kind(expected) and bool(actual == expected)


def _identical(actual: Any, expected: Any) -> bool:
    kind = _kind(actual)
    if kind is not _kind(expected):
        return False
    if kind in (list, tuple):
        return len(actual) == len(expected) and all(map(_identical, actual, expected))
    if kind in (set, frozenset):
        return _match(list(actual), list(expected), _identical)
    if kind is dict:
        return _same_dicts(actual, expected, _identical, _typed_word)
    return bool(actual == expected) or (actual != actual and expected != expected)


def _same_dicts(actual: dict[Any, Any], expected: dict[Any, Any], equal: Equal, *words: Callable[[Any], Any]) -> bool:
    """Whether keys are the same by one of their words, no two of a dict by one word, and the values of each equal."""
    for word in words:
        found = {word(key): item for key, item in actual.items()}
        wanted = {word(key): item for key, item in expected.items()}
        if len(found) == len(actual) and len(wanted) == len(expected) and found.keys() == wanted.keys():
            return all(equal(found[key], wanted[key]) for key in wanted)
    return False


def _match(actual: Sequence[Any], expected: Sequence[Any], equal: Equal) -> bool:
    """Whether each item of one equals an item of the other, one to one."""
    found, wanted = _by_shape(actual), _by_shape(expected)
    return found.keys() == wanted.keys() and all(_match_by_numbers(found[shape], wanted[shape], equal) for shape in wanted)


def _by_shape(items: Sequence[Any]) -> dict[Any, list[tuple[list[Any], Any]]]:
    found = defaultdict(list)
    for item in items:
        numbers: list[Any] = []
        found[_shape(item, numbers)].append((numbers, item))
    return dict(found)


def _match_by_numbers(found: list[tuple[list[Any], Any]], wanted: list[tuple[list[Any], Any]], equal: Equal) -> bool:
    """Of items that differ in numbers at most. The smallest is most likely the smallest of the others: it is tried first."""
    if len(found) != len(wanted):
        return False
    left = [item for _, item in sorted(wanted, key=_numbers_of, reverse=True)]
    for _, item in sorted(found, key=_numbers_of):
        at = next((at for at in range(len(left) - 1, -1, -1) if equal(item, left[at])), None)
        if at is None:
            return False
        del left[at]
    return True


def _numbers_of(item: tuple[list[Any], Any]) -> list[Any]:
    return item[0]


def _shape(one: Any, numbers: list[Any]) -> Any:
    """What is left of a value without its numbers, which are added to `numbers`; it is the same of all that are equal."""
    if one is None or isinstance(one, bool):
        return str(one)
    if _is_number(one):
        numbers.append(_order(one))
        return "#"
    if isinstance(one, str):
        return "s", str.__str__(one)
    if _is_binary(one):
        return "b", bytes(one)
    if is_sequence(one):
        return "l", *[_shape(item, numbers) for item in one]
    if _is_set(one):
        return "f", *_sorted_shapes([("", item) for item in one], numbers)
    if isinstance(one, dict):
        return "d", *_sorted_shapes([(_coarse(_json_word(key)), item) for key, item in one.items()], numbers)
    return "?"


def _sorted_shapes(items: list[tuple[Any, Any]], numbers: list[Any]) -> list[Any]:
    found = []
    for name, item in items:
        own: list[Any] = []
        shape = _shape(item, own)
        found.append((repr((name, shape)), own, (name, shape)))
    found.sort(key=lambda one: one[:2])
    for _, own, _ in found:
        numbers += own
    return [shape for _, _, shape in found]


def _order(number: Any) -> tuple[Any, ...]:
    """Sorts numbers, those that are close to each other side by side; NaN comes last."""
    real, imaginary = (number.real, number.imag) if isinstance(number, complex) else (number, 0.0)
    try:
        plain = float(real)
    except OverflowError:
        plain = cmath.inf if real > 0 else -cmath.inf
    return plain != plain, 0.0 if plain != plain else plain, real if isinstance(real, int) else 0, float(imaginary)


def _word(key: Any, mark: Callable[[Any], str] = lambda key: "") -> Any:
    """A key by its value: the same for keys that Python takes for equal, but for booleans."""
    if key is None or isinstance(key, bool):
        return mark(key), str(key)
    if isinstance(key, str):
        return mark(key), "s", str.__str__(key)
    if isinstance(key, bytes):
        return mark(key), "b", bytes(key)
    if isinstance(key, tuple):
        return mark(key), "t", *[_word(item, mark) for item in key]
    if isinstance(key, frozenset):
        return mark(key), "f", *sorted((_word(item, mark) for item in key), key=repr)
    return (mark(key), "n", _digits(key)) if _is_number(key) else key


def _typed_word(key: Any) -> Any:
    return _word(key, lambda one: _kind(one).__name__)


def _json_word(key: Any) -> Any:
    """A key as JSON has it; of those that JSON has not, the key by its value."""
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text := float.__repr__(key), text)
    if isinstance(key, int):
        try:
            return int.__repr__(key)
        except ValueError:  # more digits than Python writes
            return _digits(key)
    return str.__str__(key) if isinstance(key, str) else _word(key)


def _coarse(word: Any) -> Any:
    """The same for `1`, `1.0`, `"1"` and `"1.0"`."""
    try:
        return repr(float(word))
    except (ValueError, TypeError):
        return word


def _digits(number: Any) -> str:
    """A number as text, exactly."""
    if isinstance(number, complex) and number.imag != 0:
        return f"{_digits(number.real)} {_digits(number.imag)}"
    try:
        number = number.real if isinstance(number, complex) else number
        above, below = (int(number), 1) if isinstance(number, Integral) else number.as_integer_ratio()
    except (ValueError, OverflowError):  # NaN, infinity
        return repr(float(number))
    return f"{above:x}/{below:x}"


def _as_float(number: Any) -> Any:
    return number if isinstance(number, (int, float, complex)) else float(number)


def _kind(one: Any) -> type:
    return next((kind for kind in KINDS if isinstance(one, kind)), type(one))


def _is_number(one: Any) -> bool:
    return isinstance(one, (int, float, Number))


def _is_set(one: Any) -> bool:
    return isinstance(one, (set, frozenset))


def _is_binary(one: Any) -> bool:
    return isinstance(one, (bytes, bytearray))
