"""What exporters show of this process: numbers that only grow, and what holds since the last reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.policy.counts import PREFIX
from aviato.policy.metrics import since_reset

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTCOMES = ("ok", "nonzero", "error")
EXECUTIONS = ("executions", "commands that have ended, by class: returncode 0, any other, or none")
COUNTERS = {
    "exec_cancelled": ("cancelled", "commands that the caller cancelled, counted in no other class"),
    "exec_timeouts": ("exec_timeouts", "commands that were killed at their timeout"),
    "infrastructure_errors": ("infrastructure_errors", "commands that failed by no fault of what ran inside"),
    "output_truncations": ("output_truncations", "commands of whose output some was left out"),
    "retries": ("retries", "requests that were repeated"),
    "sandboxes_created": ("sandboxes_created", "sandboxes that sessions made"),
    "image_pulls": ("image_pulls", "images that had to come, for a sandbox or ahead"),
    "image_pull_bytes": ("image_pull_bytes", "bytes that were downloaded for them"),
    "image_cache_hits": ("image_cache_hits", "images of sandboxes, or asked for ahead, that were there"),
    "image_pull_failures": ("image_pull_failures", "images that could not be had"),
    "build_steps": ("build_steps", "steps of built images that were made"),
    "build_steps_cached": ("build_steps_cached", "steps of built images that were there"),
    "snapshots": ("snapshots", "snapshots that were taken, those of forks left out"),
    "forks": ("forks", "children of forks"),
    "resets": ("resets", "sandboxes that ran again after a reset"),
    "pool_claims": ("pool_claims", "sandboxes that were ready in a pool"),
    "pool_misses": ("pool_misses", "sandboxes of pools that started as any other, since none was ready"),
}
"""Name → what it is counted under, and what it means."""
DURATIONS = {
    "exec": "how long commands ran, in seconds",
    "startup": "from the request until a sandbox ran, queue included, in seconds",
    "image_pull": "how long images took that had to come, in seconds",
}
GAUGES = {
    f"{what}_execs_per_sandbox": f"{text} number of commands in a sandbox; living sessions, since their last reset"
    for what, text in (("avg", "mean"), ("min", "smallest"), ("max", "largest"))
}


def gauges() -> Iterator[tuple[str, float]]:
    """Those that have a value now."""
    metrics = since_reset()
    for name in GAUGES:
        if PREFIX + name in metrics:
            yield name, metrics[PREFIX + name]
