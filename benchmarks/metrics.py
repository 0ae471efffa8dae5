"""What counting and reporting add to an exec.

    python benchmarks/metrics.py [--rounds N] [--json PATH]

Two ways: what the counting takes in a loop; and the same command in the same sandbox, counted or not, in alternation, by
the CPU time of the whole client, which other work on the machine hardly moves; the difference of medians has a bootstrap 90 %
interval. A real W&B run (offline) is active; Prometheus and OpenTelemetry come in the second half.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

import wandb
from common import TRUE_ARGV, Series, alternate, console, describe_machine, table, timed
from common import write_json as save
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import aviato
from aviato.integrations import opentelemetry as otel
from aviato.integrations import prometheus
from aviato.policy.metrics import ExecStats, Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

EXECS_A_STEP = 100


def counting(repeats: int = 100_000) -> float:
    """Seconds that counting one exec takes, in the session and in its sandbox."""
    metrics, stats = Metrics(), ExecStats()
    names = [f"sb-{number}" for number in range(64)]
    begin = time.perf_counter()
    for number in range(repeats):
        stats.exec_ended("ok")
        metrics.exec_ended(names[number % 64], "ok", 0.001)
    return (time.perf_counter() - begin) / repeats


def cpu_seconds(action: Callable[[], object]) -> float:
    """What a call costs this process, all its threads together."""
    begin = time.process_time()
    action()
    return time.process_time() - begin


def difference(counted: Series, bare: Series, samples: int = 2_000) -> tuple[float, float, float]:
    """Of the medians, in seconds, with its interval."""
    pick = random.Random(0)
    draws = sorted(
        statistics.median(pick.choices(counted.seconds, k=len(counted.seconds)))
        - statistics.median(pick.choices(bare.seconds, k=len(bare.seconds)))
        for _ in range(samples)
    )
    return counted.median - bare.median, draws[samples // 20], draws[-samples // 20]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--json", default=None, help="where to write the figures (default: benchmarks/results/metrics.json)")
    arguments = parser.parse_args()
    describe_machine()
    figures: dict[str, Any] = {"counting": counting()}
    logging = Series("log_metrics")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, aviato.Session() as session:
        os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_DIR=folder, WANDB_ERROR_REPORTING="false")
        run = wandb.init(project="benchmark")
        sandbox = session.sandbox().wait()
        counters = sandbox._state.metrics
        done = [0]

        def log() -> None:
            assert session.log_metrics(step=done[0] // EXECS_A_STEP)

        def execute(metrics: Metrics | None) -> float:
            sandbox._state.metrics = metrics
            return cpu_seconds(lambda: sandbox.exec(TRUE_ARGV).result())

        def counted() -> float:
            seconds = execute(counters)
            done[0] += 1
            if done[0] % EXECS_A_STEP == 0:
                logging.seconds.append(timed(log)())
            return seconds

        def compare(name: str) -> None:
            pair = Series(f"{name}: counted"), Series(f"{name}: not counted")
            alternate(arguments.rounds, (pair[0], counted), (pair[1], lambda: execute(None)))
            figures[name] = {"counted": pair[0].seconds, "bare": pair[1].seconds, "difference": difference(*pair)}

        compare("W&B")
        otel.instrument(MeterProvider([InMemoryMetricReader()]))
        prometheus.register()
        figures["counting, exported"] = counting()
        compare("W&B, OpenTelemetry and Prometheus")
        sandbox._state.metrics = counters
        run.finish()
    figures["log_metrics"] = logging.seconds
    rows = [
        ["counting, in a loop", f"{figures['counting'] * 1e6:.1f}"],
        ["the same with OpenTelemetry and Prometheus", f"{figures['counting, exported'] * 1e6:.1f}"],
    ]
    for name in ("W&B", "W&B, OpenTelemetry and Prometheus"):
        more, low, high = (seconds * 1e6 for seconds in figures[name]["difference"])
        rows.append([f"added to an exec: {name}", f"{more:.0f} ({low:.0f} to {high:.0f})"])
    if logging.seconds:
        rows.append(["log_metrics, a row of a W&B run", f"{logging.median * 1e6:.0f}"])
    table("metrics", ["", "µs"], rows)
    console.print("written to", str(save("metrics", {"argv": TRUE_ARGV, "figures": figures}, arguments.json)))


if __name__ == "__main__":
    main()
