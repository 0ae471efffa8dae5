"""The same numbers for Prometheus and OpenTelemetry, through their own clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato.policy import metrics
from tests.images.whole_images import make_layout, tar_of

COUNTED = {
    "executions ok": 3,
    "executions nonzero": 2,
    "executions error": 1,
    "exec_cancelled": 1,
    "exec_timeouts": 1,
    "infrastructure_errors": 0,
    "output_truncations": 1,
    "retries": 0,
    "sandboxes_created": 3,
    "image_pulls": 1,
    "image_cache_hits": 0,
    "image_pull_failures": 1,
    "build_steps": 0,
    "build_steps_cached": 0,
    "snapshots": 1,
    "forks": 1,
    "resets": 1,
    "pool_claims": 0,
    "pool_misses": 0,
    "exec count": 6,
    "startup count": 3,
    "image_pull count": 1,
    "avg_execs_per_sandbox": 3,
    "min_execs_per_sandbox": 1,
    "max_execs_per_sandbox": 5,
}


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which no other test has counted anything."""
    monkeypatch.setattr(metrics, "_totals", type(metrics._totals)())
    monkeypatch.setattr(metrics, "_all", type(metrics._all)())
    monkeypatch.setattr(metrics, "_listeners", [])


@pytest.fixture
def worked(fresh: None, server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[aviato.Session]:
    """A session with a `work()` that does what `COUNTED` says, for when the exporter is there."""
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    layout = f"oci:{make_layout(tmp_path / 'image', [tar_of({'of': str(tmp_path).encode()})], {})}"
    with aviato.Session() as session, aviato.Session(report_to=[]) as silent:

        def work() -> None:
            first, second = session.sandbox(), session.sandbox()
            commands = [first.exec(["sh", "-c", f"exit {n % 2}"]) for n in range(4)]
            aviato.results([*commands, second.exec(["echo", "long"], max_output_bytes=2), silent.sandbox().exec(["true"])])
            with pytest.raises(aviato.SandboxCommandTimeoutError):
                first.exec(["sleep", "60"], timeout_seconds=0.2).result()
            cancelled = second.exec(["sleep", "60"])
            cancelled.cancel()
            assert isinstance(cancelled.exception(), aviato.OperationCancelledError)
            taken = second.snapshot().result()
            second.fork()[0].wait()
            second.reset().result()
            session.prefetch(["oci:/none", layout]).result()
            aviato.Sandbox.delete_snapshot(taken.snapshot_id).result()

        session.work = work  # type: ignore[attr-defined]
        yield session


def test_prometheus(worked: Any) -> None:
    client = pytest.importorskip("prometheus_client")
    from aviato.integrations import prometheus

    registry = client.CollectorRegistry()
    for _ in range(2):
        prometheus.register(registry)
    worked.work()
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            name = sample.name.removeprefix("aviato_").removesuffix("_total")
            name = name.replace("_seconds_", " ")
            if "le" not in sample.labels and not name.endswith((" sum", "created ")):
                found[" ".join([name, *sample.labels.values()])] = sample.value
    assert found.pop("image_pull_bytes") > 0 and found == COUNTED
    text = client.generate_latest(registry).decode()
    assert 'aviato_exec_seconds_bucket{le="300.0"} 6.0' in text
    assert 'aviato_exec_seconds_bucket{le="0.1"} 5.0' in text or 'aviato_exec_seconds_bucket{le="0.25"} 6.0' in text
    worked._metrics.reset()
    assert registry.get_sample_value("aviato_executions_total", {"outcome": "ok"}) == 3
    assert registry.get_sample_value("aviato_avg_execs_per_sandbox") is None


def test_opentelemetry(worked: Any) -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from aviato.integrations import opentelemetry

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    for _ in range(2):
        opentelemetry.instrument(provider)
    worked.work()
    data: Any = reader.get_metrics_data()
    found, bounds = {}, set()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            name = " ".join([metric.name.removeprefix("aviato."), *point.attributes.values()])
            if hasattr(point, "count"):
                found[name.replace(".duration", " count")] = point.count
                bounds.add(point.explicit_bounds[0])
            else:
                found[name] = point.value
    provider.shutdown()
    assert found.pop("image_pull_bytes") > 0 and found == COUNTED
    assert bounds == {0.005}


def test_an_exporter_that_fails_disturbs_no_command(worked: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(what: str, seconds: float) -> None:
        raise RuntimeError("collector gone")

    metrics.listen(broken)
    assert worked.sandbox().exec(["true"]).result().returncode == 0
    assert "collector gone" in caplog.text
