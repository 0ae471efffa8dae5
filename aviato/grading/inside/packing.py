"""How values cross: nested lists that say what a list was before, and their JSON. Sent along with both ends.

What comes out of `unpack` is built from constructors of this file's choosing, of exact built-in types: nothing that comes in
compares equal to everything, counts its own uses, or runs anything when it is touched.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

DEEPEST = 100
SMALL = 1 << 62
MOST_EQUAL_HASHES = 1000
LONGEST_NUMBER = 4300
"""Digits of a `Decimal` or a `Fraction`, and how far the point of the first may lie from them."""


def pack(value: Any, refer: Callable[[Any], Any], depth: int = 0, exact: bool = False) -> Any:
    """The form of a value; what is no data is for `refer`, which gives its form or raises.

    Args:
        value: to be packed.
        refer: takes all else.
        depth: at which it is.
        exact: whether values of classes that are derived from those of data are for `refer` too.
    """
    if depth > 2 * DEEPEST:
        raise ValueError("a value is nested more than %d deep" % (2 * DEEPEST))
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if exact and kind not in EXACT:
        return refer(value)
    if isinstance(value, int) and kind is not bool:
        number = int(value)
        return number if -SMALL < number < SMALL else ["i", "%x" % number]
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, complex):
        return ["c", value.real, value.imag]
    if isinstance(value, (bytes, bytearray)):
        return ["B" if isinstance(value, bytearray) else "b", bytes(value).hex()]
    for tag, known in SEQUENCES:
        if isinstance(value, known):
            return [tag, *[pack(item, refer, depth + 1, exact) for item in value]]
    if isinstance(value, dict):
        pairs = value.items()
        return ["d", *[[pack(key, refer, depth + 1, exact), pack(item, refer, depth + 1, exact)] for key, item in pairs]]
    number = form_of_number(value)
    return refer(value) if number is None else number


def unpack(value: Any, resolve: Callable[[list[Any]], Any], depth: int = 0) -> Any:
    """The value of a form; forms that are no data are for `resolve`."""
    if depth > DEEPEST:
        raise ValueError("a value is nested more than %d deep" % DEEPEST)
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise ValueError("an object where there is none")
        return value
    tag, *items = value
    if tag == "i":
        return int(items[0], 16)
    if tag == "c":
        return complex(float(items[0]), float(items[1]))
    if tag == "b":
        return bytes.fromhex(items[0])
    if tag == "B":
        return bytearray.fromhex(items[0])
    if tag in ("n", "r"):
        return exact_number(tag, items)
    if tag in ("d", "s", "f"):
        return hashed(tag, items, resolve, depth)
    for name, known in SEQUENCES:
        if tag == name:
            return known([unpack(item, resolve, depth + 1) for item in items])
    return resolve(value)


def form_of_number(value: Any) -> Any:
    """The form of a `Decimal` or a `Fraction`; None for all else, and for those with which reckoning takes long."""
    kind = type(value)
    if (kind.__module__, kind.__name__) == ("fractions", "Fraction"):
        texts = ["%x" % value.numerator, "%x" % value.denominator]
        return ["r", *texts] if max(map(len, texts)) <= LONGEST_NUMBER else None
    if (kind.__module__, kind.__name__) == ("decimal", "Decimal") and not value.is_snan():
        text = str(value)
        return ["n", text] if len(text) <= LONGEST_NUMBER and abs(value.adjusted()) <= LONGEST_NUMBER else None
    return None


def exact_number(tag: str, items: list[Any]) -> Any:
    """The `Decimal` or the `Fraction` of a form, as `form_of_number` gives it."""
    if not all(isinstance(item, str) and len(item) <= LONGEST_NUMBER for item in items):
        raise ValueError("a number that is too long")
    found: Any
    try:
        if tag == "r":
            from fractions import Fraction

            found = Fraction(int(items[0], 16), int(items[1], 16))
        else:
            from decimal import Decimal

            found = Decimal(items[0])
    except ArithmeticError:
        raise ValueError("no number") from None
    if form_of_number(found) is None:
        raise ValueError("a number that is too large")
    return found


def hashed(tag: str, items: list[Any], resolve: Callable[[list[Any]], Any], depth: int) -> Any:
    """A set or a dict, unless it is made so that looking anything up in it takes for ever."""
    if tag == "d":
        pairs = [(unpack(key, resolve, depth + 1), unpack(item, resolve, depth + 1)) for key, item in items]
        check_hashes([key for key, _ in pairs])
        return dict(pairs)
    values = [unpack(item, resolve, depth + 1) for item in items]
    check_hashes(values)
    return set(values) if tag == "s" else frozenset(values)


def check_hashes(values: list[Any]) -> None:
    if len(values) > MOST_EQUAL_HASHES and len(values) - len(set(map(hash, values))) > MOST_EQUAL_HASHES:
        raise ValueError("more than %d values have hashes that others have" % MOST_EQUAL_HASHES)


def no_data(value: Any) -> Any:
    """The form of an object that stands for a number, such as numpy's; for `pack`.

    Raises:
        TypeError: it does not.
    """
    plain = plain_of(value)
    if plain is not None:
        return pack(plain, no_data)
    index = getattr(type(value), "__index__", None)
    if index is not None:
        return pack(int(index(value)), no_data)
    raise TypeError("a value of type %s is no data and cannot be graded" % type(value).__name__)


def refused(form: Any) -> Any:
    """For `pack` and `unpack`, of what is data through and through.

    Raises:
        ValueError: always.
    """
    raise ValueError("an unknown form")


def data_among(items: Iterable[tuple[str, Any]], refer: Callable[[Any], Any]) -> dict[str, Any]:
    """Those of some names and values whose values are data, as `pack` takes it with the same `refer`."""
    found = {}
    for name, value in items:
        try:
            pack(value, refer)
        except Exception:
            continue
        found[name] = value
    return found


def plain_of(value: Any) -> Any:
    """What Python has of a number of numpy's; None for all else."""
    if type(value).__module__ != "numpy" or getattr(value, "shape", None) != ():
        return None
    plain = value.item()
    return None if type(plain).__module__ == "numpy" else plain


AGAIN = b'{"again":true}'
"""The answer to what was asked ahead, and shall be asked again: an object came before it, whose use it would overtake."""
EXACT = frozenset((int, complex, bytes, bytearray, list, tuple, set, frozenset, dict))
SEQUENCES = (("l", list), ("t", tuple), ("s", set), ("f", frozenset))
