"""In a folder without an `__init__.py`."""

from __future__ import annotations

DEPTH = 2


def below() -> int:
    from tests.end_to_end.own_package import LOCK_FREE

    return DEPTH + LOCK_FREE
