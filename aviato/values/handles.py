"""What stands for an outcome that has to be asked for."""

from __future__ import annotations

from aviato.values.parameters import Suggesting, no_attribute

OUTCOMES = (str, bytes, bytearray, int, float, list, tuple, dict, set)
"""Of these kinds are outcomes and what tests compare them with."""


class Handle(Suggesting):
    """Says so where it is taken for the outcome itself: a comparison that is False without a word makes a wrong reward."""

    _instead = "; it is a handle: take its `.result()`, or `await` it, first"

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OUTCOMES):
            raise TypeError(f"{type(self).__name__!r} object compared with {type(other).__name__!r}{self._instead}")
        return NotImplemented

    def _no_attribute(self, name: str) -> str:
        if any(hasattr(kind, name) for kind in OUTCOMES):
            return f"{type(self).__name__!r} object has no attribute {name!r}{self._instead}"
        return no_attribute(self, name, self._instead)
