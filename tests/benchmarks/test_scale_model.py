"""What `benchmarks/scale_model.py` says of many sandboxes is what some take here. Bytes, files and requests; no clock."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script of the benchmarks, which import one another by their names."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(BENCHMARKS):
            del sys.modules[name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads what process 1s hold")
@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.deep)])
def test_a_run_takes_what_the_model_says(load: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, run = load("scale_model"), load("scale_run")
    monkeypatch.delenv("AVIATO_BASE_URL", raising=False)
    said = model.predict(model.Need(sandboxes=count, command_bytes=0.0, node_bytes=1e15))
    seen = run.measure(count)
    assert seen.bytes == pytest.approx(said.bytes, rel=model.TOLERANCE)
    assert seen.bytes - seen.server_bytes == pytest.approx(count * model.SANDBOX_BYTES.value, rel=model.TOLERANCE)
    assert seen.processes == count * model.SANDBOX_PROCESSES.value
    assert abs(seen.descriptors - said.descriptors_each) <= 5
    assert 3 * count <= seen.requests + count <= said.server_requests
    assert seen.disk_bytes <= said.disk_bytes * (1 + model.TOLERANCE)
    assert seen.disk_files >= count * model.SANDBOX_FILES.value


def test_ten_thousand(load: Any) -> None:
    model = load("scale_model")
    dense = model.predict(model.Need())
    each = model.predict(model.Need(pods_a_node=0))
    assert dense.each_node * dense.nodes >= 10_000 and dense.pods == dense.nodes
    assert (each.pods, each.nodes, each.each_node) == (10_000, 91, 110)
    assert each.api_requests == 1000 * dense.api_requests
    assert dense.overhead_bytes * 10 < each.overhead_bytes
    more = model.predict(model.Need(pods_a_node=4))
    assert more.pods == 4 * more.nodes and more.start_seconds < dense.start_seconds
    with pytest.raises(ValueError, match="holds no sandbox"):
        model.predict(model.Need(node_bytes=2**20))


def test_the_guide_has_its_figures(load: Any) -> None:
    model = load("scale_model")
    dense, each = model.predict(model.Need(pods_a_node=4)), model.predict(model.Need(pods_a_node=0))
    page = (Path(BENCHMARKS).parent / "docs" / "guides" / "kubernetes.md").read_text()
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:4]]
        for line in page.splitlines()
        if len(cells := line.split("|")) == 5
    }
    assert rows["nodes"] == [f"{dense.nodes}", f"{each.nodes} (110 pods a node)"]
    assert rows["pods"] == [f"{dense.pods}", f"{each.pods:,}"]
    overhead = next(cells for name, cells in rows.items() if name.startswith("memory beside"))
    assert overhead == [model.shown("overhead_bytes", way.overhead_bytes) for way in (dense, each)]
    requests = next(cells for name, cells in rows.items() if name.startswith("requests to the cluster"))
    assert requests == [model.shown("api_requests", way.api_requests) for way in (dense, each)]
    seconds = next(cells for name, cells in rows.items() if name.startswith("seconds until"))
    assert seconds[0] == model.shown("start_seconds", dense.start_seconds)
    assert seconds[1].startswith(f"{model.shown('start_seconds', each.start_seconds)},")
