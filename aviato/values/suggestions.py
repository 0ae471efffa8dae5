"""What somebody meant who wrote a name that there is not. Pure."""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FOR_A_SHELL = frozenset("|&;<>()$`*?[]{}~!#\n")
_QUOTED = re.compile(r"'[^']*'")
_BUILT_IN = frozenset(
    [".", "alias", "cd", "eval", "exec", "exit", "export", "read", "return", "set", "source", "trap", "type", "ulimit", "umask"]
)


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
    return next(iter(difflib.get_close_matches(name, there, n=1, cutoff=0.65)), None)


def meant(name: object, known: Iterable[str], synonyms: Mapping[str, str | tuple[str, ...]] | None = None) -> str:
    """A question that ends a message: what was meant, as `closest` has it; empty where nothing is like it."""
    found = closest(name, known, synonyms) if isinstance(name, str) else None
    return f"; did you mean {found}?" if found else ""


def command_list(line: str | bytes) -> list[str]:
    """The command that a line for a shell means, as a list; through bash where only a shell can read it."""
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    with contextlib.suppress(ValueError):  # a quotation that does not end
        words = shlex.split(text)
        if words and words[0] not in _BUILT_IN and "=" not in words[0] and not _FOR_A_SHELL & set(_QUOTED.sub("", text)):
            return words
    return ["bash", "-c", text]
