"""What GRPO makes of rewards, computed without it."""

from __future__ import annotations

import statistics
from typing import Any


def advantages(rewards: list[float | None], group: int) -> list[float]:
    """Group by group: a reward that is None counts for nothing and gets nothing."""
    return [value for start in range(0, len(rewards), group) for value in of_group(rewards[start : start + group])]


def of_group(rewards: list[float | None]) -> list[float]:
    there = [reward for reward in rewards if reward is not None]
    if len(there) < 2:
        return [0.0] * len(rewards)
    mean, deviation = statistics.fmean(there), statistics.stdev(there)
    return [0.0 if reward is None else (reward - mean) / (deviation + 1e-4) for reward in rewards]


def mean(rewards: list[float | None]) -> float:
    return statistics.fmean(reward for reward in rewards if reward is not None)


def logged(run: dict[str, Any], key: str) -> list[float]:
    """A figure of TRL's log, step by step."""
    return [row[key] for row in run["log"] if key in row]
