"""`aviato bench`: every benchmark measures, says its floors, writes JSON and draws; the figures are not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aviato.bench import BENCHMARKS, latency, streams, throughput
from tests.benchmarks.conftest import ROOT, Run

Measured = Callable[..., tuple[dict[str, Any], str]]

pytestmark = pytest.mark.timeout(120)


def test_latency_says_ratios_to_floors(measured: Measured) -> None:
    found, said = measured("latency", "--rounds", "3")
    assert "floor: true: /bin/true" in said and "loop lag" in said
    assert set(found["ratios"]) == {latency.CREATE, latency.EXEC, latency.AWAIT}
    for name, quotient in found["ratios"].items():
        assert 0 < quotient["low"] <= quotient["value"] <= quotient["high"]
        assert len(found["figures"][name]["seconds"]) == 3
    meanwhile = found["figures"]["meanwhile"]
    assert meanwhile["client_seconds"] > 0 and meanwhile["server_seconds"] is not None and meanwhile["lag"]["p99"] >= 0


def test_throughput_runs_the_same_batch_on_all_sides(measured: Measured) -> None:
    found, _ = measured("throughput", "--rounds", "1")
    ways = (throughput.SANDBOX, throughput.EVALUATE)
    assert all(found["figures"][name]["failed"] == 0 for name in ways)
    assert found["figures"][throughput.EVALUATE]["meanwhile"]["answers"]["p50"] > 0
    assert all(" -I -c " in argv for argv in map(" ".join, found["floors"].values())) and len(found["floors"]) == 2
    assert found["ratios"][throughput.BATCH] in [found["ratios"][f"{throughput.BATCH}, {name}"] for name in ways]


def test_streams_says_rates_beside_a_bare_pipe(measured: Measured) -> None:
    found, said = measured("streams")
    assert "floor: a bare pipe: sh -c" in said and "wait(num_returns=1)" in said
    assert found["values"][streams.STDOUT] > 0 and {"stdout, collected", "lines, for"} <= set(found["ratios"])


def test_files_says_rates_beside_bare_copies(measured: Measured) -> None:
    found, _ = measured("files")
    assert {"a pipe to a file", "cp", "cp -r"} == set(found["floors"])
    assert found["values"]["download, MB/s"] > 0 and found["values"]["upload of a tree, files/s"] > 0


def test_every_benchmark_is_a_script_too() -> None:
    for name in BENCHMARKS:
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and "--rounds" in done.stdout and "--base-url" in done.stdout, done.stderr


def test_a_script_writes_where_it_is_told(server: Any, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "latency.py"), "--rounds", "2", "--starts", "1", "--json", str(path)]
    environment = {**os.environ, "AVIATO_BASE_URL": server.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(path.read_text())["values"] and path.with_suffix(".png").exists()


def test_a_name_that_is_none(bench: Run) -> None:
    done = bench("speed")
    assert done.returncode == 2 and "there is no benchmark 'speed'; there are latency" in done.stderr
    assert set(BENCHMARKS) <= {line.split()[0] for line in bench("--list").stdout.splitlines()}
