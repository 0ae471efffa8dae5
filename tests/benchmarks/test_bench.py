"""`aviato bench`: every benchmark measures, says its floors, writes JSON and draws; the figures are not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bridge
import pytest
import targets
from rich.console import Console

from aviato.bench import BENCHMARKS, episodes, latency, memory, scaling, script, streams, throughput
from aviato.bench.floor import Floor
from aviato.bench.report import Report
from aviato.bench.run import Run as Measuring
from aviato.bench.series import Ratio
from aviato.bench.use import used
from tests.benchmarks.conftest import ROOT, Run
from tests.conftest import start_server

Measured = Callable[..., tuple[dict[str, Any], str]]


def test_episodes_say_ratios_to_the_plain_one(measured: Measured) -> None:
    found, said = measured("episodes", "--rounds", "2")
    assert {*episodes.KINDS, episodes.BESIDE} <= set(found["ratios"]) and found["problems"] == []
    assert all(kind in said for kind in episodes.KINDS)


def test_latency_says_ratios_to_floors(measured: Measured) -> None:
    found, said = measured("latency", "--rounds", "3")
    assert "floor: true: /bin/true" in said and "loop lag" in said
    alone = {f"  floor: aviato-init alone{how}" for how in ("", ", one more command")}
    assert set(found["ratios"]) == {latency.CREATE, latency.EXEC, latency.AWAIT, *alone}
    for name, quotient in found["ratios"].items():
        assert 0 < quotient["low"] <= quotient["value"] <= quotient["high"]
        assert len(found["figures"][name]["seconds"]) == 3
    meanwhile = found["figures"]["meanwhile"]
    assert meanwhile["floor_seconds"] > 0 and meanwhile["sandbox_seconds"] > 0
    assert meanwhile["client_seconds"] > 0 and meanwhile["server_seconds"] is not None and meanwhile["lag"]["p99"] >= 0


@pytest.mark.deep
def test_throughput_runs_the_same_batch_on_all_sides(measured: Measured) -> None:
    found, _ = measured("throughput", "--rounds", "1")
    ways = (throughput.SANDBOX, throughput.EVALUATE)
    assert all(found["figures"][name]["failed"] == 0 for name in ways)
    assert found["figures"][throughput.EVALUATE]["meanwhile"]["answers"]["p50"] > 0
    assert all(" -I -c " in argv for argv in map(" ".join, found["floors"].values())) and len(found["floors"]) == 3
    assert found["ratios"][throughput.BATCH] in [found["ratios"][f"{throughput.BATCH}, {name}"] for name in ways]


def test_streams_says_rates_beside_a_bare_pipe(measured: Measured) -> None:
    found, said = measured("streams")
    assert "floor: a bare pipe: sh -c" in said and "wait(num_returns=1)" in said
    assert found["values"][streams.STDOUT]["low"] > 0 and {"stdout, collected", "lines, for"} <= set(found["ratios"])


def test_files_says_rates_beside_bare_copies(measured: Measured) -> None:
    found, _ = measured("files")
    assert {"a pipe to a file", "cp", "cp -r"} == set(found["floors"])
    assert found["values"]["download, MB/s"] > 0 and found["values"]["upload of a tree, files/s"] > 0


@pytest.mark.deep
def test_concurrency_makes_every_level_in_every_way(measured: Measured) -> None:
    found, said = measured("concurrency", "--rounds", "2")
    ways = {name: figure for name, figure in found["figures"].items() if "walls" in figure}
    assert {"1 sequential, threads", "10 staggered, async", "10 burst, async, 2 processes"} <= set(ways)
    for name, figure in ways.items():
        assert len(figure["seconds"]) == 2 * int(name.split()[0]) and figure["failed"] == 0 and len(figure["bwrap_walls"]) == 2
        assert figure["meanwhile"]["client_seconds"] > 0 and figure["meanwhile"]["answers"]["p99"] > 0
    assert "server's answer" in said


@pytest.mark.deep
def test_concurrency_says_where_the_server_has_no_room(tmp_path: Path) -> None:
    server = start_server(tmp_path, max_sandboxes=4)
    try:
        command = [sys.executable, str(ROOT / "benchmarks" / "concurrency.py"), "--quick", "--base-url", server.url]
        done = subprocess.run([*command, "--json", str(tmp_path)], capture_output=True, text=True, check=False)
    finally:
        server.stop()
    assert done.returncode == 0 and "room for 4 sandboxes" in done.stdout, done.stdout + done.stderr
    figures = json.loads((tmp_path / "concurrency.json").read_text())["figures"]
    assert "1 burst, async" in figures and not any(name.startswith("10 ") for name in figures)


def test_scaling_compares_the_last_third_with_the_first(measured: Measured) -> None:
    found, _ = measured("scaling")
    assert {scaling.CREATE, scaling.EXEC, scaling.BWRAP, scaling.ALONE} == set(found["ratios"])
    assert [stage["live"] for stage in found["figures"]["stages"]] == [10, 20]
    assert all(len(stage["create_seconds"]) == 10 and stage["exec_seconds"] for stage in found["figures"]["stages"])


@pytest.mark.deep
def test_memory_counts_the_server_and_all_below_it(measured: Measured) -> None:
    found, _ = measured("memory")
    assert found["values"][memory.FAILED] == 0 and found["ratios"][memory.RATE]["value"] > 0
    if os.getuid() == 0:
        first, last = (stage["server_bytes"] for stage in found["figures"]["stages"])
        assert found["figures"]["empty_bytes"] < first < last
        assert found["values"][memory.EACH] == last / 20 / 2**20


@pytest.mark.deep
def test_rounds_of_growth_are_added_up(measured: Measured) -> None:
    found, _ = measured("scaling", "--rounds", "2")
    assert all(len(stage["create_seconds"]) == 20 for stage in found["figures"]["stages"])
    assert len(found["figures"]["stop"]["seconds"]) == 40


def test_bridge_has_every_way_to_a_result(measured: Measured) -> None:
    found, said = measured("bridge")
    assert {bridge.RESULT, bridge.AWAIT_HANDLE, bridge.CLIENT} <= set(found["ratios"])
    assert all(found["figures"][name]["client_cpu_seconds"] for name in (bridge.RESULT, bridge.CLIENT))
    assert "a bare hop" in said


def test_the_table_of_targets_says_what_was_measured_and_what_not() -> None:
    report = Report("latency", ratios={latency.CREATE: Ratio(1.9, 1.8, 2.0), latency.EXEC: Ratio(2.4, 2.3, 2.5)})
    others = Report("peers", ratios={"beside other, its best work: exec": Ratio(3.2, 3.0, 3.4)})
    rows = {row[0]: row for row in targets.table({"latency": report, "peers": others}).rows}
    assert rows[latency.CREATE][1:3] == ["1.90 (1.80–2.00)", "≤ 2"] and rows[latency.CREATE][-1] == "met"
    assert rows[latency.EXEC][-1] == "beyond stretch" and rows[latency.AWAIT][-1] == "not measured"
    assert rows["beside other, its best work: exec"][-1] == "beyond stretch"
    assert len(rows) == len(targets.TARGETS) + 1
    for without in ({}, {"peers": Report("peers")}):
        assert targets.table(without).rows[-1][-1] == "not measured"


def test_the_table_of_targets_says_what_others_had_and_what_failed() -> None:
    used = {"others_seconds": 2.5, "wall_seconds": 10.0}
    report = Report("latency", ratios={latency.CREATE: Ratio(1.9, 1.8, 2.0)}, figures={"meanwhile": used})
    rows = {row[0]: row for row in targets.table({"latency": report}, ["streams", "peers"]).rows}
    assert rows[latency.CREATE][-2:] == ["25%", "met"] and rows["stdout of 1 GiB"][-1] == "failed"
    assert rows["against every isolating peer"][-1] == "failed"
    assert targets.notes({"latency": report}) == [
        "others had more than 20% of a processor during latency: measure again when less else runs"
    ]
    used["others_seconds"] = 1.0
    assert targets.notes({"latency": report}) == []


def test_one_part_that_breaks_does_not_lose_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report("latency", ratios={latency.CREATE: Ratio(1.9, 1.8, 2.0)})

    def perform(module: Any, *_: Any) -> Report:
        if module is memory:
            raise ValueError("filedescriptor out of range in select()")
        return report

    monkeypatch.setattr(script, "perform", perform)
    monkeypatch.setattr(script, "console", Console(width=200))
    chosen = {"memory": memory, "latency": latency}
    found = script.several(chosen, base_url=None, rounds=None, quick=True, folder=None)
    assert script.status(*found) == 1 and found[0] == {"latency": report}
    said, wrong = capsys.readouterr()
    assert said.count("filedescriptor out of range") == 2 and "Traceback" in wrong


def test_figures_that_cannot_be_written_are_in_the_table_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    report = script.publish(Report("latency", values={"figure": 1.0}), tmp_path / "file" / "below")
    assert report.values and "could not be written" in report.problems[0]


def test_the_processor_time_of_floors_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import time\nwhile time.process_time() < 0.4: pass"
    monkeypatch.setattr(Measuring, "server_pid", lambda run: None)
    with Floor([sys.executable, "-I", "-S", "-c", program]) as alive, used(Measuring({}), facade=False) as use:
        alive()
    assert use.floor_seconds >= 0.39 and use.client_seconds < 0.3
    with used(Measuring({}), facade=False) as use, Floor([sys.executable, "-I", "-S", "-c", program]) as ended:
        ended()
    assert use.floor_seconds >= 0.39 and use.client_seconds < 0.3


@pytest.mark.deep
@pytest.mark.slow
def test_one_command_prints_all_targets(checkouts: Callable[[str], Run], tmp_path: Path) -> None:
    done = checkouts("targets")("--quick", "--json", str(tmp_path), timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout[done.stdout.rindex("targets") :]
    assert all(target.name in said for target in targets.TARGETS)
    assert "beside" in said or "of a processor during" in said, said


@pytest.mark.deep
def test_every_benchmark_is_a_script_too() -> None:
    for name in {*BENCHMARKS, "bridge"}:
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and "--rounds" in done.stdout and "--base-url" in done.stdout, done.stderr


@pytest.mark.deep
def test_a_script_writes_where_it_is_told(server: Any, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "latency.py"), "--rounds", "2", "--starts", "1", "--json", str(path)]
    environment = {**os.environ, "AVIATO_BASE_URL": server.url}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(path.read_text())["values"] and path.with_suffix(".png").exists()


def test_a_benchmark_that_fails_does_not_keep_others_from_being_measured(
    checkouts: Callable[[str], Run], tmp_path: Path
) -> None:
    done = checkouts("targets")("--base-url", f"unix://{tmp_path}/nobody", "--quick", "--json", str(tmp_path))
    assert done.returncode == 1 and "failed: latency: SandboxUnavailableError" in done.stdout, done.stdout + done.stderr
    assert "failed: streams" in done.stdout
    said = done.stdout[done.stdout.rindex("targets") :]
    assert said.count("failed │") >= len(targets.TARGETS) and "failed: streams: SandboxUnavailableError" in said


def test_a_name_that_is_none(bench: Run) -> None:
    done = bench("speed")
    assert done.returncode == 2 and "there is no benchmark 'speed'; there are memory" in done.stderr
    assert set(BENCHMARKS) <= {line.split()[0] for line in bench("--list").stdout.splitlines()}
