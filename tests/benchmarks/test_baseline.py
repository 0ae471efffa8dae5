"""The comparison with recorded ratios: a slow-down of 30 % is found, and where nothing has changed nothing is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import baseline
import pytest
from baseline import Figure, machine_class

from aviato.bench import latency
from aviato.bench.machine import machine
from aviato.bench.series import interval
from tests.benchmarks.conftest import Run

RECORDED = 3.0


def rounds(ratio: float, spread: float, seed: int, count: int = baseline.MIN_ROUNDS) -> list[float]:
    pick = random.Random(seed)
    return [ratio * pick.uniform(1 - spread, 1 + spread) for _ in range(count)]


@pytest.mark.parametrize("seed", range(50))
def test_what_is_a_third_slower_is_red_and_what_is_not_is_green(seed: int) -> None:
    assert Figure("exec", rounds(1.3 * RECORDED, 0.06, seed), RECORDED).red
    assert not Figure("exec", rounds(1.1 * RECORDED, 0.15, seed), RECORDED).red


def test_the_lower_end_of_the_interval_decides() -> None:
    values = [2.0, 2.0, 3.0, 5.0, 5.0, 5.0, 5.0]
    assert interval(values).value == 5.0 and interval(values).low <= 3.0
    assert not Figure("exec", values, RECORDED).red and not Figure("exec", values, RECORDED).decided
    assert Figure("exec", [5.0] * 7, RECORDED).red and Figure("exec", [2.0] * 7, RECORDED).decided


def test_what_disturbs_for_some_rounds_is_not_red() -> None:
    disturbed = [5.0] * 7
    assert not Figure("exec", disturbed, RECORDED).decided
    assert Figure("exec", disturbed * 3, RECORDED).decided and Figure("exec", disturbed * 3, RECORDED).red
    assert not Figure("exec", disturbed + [3.0] * 8, RECORDED).red


def test_a_busy_wait_lengthens_a_case_by_its_part() -> None:
    assert 0.0129 < baseline.slowed(lambda: 0.01, 0.3)() < 0.1


def test_what_is_recorded_is_what_is_measured() -> None:
    for figures in baseline.read().values():
        assert set(figures) == {latency.EXEC, latency.AWAIT, latency.CREATE} and min(figures.values()) > 1


@pytest.mark.deep
@pytest.mark.slow
def test_the_command_records_compares_and_turns_red(checkouts: Callable[[str], Run], tmp_path: Path) -> None:
    """How much else runs is not this test's matter: every round counts."""
    bench = checkouts("baseline")
    path = tmp_path / "baseline.json"
    every = ("--baseline", str(path), "--busy", "1", "--rounds", "7", "--patience", "30")
    assert bench(*every).returncode == 2
    done = bench("--record", *every)
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = json.loads(path.read_text())[machine_class(machine())]
    assert {latency.EXEC, latency.AWAIT} <= set(recorded)
    done = bench("--slow-down", "3", *every)
    assert done.returncode == 1 and "red" in done.stdout
    path.write_text(json.dumps({machine_class(machine()): {name: value * 3 for name, value in recorded.items()}}))
    assert bench(*every).returncode == 0
    path.write_text(json.dumps({machine_class(machine()): {name: value / 3 for name, value in recorded.items()}}))
    done = bench(*every)
    assert done.returncode == 1 and "red" in done.stdout


def test_a_machine_that_is_never_quiet_decides_nothing(checkouts: Callable[[str], Run], tmp_path: Path) -> None:
    bench = checkouts("baseline")
    path = tmp_path / "baseline.json"
    done = bench("--record", "--baseline", str(path), "--busy", "0", "--patience", "1")
    assert done.returncode == 2 and "undecided" in done.stdout and not path.exists()


@pytest.mark.long
@pytest.mark.timeout(2_400)
def test_ten_clean_runs_stay_green_and_a_slow_down_of_30_percent_turns_red(
    checkouts: Callable[[str], Run], tmp_path: Path
) -> None:
    """On this machine, now: where it does not get quiet there is nothing to be seen."""
    bench = checkouts("baseline")
    path = tmp_path / "baseline.json"

    def status(*arguments: str) -> int:
        done = bench(*arguments, "--baseline", str(path), timeout=200)
        if done.returncode == 2:
            pytest.skip(f"other work has the processors: {done.stdout}")
        return done.returncode

    assert status("--record") == 0
    clean = [status() for _ in range(10)]
    assert clean == [0] * 10
    assert [status("--slow-down", "0.3") for _ in range(3)] == [1] * 3
