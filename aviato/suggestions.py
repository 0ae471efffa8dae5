"""What somebody meant who wrote a name that there is not. Pure."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def closest(name: str, known: Iterable[str], synonyms: Mapping[str, str | tuple[str, ...]] | None = None) -> str | None:
    """The known name that was meant, or None.

    Args:
        name: as it was written.
        known: what there is.
        synonyms: of other tools: their name → ours, or the first of several that is known.
    """
    there = list(known)
    meant = (synonyms or {}).get(name, ())
    for candidate in (meant,) if isinstance(meant, str) else meant:
        if candidate in there:
            return candidate
    return next(iter(get_close_matches(name, there, n=1, cutoff=0.65)), None)
