"""Counting: what a session and a sandbox did, and who is told about it."""

from __future__ import annotations

import logging
import math
import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

Outcome: TypeAlias = Literal["ok", "nonzero", "error", "cancelled"]

PREFIX = "aviato/"
REPORTERS_GROUP = "aviato.reporters"
_SAMPLE_SIZE = 1024

logger = logging.getLogger(__name__)


@runtime_checkable
class Reporter(Protocol):
    """Somewhere that metrics are logged to, found by the entry point group `aviato.reporters`."""

    name: str

    def log(self, metrics: Mapping[str, float | int], step: int | None) -> bool:
        """Log one row; False when there is nowhere to log it to now, such as no active run."""
        ...


def load_reporters() -> dict[str, Reporter]:
    """Return the installed reporters by name: each entry point names a callable that makes one.

    One that cannot be loaded is left out, with a WARNING by `logging`: counting never fails a session.
    """
    from importlib.metadata import entry_points

    reporters: dict[str, Reporter] = {}
    for entry in entry_points(group=REPORTERS_GROUP):
        try:
            reporter = entry.load()()
        except Exception:
            logger.warning("the reporter %r (%s) cannot be loaded", entry.name, entry.value, exc_info=True)
        else:
            reporters[reporter.name] = reporter
    return reporters


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


@dataclass
class _Counts:
    """What was counted in one span of time; not thread-safe."""

    numbers: dict[str, int] = field(default_factory=dict)
    startups: Durations = field(default_factory=Durations)
    execs: Durations = field(default_factory=Durations)
    per_sandbox: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, by: bool | int = 1) -> None:
        self.numbers[name] = self.numbers.get(name, 0) + by

    def merged(self, other: _Counts) -> _Counts:
        return _Counts(
            numbers=_summed(self.numbers, other.numbers),
            startups=self.startups.merged(other.startups),
            execs=self.execs.merged(other.execs),
            per_sandbox=_summed(self.per_sandbox, other.per_sandbox),
        )


class Taken:
    """What `Metrics.take()` handed out; `Metrics.discard()` takes it back."""

    __slots__ = ("_counts",)

    def __init__(self, counts: _Counts) -> None:
        self._counts = counts


class Metrics:
    """The counters of one session; thread-safe.

    Every exec that has ended is of one class: `ok` (returncode 0), `nonzero` (any other returncode), `error` (no returncode,
    or timed out) or `cancelled` (by the caller; counted in nothing else).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = _Counts()
        self._current = _Counts()

    def sandbox_created(self) -> None:
        """Count a sandbox that the session made."""
        with self._lock:
            self._current.add("sandboxes_created")

    def startup(self, seconds: float) -> None:
        """Count a sandbox that runs, so many seconds after its start was asked for, queue included."""
        with self._lock:
            self._current.startups.add(seconds)

    def exec_ended(
        self,
        sandbox_id: str,
        outcome: Outcome,
        duration_seconds: float | None,
        *,
        timed_out: bool = False,
        infrastructure: bool = False,
        truncated: bool = False,
    ) -> None:
        """Count an exec, before its ref resolves.

        Args:
            sandbox_id: where it ran.
            outcome: its class.
            duration_seconds: how long the command ran; None if nobody can tell.
            timed_out: it was killed at its `timeout_seconds`; its class is `error`.
            infrastructure: it failed by an error whose `is_infrastructure` is True.
            truncated: some of its output was left out of the result.
        """
        with self._lock:
            counts = self._current
            counts.add(outcome)
            if outcome == "cancelled":
                return
            counts.per_sandbox[sandbox_id] = counts.per_sandbox.get(sandbox_id, 0) + 1
            counts.add("exec_timeouts", timed_out)
            counts.add("infrastructure_errors", infrastructure)
            counts.add("output_truncations", truncated)
            if duration_seconds is not None:
                counts.execs.add(duration_seconds)

    def retry(self) -> None:
        """Count one repeated request."""
        with self._lock:
            self._current.add("retries")

    def snapshot(self) -> dict[str, float | int]:
        """Return all metrics since the last reset. A rate, average, minimum or maximum of nothing is absent."""
        with self._lock:
            counts = self._taken.merged(self._current)
        return _as_metrics(counts)

    def take(self) -> tuple[dict[str, float | int], Taken]:
        """Return a snapshot, and a token for `discard()` once it is logged.

        Nothing is reset by this: without a `discard()` the same counts are in the next snapshot. Between two `discard()` only
        the token of the last `take()` counts, so logging is to be done by one thread at a time.
        """
        with self._lock:
            counts = self._taken = self._taken.merged(self._current)
            self._current = _Counts()
        return _as_metrics(counts), Taken(counts)

    def discard(self, taken: Taken) -> None:
        """Forget what `take()` handed out; what was counted since stays. Twice is fine."""
        with self._lock:
            if taken._counts is self._taken:
                self._taken = _Counts()

    def reset(self) -> None:
        """Forget everything."""
        with self._lock:
            self._taken = _Counts()
            self._current = _Counts()


class ExecStats:
    """The counters of one sandbox, never reset; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[Outcome, int] = {"ok": 0, "nonzero": 0, "error": 0, "cancelled": 0}

    def exec_ended(self, outcome: Outcome) -> None:
        """Count an exec by its class, before its ref resolves."""
        with self._lock:
            self._numbers[outcome] += 1

    @property
    def execution_stats(self) -> dict[str, int]:
        """`total`, `successes`, `failures` (any other returncode than 0) and `errors`."""
        return self._as("total", "successes", "failures", "errors")

    @property
    def exec_stats(self) -> dict[str, int]:
        """`exec_count`, `completed_ok`, `completed_nonzero` and `failures` (no returncode, or timed out)."""
        return self._as("exec_count", "completed_ok", "completed_nonzero", "failures")

    def _as(self, total: str, ok: str, nonzero: str, error: str) -> dict[str, int]:
        with self._lock:
            numbers = dict(self._numbers)
        executions = numbers["ok"] + numbers["nonzero"] + numbers["error"]
        return {total: executions, ok: numbers["ok"], nonzero: numbers["nonzero"], error: numbers["error"]}


def _summed(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    both = dict(first)
    for key, number in second.items():
        both[key] = both.get(key, 0) + number
    return both


def _as_metrics(counts: _Counts) -> dict[str, float | int]:
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
    for name in ("sandboxes_created", "exec_timeouts", "infrastructure_errors", "output_truncations", "retries"):
        metrics[name] = number(name, 0)
    if executions:
        metrics["success_rate"] = metrics["exec_completion_rate"] = ok / executions
        metrics["error_rate"] = metrics["exec_failure_rate"] = error / executions
        per_sandbox = counts.per_sandbox.values()
        metrics["avg_execs_per_sandbox"] = executions / len(per_sandbox)
        metrics["min_execs_per_sandbox"] = min(per_sandbox)
        metrics["max_execs_per_sandbox"] = max(per_sandbox)
    if counts.startups.count:
        metrics["avg_startup_seconds"] = counts.startups.total / counts.startups.count
        metrics["min_startup_seconds"] = counts.startups.shortest
        metrics["max_startup_seconds"] = counts.startups.longest
    if counts.execs.count:
        metrics["avg_exec_seconds"] = counts.execs.total / counts.execs.count
        metrics["p95_exec_seconds"] = counts.execs.percentile(95)
    return {PREFIX + name: value for name, value in metrics.items()}
