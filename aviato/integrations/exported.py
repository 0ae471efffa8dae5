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
}
"""Name → what it is counted under, and what it means."""
DURATIONS = {
    "exec": "how long commands ran, in seconds",
    "startup": "from the request until a sandbox ran, queue included, in seconds",
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
