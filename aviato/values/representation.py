"""What `repr` says of an object: who it is and the beginning of what it holds, in one line of bounded length.

Nothing is asked of a server, and no value of a variable is told.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from reprlib import Repr
from typing import Any

MOST_CHARACTERS = 300
VALUE_CHARACTERS = 70


class Hidden:
    """Stands for a value, and says what is to be said of it as it is."""

    def __init__(self, said: str = "…") -> None:
        self._said = said

    def __repr__(self) -> str:
        return self._said


class _Beginnings(Repr):
    """As `reprlib` has it, but of a text the beginning: what failed is said first."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 4
        self.maxlevel = 3
        self.maxother = VALUE_CHARACTERS

    def repr_str(self, text: str, level: int) -> str:
        return beginning(text)

    def repr_Hidden(self, hidden: Hidden, level: int) -> str:
        return repr(hidden)

    def repr_bytes(self, data: bytes, level: int) -> str:
        return repr(data) if len(data) <= VALUE_CHARACTERS else f"{data[: VALUE_CHARACTERS - 1]!r}…"


_beginnings = _Beginnings()


def beginning(text: str, limit: int = VALUE_CHARACTERS) -> str:
    """The repr of a text's first characters; an ellipsis in its quotes says that there is more."""
    head = text[:limit]
    if head == text and len(repr(head)) <= limit + 2:
        return repr(head)
    while (excess := len(repr(head)) - limit - 1) > 0:
        head = head[: -max(1, excess // 10)]  # an escape has at most ten characters, and none is cut in two
    return repr(f"{head}…")


def cut(text: str) -> str:
    """A repr, or as much of it as is shown."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 2]}…{text[-1]}"


def named(kind: str, values: dict[str, Any]) -> str:
    """`Kind(name=value, …)`, each value and the whole cut."""
    return cut(f"{kind}({', '.join(f'{name}={_beginnings.repr(value)}' for name, value in values.items())})")


def short(thing: Any) -> str:
    """The repr of a dataclass: its values that are not the built-in ones, each and the whole cut. To be its `__repr__`."""
    values = {item.name: getattr(thing, item.name) for item in fields(thing) if item.repr and not _is_default(thing, item)}
    return named(type(thing).__name__, values)


def _is_default(thing: Any, item: Field[Any]) -> bool:
    value = getattr(thing, item.name)
    usual = item.default if item.default_factory is MISSING else item.default_factory()
    return type(value) is type(usual) and bool(value == usual)


def address(url: str) -> str:
    """A server's URL without what may be a password in it."""
    return re.sub(r"//[^/@]*@", "//…@", url)
