"""The metrics of all sessions of this process for Prometheus, by the extra `prometheus`."""

from __future__ import annotations

import weakref
from itertools import accumulate
from typing import TYPE_CHECKING

from aviato.integrations import missing
from aviato.integrations.exported import COUNTERS, DURATIONS, EXECUTIONS, GAUGES, OUTCOMES, gauges
from aviato.policy.metrics import totals
from aviato.policy.totals import BOUNDS_SECONDS

try:
    from prometheus_client import REGISTRY
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing("prometheus_client", "prometheus", error) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

_registered: weakref.WeakSet[CollectorRegistry] = weakref.WeakSet()


def register(registry: CollectorRegistry = REGISTRY) -> None:
    """Show the metrics of this process in a registry, from which `prometheus_client` serves them; twice is fine.

    Counters begin with the process and never fall: logging to W&B resets none of them. Sessions with `report_to=[]` are left
    out. A forked child begins at zero.

    Args:
        registry: where; the default one of `prometheus_client`.
    """
    if registry not in _registered:
        registry.register(_Sessions())
        _registered.add(registry)


class _Sessions(Collector):
    def collect(self) -> Iterator[Metric]:
        now = totals()
        name, text = EXECUTIONS
        executions = CounterMetricFamily(f"aviato_{name}", text, labels=["outcome"])
        for outcome in OUTCOMES:
            executions.add_metric([outcome], now.numbers.get(outcome, 0))
        yield executions
        for name, (key, text) in COUNTERS.items():
            yield CounterMetricFamily(f"aviato_{name}", text, value=now.numbers.get(key, 0))
        for name, text in DURATIONS.items():
            buckets = now.durations[name]
            bounds = [*map(str, BOUNDS_SECONDS), "+Inf"]
            counts = list(zip(bounds, accumulate(buckets.counts), strict=True))
            yield HistogramMetricFamily(f"aviato_{name}_seconds", text, buckets=counts, sum_value=buckets.total)
        for name, value in gauges():
            yield GaugeMetricFamily(f"aviato_{name}", GAUGES[name], value=value)
