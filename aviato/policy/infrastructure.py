"""Work that is done again, in another sandbox, where the infrastructure failed it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from aviato.exceptions import AviatoError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_T = TypeVar("_T")

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0
_SAME_AGAIN = frozenset({"build_failed", "configuration", "state_dir", "cannot_run", "wire_version"})
"""Reasons that another attempt meets too: somebody has to change a recipe, a variable, the machine or the server first."""


async def retried(attempt: Callable[[], Awaitable[_T]], budget_seconds: float) -> _T:
    """Try again after failures of the infrastructure.

    Args:
        attempt: makes one, in a sandbox of its own.
        budget_seconds: for how long, from the first failure on.

    Raises:
        AviatoError: the last failure, once the budget is over; at once what is none of the infrastructure's, or what is
            set wrongly.
    """
    deadline: float | None = None
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await attempt()
        except AviatoError as error:
            if not error.is_infrastructure or error.reason in _SAME_AGAIN:
                raise
            now = time.monotonic()
            deadline = now + budget_seconds if deadline is None else deadline
            if now + pause > deadline:
                raise
            await asyncio.sleep(min(pause, error.retry_delay_seconds or pause))
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
