"""What exporters show of this process: numbers that only grow, and what holds since the last reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.policy.counts import ALWAYS, IF_ANY, PREFIX
from aviato.policy.metrics import since_reset

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTCOMES = ("ok", "nonzero", "error")
EXECUTIONS = ("executions", "commands that have ended, by class: returncode 0, any other, or none")
COUNTERS = {
    "exec_cancelled": ("cancelled", "commands that the caller cancelled, counted in no other class"),
    **{name: (name, meant) for name, meant in (ALWAYS | IF_ANY).items()},
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
