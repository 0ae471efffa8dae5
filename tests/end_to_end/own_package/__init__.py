"""A package of the user's that no image has, reached by its name."""

from __future__ import annotations

import functools
from typing import Any

LOCK_FREE = 5
LIMIT = 1
big: Any = object()  # not read, so it does not go along


class Base:
    factor = 3

    def scaled(self) -> int:
        return LOCK_FREE * self.factor


def weighted(n: int) -> int:
    return n * LOCK_FREE + helper(n)


def helper(n: int) -> int:
    return 0 if n == 0 else weighted(n - 1)


def limited(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return [LIMIT, function(*args)]

    return inner
