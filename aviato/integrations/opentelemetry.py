"""The metrics of all sessions of this process as OpenTelemetry instruments, by the extra `otel`."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

from aviato.integrations import missing
from aviato.integrations.exported import COUNTERS, DURATIONS, EXECUTIONS, GAUGES, OUTCOMES, gauges
from aviato.policy.metrics import listen, totals
from aviato.policy.totals import BOUNDS_SECONDS

try:
    from opentelemetry.metrics import Observation, get_meter_provider
except ImportError as error:
    raise missing("opentelemetry", "otel", error) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.metrics import CallbackOptions, MeterProvider

_instrumented: weakref.WeakSet[MeterProvider] = weakref.WeakSet()


def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Make the instruments, in the meter `aviato`; twice is fine.

    Counters begin with the process and never fall: logging to W&B resets none of them. Durations are recorded from now on.
    Sessions with `report_to=[]` are left out. A forked child begins at zero.

    Args:
        meter_provider: where; None is the global one, which may be set later.
    """
    provider = meter_provider if meter_provider is not None else get_meter_provider()
    if provider in _instrumented:
        return
    _instrumented.add(provider)
    meter = provider.get_meter("aviato")
    name, text = EXECUTIONS
    meter.create_observable_counter(f"aviato.{name}", [_executions], description=text)
    for name, (key, text) in COUNTERS.items():
        meter.create_observable_counter(f"aviato.{name}", [partial(_number, key)], description=text)
    for name, text in GAUGES.items():
        meter.create_observable_gauge(f"aviato.{name}", [partial(_gauge, name)], description=text)
    histograms = {
        name: meter.create_histogram(
            f"aviato.{name}.duration", unit="s", description=text, explicit_bucket_boundaries_advisory=BOUNDS_SECONDS
        )
        for name, text in DURATIONS.items()
    }
    listen(lambda what, seconds: histograms[what].record(seconds))


def _executions(options: CallbackOptions) -> Iterator[Observation]:
    now = totals()
    for outcome in OUTCOMES:
        yield Observation(now.numbers.get(outcome, 0), {"outcome": outcome})


def _number(key: str, options: CallbackOptions) -> Iterator[Observation]:
    yield Observation(totals().numbers.get(key, 0))


def _gauge(wanted: str, options: CallbackOptions) -> Iterator[Observation]:
    for name, value in gauges():
        if name == wanted:
            yield Observation(value)
