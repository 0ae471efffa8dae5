"""`.dockerignore`: which files of a build's directory are none of it. Pure."""

from __future__ import annotations

import posixpath
from functools import lru_cache
from typing import TYPE_CHECKING

from aviato.building.dockerfile import wrong
from aviato.building.path_patterns import compiled

if TYPE_CHECKING:
    import re

Rules = tuple[tuple[bool, str], ...]
"""Each whether it leaves out or takes back, and its pattern."""


def rules(text: str, name: str = ".dockerignore") -> Rules:
    """Read the file.

    Args:
        text: of it.
        name: in errors.

    Raises:
        AviatoValidationError: a pattern is none; the message has its line.
    """
    found = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        pattern = line.strip()
        if not pattern or line.startswith("#"):
            continue
        leaves_out = not pattern.startswith("!")
        pattern = pattern.removeprefix("!").strip()
        if not pattern:
            raise wrong(name, number, "! has no pattern behind it")
        pattern = posixpath.normpath(f"/{pattern}").lstrip("/")
        try:
            compiled(pattern)
        except ValueError as error:
            raise wrong(name, number, str(error)) from None
        if pattern:
            found.append((leaves_out, pattern))
    return tuple(found)


def is_ignored(path: str, given: Rules) -> bool:
    """Whether a file is left out: by the last rule that means it or a directory that it is in.

    Args:
        path: relative to the build's directory.
        given: the rules.
    """
    names = path.split("/")
    above = ["/".join(names[:count]) for count in range(1, len(names) + 1)]
    for leaves_out, pattern in reversed(given):
        expression = _compiled(pattern)
        if any(expression.fullmatch(one) for one in above):
            return leaves_out
    return False


def may_come_back(given: Rules) -> bool:
    """Whether something below a directory that is left out may be taken all the same."""
    return not all(leaves_out for leaves_out, _ in given)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return compiled(pattern)
