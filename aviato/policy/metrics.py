"""Counting: what a session and a sandbox did."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

from aviato.log import logger
from aviato.policy.counts import Counts, as_metrics
from aviato.policy.totals import Totals

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.results import ImageInfo
    from aviato.wire.images import ImagePull

Outcome: TypeAlias = Literal["ok", "nonzero", "error", "cancelled"]
Duration: TypeAlias = Literal["exec", "startup", "image_pull"]

_lock = threading.Lock()
_all: weakref.WeakSet[Metrics] = weakref.WeakSet()
_totals = Totals()
_listeners: list[Callable[[Duration, float], None]] = []
_numbers = itertools.count()


class Snapshot(dict[str, float | int]):
    """The documented metrics of what was counted in one span, and the counts behind them, so that spans can be added up.

    Attributes:
        source: whose counts these are.
        span: equal for snapshots of one source between two resets: the later one holds what the earlier one held.
    """

    def __init__(self, counts: Counts, source: int, span: int) -> None:
        super().__init__(as_metrics(counts))
        self._counts = counts
        self.source = source
        self.span = span

    def plus(self, other: Snapshot) -> Snapshot:
        """Both together, which have nothing in common."""
        return Snapshot(self._counts.merged(other._counts), self.source, self.span)


class Metrics:
    """The counters of one session; thread-safe. In a forked child they begin at zero.

    Every exec that has ended is of one class: `ok` (returncode 0), `nonzero` (any other returncode), `error` (no returncode,
    or timed out) or `cancelled` (by the caller; counted in nothing else).

    Args:
        reported: what it counts is in the totals of the process too.
    """

    def __init__(self, *, reported: bool = True) -> None:
        self._taken = Counts()
        self._current = Counts()
        self._number = next(_numbers)
        self._span = 0
        self._has_news = False
        self._let_go: deque[str] = deque()
        self.reported = reported
        _all.add(self)

    def sandbox_created(self) -> None:
        """Count a sandbox that the session made."""
        self._add("sandboxes_created")

    def startup(self, seconds: float, was_ready: bool = False, *, pooled: bool = False) -> None:
        """Count a sandbox that runs.

        Args:
            seconds: since its start was asked for, queue included.
            was_ready: it was ready in a pool of the server's.
            pooled: it was to be one of a pool.
        """
        self._measure("startup", seconds)
        if was_ready:
            self._add("pool_claims")
        elif pooled:
            self._add("pool_misses")

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
        names: list[str] = [outcome]
        measured = None
        if outcome != "cancelled":
            measured = duration_seconds
            flags = {"exec_timeouts": timed_out, "infrastructure_errors": infrastructure, "output_truncations": truncated}
            names += [name for name, holds in flags.items() if holds]
        with _lock:
            self._has_news = True
            for name in names:
                self._current.add(name)
                if self.reported:
                    _totals.add(name)
            if outcome != "cancelled":
                self._forget_sandboxes()
                per_sandbox = self._current.per_sandbox
                per_sandbox[sandbox_id] = per_sandbox.get(sandbox_id, 0) + 1
            if measured is not None:
                self._current.execs.add(measured)
                if self.reported:
                    _totals.durations["exec"].add(measured)
        if measured is not None and self.reported:
            _tell("exec", measured)

    def sandbox_let_go(self, sandbox_id: str) -> None:
        """Nobody has it any more who could run a command in it: what is counted of it alone is no longer kept by its id.

        Takes no lock: collection comes at any time, and so with the lock held.
        """
        self._let_go.append(sandbox_id)

    def _forget_sandboxes(self) -> None:
        while self._let_go:
            sandbox_id = self._let_go.popleft()
            if sandbox_id not in self._taken.per_sandbox:  # What is taken may yet be added to this.
                self._current.let_go(sandbox_id)

    def image_prefetched(self, info: ImageInfo) -> None:
        """Count an image that was asked for ahead: pulled, there already, or not to be had. Who joins a pull counts nothing."""
        if info.status == "failed":
            self._add("image_pull_failures")
        elif not info.joined:
            self._had_image(info.pull_seconds, info.done_bytes)

    def image_used(self, pull: ImagePull | None) -> None:
        """Count the image of a sandbox; None: it could not be had."""
        if pull is None:
            self._add("image_pull_failures")
        else:
            self._had_image(pull.seconds, pull.done_bytes)

    def _had_image(self, pull_seconds: float | None, done_bytes: int) -> None:
        if pull_seconds is None:
            self._add("image_cache_hits")
        else:
            self._add("image_pulls")
            self._add("image_pull_bytes", done_bytes)
            self._measure("image_pull", pull_seconds)

    def build_step(self, is_cached: bool) -> None:
        """Count a step of a build, which was made or was there."""
        self._add("build_steps_cached" if is_cached else "build_steps")

    def snapshot_taken(self) -> None:
        """Count one snapshot that was asked for and is there; those of forks are not asked for."""
        self._add("snapshots")

    def forked(self) -> None:
        """Count one child of a fork."""
        self._add("forks")

    def was_reset(self) -> None:
        """Count a sandbox that runs again after a reset."""
        self._add("resets")

    def retry(self) -> None:
        """Count one repeated request."""
        self._add("retries")

    def _add(self, name: str, by: int = 1) -> None:
        with _lock:
            self._has_news = True
            self._current.add(name, by)
            if self.reported:
                _totals.add(name, by)

    def _measure(self, what: Literal["startup", "image_pull"], seconds: float) -> None:
        with _lock:
            self._has_news = True
            (self._current.startups if what == "startup" else self._current.pulls).add(seconds)
            if self.reported:
                _totals.durations[what].add(seconds)
        if self.reported:
            _tell(what, seconds)

    @property
    def has_news(self) -> bool:
        """Whether anything was counted since the last `take()` that was logged."""
        return self._has_news

    def snapshot(self) -> Snapshot:
        """Return all metrics since the last reset. A rate, average, minimum or maximum of nothing is absent."""
        with _lock:
            counts = self._taken.merged(self._current)
        return Snapshot(counts, self._number, self._span)

    def take(self) -> Snapshot:
        """Return a snapshot, for `discard()` once it is logged.

        Nothing is reset by this: without it the same counts are in the next snapshot. Between two resets only the last that was
        taken counts, so logging is to be done by one thread at a time.
        """
        with _lock:
            counts = self._taken = self._taken.merged(self._current)
            self._current = Counts()
            self._has_news = False
            return Snapshot(counts, self._number, self._span)

    def log_failed(self) -> None:
        """What `take()` handed out was not logged."""
        with _lock:
            self._has_news = not (self._taken.is_empty and self._current.is_empty)

    def discard(self, snapshot: Snapshot) -> None:
        """Forget what `take()` handed out; what was counted since stays. Twice is fine."""
        with _lock:
            if snapshot._counts is self._taken:
                self._taken = Counts()
                self._span += 1

    def reset(self) -> None:
        """Forget everything."""
        with _lock:
            self._taken, self._current = Counts(), Counts()
            self._span += 1
            self._has_news = False


class ExecStats:
    """The counters of one sandbox, never reset; thread-safe."""

    def __init__(self) -> None:
        self._numbers: dict[Outcome, int] = {"ok": 0, "nonzero": 0, "error": 0, "cancelled": 0}

    def exec_ended(self, outcome: Outcome) -> None:
        """Count an exec by its class, before its ref resolves."""
        with _lock:
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
        with _lock:
            numbers = dict(self._numbers)
        executions = numbers["ok"] + numbers["nonzero"] + numbers["error"]
        return {total: executions, ok: numbers["ok"], nonzero: numbers["nonzero"], error: numbers["error"]}


# -- the process


def totals() -> Totals:
    """What all reported sessions of this process have counted since it began; a copy. Logging resets nothing of it."""
    with _lock:
        return _totals.copy()


def since_reset() -> dict[str, float | int]:
    """The metrics of all reported sessions that are still there, each since its last reset."""
    both = Counts()
    for metrics in list(_all):
        if metrics.reported:
            both = both.merged(metrics.snapshot()._counts)
    return as_metrics(both)


def listen(listener: Callable[[Duration, float], None]) -> None:
    """From now on tell how long each exec and each start of a reported session took, in seconds."""
    _listeners.append(listener)


def _tell(what: Duration, seconds: float) -> None:
    for listener in _listeners:
        try:
            listener(what, seconds)
        except Exception:
            logger.warning("a duration could not be exported", exc_info=True)


def _begin_in_child() -> None:
    """A forked child counts its own; a lock held at the fork by another thread has no holder here."""
    global _lock
    _lock = threading.Lock()
    for metrics in list(_all):
        metrics.reset()
    _totals.clear()


os.register_at_fork(after_in_child=_begin_in_child)
