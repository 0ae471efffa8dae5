"""What is counted, put together from spans of time, and as the documented metrics."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

PREFIX = "aviato/"
ALWAYS = {
    "exec_timeouts": "commands that were killed at their timeout",
    "infrastructure_errors": "commands that failed by no fault of what ran inside",
    "output_truncations": "commands of whose output some was left out",
    "retries": "requests that were repeated",
    "sandboxes_created": "sandboxes that sessions made",
}
"""Counts, and what they mean."""
IF_ANY = {
    "image_pulls": "images that had to come, for a sandbox or ahead",
    "image_pull_bytes": "bytes that were downloaded for them",
    "image_cache_hits": "images of sandboxes, or asked for ahead, that were there",
    "image_pull_failures": "images that could not be had",
    "build_steps": "steps of built images that were made",
    "build_steps_cached": "steps of built images that were there",
    "snapshots": "snapshots that were taken, those of forks left out",
    "forks": "children of forks",
    "resets": "sandboxes that ran again after a reset",
    "pool_claims": "sandboxes that were ready in a pool",
    "pool_misses": "sandboxes of pools that started as any other, since none was ready",
}
"""The same of what is shown only where there was any."""
_SAMPLE_SIZE = 1024


class Durations:
    """Sum, extremes and a sample of bounded size of some durations in seconds; not thread-safe."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.shortest = math.inf
        self.longest = 0.0
        self.sample: list[float] = []

    def add(self, seconds: float) -> None:
        """Count one duration; each one seen so far is equally likely to be in the sample."""
        self.count += 1
        self.total += seconds
        self.shortest = min(self.shortest, seconds)
        self.longest = max(self.longest, seconds)
        if len(self.sample) < _SAMPLE_SIZE:
            self.sample.append(seconds)
        elif (place := random.randrange(self.count)) < _SAMPLE_SIZE:
            self.sample[place] = seconds

    def merged(self, other: Durations) -> Durations:
        """Return both together; the sample draws from each by its count."""
        both = Durations()
        both.count = self.count + other.count
        both.total = self.total + other.total
        both.shortest = min(self.shortest, other.shortest)
        both.longest = max(self.longest, other.longest)
        both.sample = self.sample + other.sample
        if len(both.sample) > _SAMPLE_SIZE:
            share = round(_SAMPLE_SIZE * self.count / both.count)
            share = max(_SAMPLE_SIZE - len(other.sample), min(share, len(self.sample)))
            both.sample = random.sample(self.sample, share) + random.sample(other.sample, _SAMPLE_SIZE - share)
        return both

    def percentile(self, percent: float) -> float:
        """Return the nearest-rank percentile of the sample, which must not be empty."""
        return sorted(self.sample)[math.ceil(percent / 100 * len(self.sample)) - 1]


@dataclass(frozen=True)
class Spread:
    """How many numbers there were, the least and the most of them."""

    count: int = 0
    least: float = math.inf
    most: int = 0

    def merged(self, other: Spread) -> Spread:
        """Return both together."""
        return Spread(self.count + other.count, min(self.least, other.least), max(self.most, other.most))

    @classmethod
    def of(cls, numbers: Collection[int]) -> Spread:
        """Return that of some numbers."""
        return cls(len(numbers), min(numbers, default=math.inf), max(numbers, default=0))


@dataclass
class Counts:
    """What was counted in one span of time; not thread-safe."""

    numbers: dict[str, int] = field(default_factory=dict)
    startups: Durations = field(default_factory=Durations)
    execs: Durations = field(default_factory=Durations)
    pulls: Durations = field(default_factory=Durations)
    per_sandbox: dict[str, int] = field(default_factory=dict)
    """Execs of each sandbox that may have more, and below of all others."""
    of_others: Spread = Spread()

    def let_go(self, sandbox_id: str) -> None:
        """A sandbox has no more execs, as a rule."""
        number = self.per_sandbox.pop(sandbox_id, None)
        if number is not None:
            self.of_others = self.of_others.merged(Spread.of([number]))

    def add(self, name: str, by: bool | int = 1) -> None:
        """Count something."""
        self.numbers[name] = self.numbers.get(name, 0) + by

    @property
    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not (self.numbers or self.startups.count)

    def merged(self, other: Counts) -> Counts:
        """Return both together."""
        return Counts(
            numbers=summed(self.numbers, other.numbers),
            startups=self.startups.merged(other.startups),
            execs=self.execs.merged(other.execs),
            pulls=self.pulls.merged(other.pulls),
            per_sandbox=summed(self.per_sandbox, other.per_sandbox),
            of_others=self.of_others.merged(other.of_others),
        )


def summed(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    """Return both, added up key by key."""
    both = dict(first)
    for key, number in second.items():
        both[key] = both.get(key, 0) + number
    return both


def as_metrics(counts: Counts) -> dict[str, float | int]:
    """Return the documented metrics. A rate, average, minimum or maximum of nothing is absent."""
    number = counts.numbers.get
    ok, nonzero, error = number("ok", 0), number("nonzero", 0), number("error", 0)
    executions = ok + nonzero + error
    metrics: dict[str, float | int] = {
        "executions": executions,
        "exec_successes": ok,
        "exec_completed_ok": ok,
        "exec_failures": nonzero,
        "exec_completed_nonzero": nonzero,
        "exec_errors": error,
        "exec_cancelled": number("cancelled", 0),
        "startup_count": counts.startups.count,
    }
    for name in ALWAYS:
        metrics[name] = number(name, 0)
    if executions:
        metrics["success_rate"] = metrics["exec_completion_rate"] = ok / executions
        metrics["error_rate"] = metrics["exec_failure_rate"] = error / executions
        spread = counts.of_others.merged(Spread.of(counts.per_sandbox.values()))
        metrics["avg_execs_per_sandbox"] = executions / spread.count
        metrics["min_execs_per_sandbox"] = spread.least
        metrics["max_execs_per_sandbox"] = spread.most
    if counts.startups.count:
        metrics["avg_startup_seconds"] = counts.startups.total / counts.startups.count
        metrics["min_startup_seconds"] = counts.startups.shortest
        metrics["max_startup_seconds"] = counts.startups.longest
    if counts.execs.count:
        metrics["avg_exec_seconds"] = counts.execs.total / counts.execs.count
        metrics["p95_exec_seconds"] = counts.execs.percentile(95)
    for name in IF_ANY:
        if number(name):
            metrics[name] = number(name, 0)
    if counts.pulls.count:
        metrics["avg_image_pull_seconds"] = counts.pulls.total / counts.pulls.count
        metrics["max_image_pull_seconds"] = counts.pulls.longest
    return {PREFIX + name: value for name, value in metrics.items()}
