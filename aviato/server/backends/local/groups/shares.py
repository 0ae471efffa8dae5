"""Processor time, as both versions count it."""

from __future__ import annotations

PERIOD_MICROSECONDS = 100_000
LONG_PERIOD_MICROSECONDS = 1_000_000
SHORTEST_QUOTA_MICROSECONDS = 1_000


def quota(processors: float) -> tuple[int, int]:
    """So much in every period, and how long that is, in microseconds."""
    short = processors * PERIOD_MICROSECONDS >= SHORTEST_QUOTA_MICROSECONDS
    period = PERIOD_MICROSECONDS if short else LONG_PERIOD_MICROSECONDS
    return max(SHORTEST_QUOTA_MICROSECONDS, round(processors * period)), period
