"""Patterns of names as Dockerfiles and `.dockerignore` have them, which are those of Go. Pure."""

from __future__ import annotations

import re

WILD = frozenset("*?[\\")


def compiled(pattern: str) -> re.Pattern[str]:
    r"""What matches the whole of a name: `*` and `?` within one directory, `**` across them, `[a-z]` and `[^a-z]`, and `\`.

    Raises:
        ValueError: it is no pattern.
    """
    found = ""
    position = 0
    while position < len(pattern):
        letter = pattern[position]
        if pattern.startswith("**", position):
            position += 2
            if pattern.startswith("/", position):
                position += 1
            found += ".*" if position == len(pattern) else "(?:.*/)?"
            continue
        position += 1
        if letter == "*":
            found += "[^/]*"
        elif letter == "?":
            found += "[^/]"
        elif letter == "[":
            members, position = _members(pattern, position)
            found += members
        elif letter == "\\":
            if position == len(pattern):
                raise ValueError(f"the pattern {pattern!r} ends with a backslash")
            found += re.escape(pattern[position])
            position += 1
        else:
            found += re.escape(letter)
    return re.compile(found, re.DOTALL)


def _members(pattern: str, position: int) -> tuple[str, int]:
    """`[…]` as an expression has it, and where it ends."""
    negated = pattern.startswith("^", position)
    position += negated
    found: list[tuple[str, str]] = []
    while True:
        if position >= len(pattern):
            raise ValueError(f"the pattern {pattern!r} has a [ without an end")
        if pattern[position] == "]":
            if not found:
                raise ValueError(f"the pattern {pattern!r} has an empty []")
            break
        low, position = _member(pattern, position)
        high = low
        if pattern.startswith("-", position) and not pattern.startswith("-]", position):
            high, position = _member(pattern, position + 1)
        if high < low:
            raise ValueError(f"the pattern {pattern!r} has a range that ends before it begins")
        found.append((low, high))
    said = "".join(f"{re.escape(low)}-{re.escape(high)}" for low, high in found)
    return f"(?!/)[{'^' if negated else ''}{said}]", position + 1


def _member(pattern: str, position: int) -> tuple[str, int]:
    position += pattern.startswith("\\", position)
    if position >= len(pattern):
        raise ValueError(f"the pattern {pattern!r} has a [ without an end")
    return pattern[position], position + 1
