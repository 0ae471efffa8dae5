"""How harnesses of data sets compare what a call returned: by Python's own `==`, with what each of them forgives."""

from __future__ import annotations

from typing import Any

from aviato.rl.judges import differs, expected_of


def same_but_tuple(case: Any, actual: Any) -> bool | str:
    """Equal, where a tuple returned is taken as a list: LiveCodeBench's rule."""
    return _same(_as_list(actual), case.expected) or differs(case, actual)


def same_or_wrapped(case: Any, actual: Any) -> bool | str:
    """As `same_but_tuple`; what is expected may stand in a list of one more: the rule of APPS, TACO, PRIME and verl.

    A list of tuples equals a list of lists where what is expected is wrapped.
    """
    found, expected = _as_list(actual), case.expected
    wrapped = isinstance(expected, list) and bool(expected)
    same = _same(found, expected) or (wrapped and (_same(found, expected[0]) or _same(_inner_lists(found), expected[0])))
    return same or differs(case, actual)


def same_printed(case: Any, actual: Any) -> bool | str:
    """Equal as `print` shows them, which may also be the one item of a list that is expected: SYNTHETIC-1's rule."""
    expected = expected_of(case)
    wanted = [expected, *expected] if isinstance(expected, list) and len(expected) == 1 else [expected]
    try:
        return str(actual).strip() in [str(one).strip() for one in wanted] or differs(case, actual)
    except (ValueError, RecursionError):  # an integer of that many digits, a value that deep
        return differs(case, actual)


def _as_list(actual: Any) -> Any:
    return list(actual) if isinstance(actual, tuple) else actual


def _inner_lists(found: Any) -> Any:
    if isinstance(found, list) and found and isinstance(found[0], tuple):
        return [list(one) if isinstance(one, (tuple, list, str)) else one for one in found]
    return found


def _same(found: Any, expected: Any) -> bool:
    try:
        return bool(found == expected)
    except RecursionError:
        return False
