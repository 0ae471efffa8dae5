"""What a test sets for its whole process and is plain data: the solution, which runs in another one, begins its calls with it.

Random numbers follow what the test has seeded, and only that: what it draws by itself is no matter of the solution's. Of what
the solution sets, limits that are wider and numbers that are more exact are the test's too.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SEEDED: dict[str, int] = {}
"""How often each has been seeded, or its state looked at, which may be set again."""
STATES: dict[str, Any] = {}
"""What gives the state of each."""
DIGITS = getattr(sys.int_info, "default_max_str_digits", None)
BEGINNING: dict[str, Any] = {"depth": 1000, "digits": DIGITS, "decimal": None, "prec": 28}
"""As an interpreter begins, where nothing has been seeded."""
MOST_DEPTH = 1_000_000
MOST_PRECISION = 10_000
"""What a solution may have a test's process take over at most."""


def heed_seeds(kinds: list[str]) -> None:
    """Notice from now on that random numbers are seeded, of the module `random` and of `numpy`."""
    for kind in kinds:
        if kind in SEEDED:
            continue
        was_there = kind in sys.modules
        try:
            module = __import__(kind)
        except Exception:
            continue  # The test cannot have it either.
        module = module.random if kind == "numpy" else module
        # Who has imported it may have seeded it already, or hold its functions as they are.
        SEEDED[kind] = int(was_there)
        STATES[kind] = getattr(module, "get_state" if kind == "numpy" else "getstate")
        for name in ("seed", "setstate", "set_state", "getstate", "get_state"):
            if hasattr(module, name):
                setattr(module, name, noticed(kind, getattr(module, name)))


def noticed(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def seeded(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        SEEDED[kind] += 1
        return found

    return seeded


def changed_since(known: dict[str, Any]) -> dict[str, Any]:
    """What is not as it is known to be: name → value. From now on it is known."""
    now = {**limits(), "decimal": reckoning(), **SEEDED}
    changed = {name: value for name, value in now.items() if known.get(name, BEGINNING.get(name, 0)) != value}
    known.update({name: now[name] for name in changed})
    if "random" in changed:
        changed["random"] = STATES["random"]()
    if "numpy" in changed:
        kind, keys, *rest = STATES["numpy"]()
        changed["numpy"] = (kind, keys.tobytes(), *rest)
    return changed


def taken_over(state: Any) -> dict[str, Any]:
    """Have what the solution has set for its process, as far as it makes no answer of it any righter; what is so from now on.

    A limit may be wider here, and numbers more exact; nothing becomes narrower, or coarser.
    """
    found: dict[str, Any] = {}
    depth, digits, precision = (state.get(name) if type(state) is dict else None for name in ("depth", "digits", "prec"))
    if type(depth) is int and sys.getrecursionlimit() < depth <= MOST_DEPTH:
        sys.setrecursionlimit(depth)
        found["depth"] = depth
    least = getattr(sys, "get_int_max_str_digits", int)()
    if type(digits) is int and least > 0 and (digits == 0 or digits > least):
        sys.set_int_max_str_digits(digits)
        found["digits"] = digits
    if type(precision) is int and precision <= MOST_PRECISION:
        import decimal

        if precision > decimal.getcontext().prec >= decimal.DefaultContext.prec:
            decimal.getcontext().prec = precision
            found["decimal"] = reckoning()
    return found


def told_back(known: dict[str, Any]) -> dict[str, Any]:
    """What `taken_over` takes, where it has changed."""
    context = decimal_context()
    now = {**limits(), "prec": None if context is None else context.prec}
    changed = {name: value for name, value in now.items() if value is not None and known.get(name) != value}
    known.update(changed)
    return changed


def reckoning() -> Any:
    """How decimal numbers are reckoned with; None where that is as it begins."""
    context = decimal_context()
    if context is None:
        return None
    now = parts(context)
    return None if now == parts(sys.modules["decimal"].DefaultContext) else now


def limits() -> dict[str, Any]:
    digits = getattr(sys, "get_int_max_str_digits", None)
    return {"depth": sys.getrecursionlimit(), "digits": digits and digits()}


def decimal_context() -> Any:
    """That of now; None where nobody has imported the module."""
    context = getattr(sys.modules.get("decimal"), "getcontext", None)
    return context and context()


def parts(context: Any) -> Any:
    traps = tuple(sorted([kind.__name__ for kind, is_set in context.traps.items() if is_set]))
    return (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps)


def be_as(state: dict[str, Any]) -> None:
    """Set what `changed_since` gave. What cannot be set here the solution cannot use either."""
    for name, value in state.items():
        try:
            SETTERS[name](value)
        except Exception:
            pass


def set_random(value: Any) -> None:
    import random

    random.setstate(value)


def set_numpy(value: Any) -> None:
    import numpy

    kind, keys, *rest = value
    numpy.random.set_state((kind, numpy.frombuffer(keys, numpy.uint32), *rest))


def set_decimal(value: Any) -> None:
    import decimal

    prec, rounding, low, high, capitals, clamp, traps = value if value is not None else parts(decimal.DefaultContext)
    signals = [getattr(decimal, name) for name in traps]
    decimal.setcontext(decimal.Context(prec, rounding, low, high, capitals, clamp, traps=signals))


SETTERS: dict[str, Any] = {
    "depth": lambda value: sys.setrecursionlimit(value),
    "digits": lambda value: sys.set_int_max_str_digits(value),
    "decimal": set_decimal,
    "random": set_random,
    "numpy": set_numpy,
}
