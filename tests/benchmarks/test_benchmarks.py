"""The benchmarks run, print and write what they say; their figures are not tested."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MBPP = ROOT.parent / "shared" / "data" / "mbpp.jsonl"
PROBLEMS = [
    {"task_id": 1, "code": "def double(n):\r\n    return 2 * n", "test_setup_code": "", "test_list": ["assert double(2) == 4"]},
    {"task_id": 2, "code": "def half(n):\r\n    return n // 3", "test_setup_code": "", "test_list": ["assert half(8) == 4"]},
    {"task_id": 3, "code": "broken(", "test_setup_code": "import math", "test_list": []},
]


def run(server: Any, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AVIATO_BASE_URL": server.url, "COLUMNS": "160"}
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


def test_mbpp_compares_every_verdict(server: Any, tmp_path: Path) -> None:
    data, result = tmp_path / "problems.jsonl", tmp_path / "result.json"
    data.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    done = run(server, "mbpp.py", "--data", str(data), "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("verdicts that differ: none") == 2
    found = json.loads(result.read_text())
    references, variants = found["references"], found["broken variants"]
    assert references["kinds"]["evaluate()"] == references["kinds"]["bare subprocesses"]
    assert references["kinds"]["evaluate()"] == {"1": "pass", "2": "assertion", "3": "exception"}
    assert variants["kinds"]["evaluate()"] == variants["kinds"]["bare subprocesses"]
    assert variants["kinds"]["evaluate()"]["1"] == "assertion" and "3" not in variants["kinds"]["evaluate()"]


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.skipif(not MBPP.exists(), reason="MBPP is not on this machine (../shared/data)")
def test_the_first_40_problems_of_mbpp_agree_with_the_bare_run(server: Any, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = run(server, "mbpp.py", "--data", str(MBPP), "--limit", "40", "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())
    assert set(found["references"]["kinds"]["evaluate()"].values()) == {"pass"}
    assert found["references"]["different"] == found["broken variants"]["different"] == []


def test_carriers_prints_ratios_to_the_unix_socket(server: Any, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = run(server, "carriers.py", "--rounds", "1", "--commands", "5", "--megabytes", "2", "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(result.read_text())["figures"]
    assert list(figures) == ["Unix socket", "TCP", "TLS"]
    assert all(len(row) == 1 and row[0] > 0 for of in figures.values() for row in of.values())
    assert done.stdout.count("1.00 ×") >= 3


@pytest.mark.deep
def test_overload_prints_ratios_to_the_peak_and_every_request_comes_to_an_end(server: Any, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    sizes = ("--rounds", "1", "--seconds", "0.3", "--capacity", "4", "--processes", "2")
    done = run(server, "overload.py", *sizes, "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())
    assert len(found["figures"]) == 8 and found["peak_per_second"] > 0
    for figure in found["figures"].values():
        assert figure["ends"].pop("ok") > 0
        assert set(figure["ends"]) <= {"SandboxResourceExhaustedError"}


@pytest.mark.deep
def test_metrics_measures_what_counting_adds(server: Any, tmp_path: Path) -> None:
    for package in ("wandb", "prometheus_client", "opentelemetry.sdk"):
        pytest.importorskip(package)
    result = tmp_path / "result.json"
    done = run(server, "metrics.py", "--rounds", "120", "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(result.read_text())["figures"]
    assert figures["counting"] > 0
    assert len(figures["W&B"]["counted"]) == len(figures["W&B"]["bare"]) == 120
    assert len(figures["log_metrics"]) == 2


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("busybox") is None, reason="no busybox to make images of")
def test_images_cost_ratios_to_host_and_to_curl(server: Any, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = run(server, "images.py", "--rounds", "1", "--megabytes", "2", "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"host", "an image of 40 layers"} <= json.loads(result.read_text())["figures"].keys()


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_prepared_measures_on_a_server_of_its_own_and_on_another(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "prepared.py"), "--rounds", "1", "--children", "2"]
    monkeypatch.delenv("AVIATO_BASE_URL", raising=False)
    for variables in ({}, {"AVIATO_BASE_URL": server.url}):
        result = tmp_path / "result.json"
        environment = {**os.environ, "COLUMNS": "160", **variables}
        done = subprocess.run(
            [*command, "--json", str(result)], env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        figures = json.loads(result.read_text())["figures"]
        assert {"create", "reset", "claim of one that is ready", "fork(2) of a file of 1 kB"} <= figures.keys()
        assert any(name.startswith("disk") for name in figures) is not bool(variables)


@pytest.mark.deep
def test_the_filter_s_cost_is_a_ratio(server: Any, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    done = run(server, "filter.py", "--rounds", "2", "--json", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads(result.read_text())["figures"]) == 3 and "with / without" in done.stdout
