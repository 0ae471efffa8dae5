"""Imports of what stays as long as the process does."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Context of imports of which nothing is garbage, now or later: the collector looks at none of it."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
