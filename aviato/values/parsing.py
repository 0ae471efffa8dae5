"""Syntax trees of Python source, whatever other threads do meanwhile."""

from __future__ import annotations

import ast

TRIES = 20
DEEP_TRIES = 3
"""After so many a source is taken to be too deep indeed."""


def parsed(source: str | bytes) -> ast.Module:
    """As `ast.parse`, for use in any thread.

    CPython 3.11 and 3.12 count the depth of a tree in one place for all threads. Where another one builds a tree at the
    same time, which takes no more than the collection of an object with a `__del__`, `ast.parse` raises `SystemError: AST
    constructor recursion depth mismatch`, or finds a flat source too deep.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as of `ast.parse`.
    """
    too_deep = 0  # No lock: a finalizer or a fork while it is held would wait for ever.
    for attempt in range(TRIES):
        try:
            return ast.parse(source)
        except SystemError:
            if attempt == TRIES - 1:
                raise
        except RecursionError:
            too_deep += 1
            if too_deep == DEEP_TRIES:
                raise
    raise AssertionError("unreachable")
