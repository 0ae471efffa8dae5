"""The init floor: sandboxes like ours without a server, and what the table of targets says of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import targets

from aviato import SandboxDefaults, Session
from aviato.bench import latency, memory, throughput
from aviato.bench.floor import STAYING_ARGV, Staying
from aviato.bench.init_floor import AGAIN, ONCE, STAY, Floors, init_floor
from aviato.bench.report import Report
from aviato.bench.run import Run
from aviato.bench.series import Ratio
from tests.endings.conftest import until

Measured = Callable[..., tuple[dict[str, Any], str]]

LIKE = r"""
grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' /proc/1/status
cut -d ' ' -f 4-6 /proc/self/mountinfo | sed 's|^/.*/skeletons/|/|'; sed 's/.* - //' /proc/self/mountinfo | cut -d ' ' -f 1
cat /proc/self/uid_map /proc/net/dev; grep processes /proc/1/limits; ls / /dev /etc
"""
"""What can be seen from inside of the isolation; all of it is process 1's, so that how a command is started does not matter."""


@pytest.fixture
def run(server: Any) -> Run:
    return Run({}, server.url)


@pytest.fixture
def made(run: Run) -> Iterator[Floors]:
    report = Report("test")
    with init_floor(run, report, 3) as found:
        assert found is not None, report.notes
        yield found
        assert list((found.directory / "sandboxes").iterdir()) == []
    assert not found.directory.exists() and str(found.directory) not in Path("/proc/mounts").read_text()


def alive(text: str) -> list[str]:
    """Processes whose command line has it."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += [pid] if text in Path(f"/proc/{pid}/cmdline").read_text() else []
        except OSError:
            continue  # gone meanwhile
    return found


def test_the_sandboxes_of_the_init_floor_are_like_ours(run: Run, made: Floors) -> None:
    with Session(SandboxDefaults(base_url=run.base_url)) as session, session.sandbox() as sandbox:
        seen = sandbox.exec(["/bin/sh", "-c", f"exec 2>&1; {LIKE}"], check=True).result().stdout.rstrip("\n")
    assert "Seccomp:\t2" in seen and "overlay" in seen
    same = f'there=$(exec 2>&1; {LIKE}); test "$there" = "$1" || {{ echo "$there"; exit 1; }}'
    with made.floor(ONCE, ["/bin/sh", "-c", same, "sh", seen]) as floor:
        assert 0 < floor() < 5


@pytest.mark.deep
@pytest.mark.parametrize("mode", [ONCE, STAY, AGAIN, "4x2"])
def test_every_mode_measures_and_leaves_nothing(made: Floors, mode: str) -> None:
    with made.floor(mode) as floor:
        assert all(0 < floor() < 5 for _ in range(3))
        assert len(floor.spent) == 3


def test_what_fails_is_said_and_leaves_nobody(made: Floors, capfd: pytest.CaptureFixture[str]) -> None:
    def fails(mode: str, command: str, times: int = 1) -> str:
        with made.floor(mode, [command]) as floor, pytest.raises(RuntimeError, match="could not measure"):
            for _ in range(times):
                floor()
        for left in (made.directory / "sandboxes").iterdir():
            shutil.rmtree(left)
        assert floor._process is not None and floor._process.returncode == 1
        return capfd.readouterr().err

    assert "its command, failed" in fails(ONCE, "/bin/false") and "its command, failed" in fails("4x2", "/bin/false")
    assert "has no more plans" in fails(STAY, "/bin/true", 4)
    plans = made.directory / "plans"
    plans.write_bytes(plans.read_bytes().replace(b'["place",', b'["nowhere",'))
    assert "nowhere" in fails(ONCE, "/bin/true")
    until(lambda: not alive(str(made.directory)), 20)


def test_programs_that_stay_end_with_their_floor() -> None:
    with Staying(STAYING_ARGV) as floor:
        assert all(0 < floor() < 5 for _ in range(3))
        pid = floor._process.pid if floor._process else 0
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == 3
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


@pytest.mark.deep
def test_the_floors_are_beside_their_targets(measured: Measured) -> None:
    found = {}
    figures = {
        "latency": (latency.CREATE, latency.EXEC, latency.AWAIT),
        "throughput": (throughput.BATCH,),
        "memory": (memory.RATE,),
    }
    for name, beside in figures.items():
        inits = measured(name, "--rounds", "1")[0]["init_floors"]
        assert set(inits) == set(beside)
        found[name] = Report(
            name, ratios=dict.fromkeys(beside, Ratio(9, 8, 10)), init={one: Ratio(**inits[one]) for one in beside}
        )
    rows = [row for row in targets.table(found).rows if row[-3]]
    assert [row[-3] for row in rows] == [str(report.init[one]) for name, report in found.items() for one in figures[name]]
    assert len(targets.notes(found)) == 5 and all("the init floor, " in note for note in targets.notes(found))


@pytest.mark.parametrize(
    ("target", "floor", "said"),
    [
        (0, Ratio(0.6, 0.5, 0.7), "leaves room for the aim (≤ 2), leaves room for the stretch (≤ 1.5)"),
        (0, Ratio(1.8, 1.4, 1.9), "leaves room for the aim (≤ 2), cannot be told from the stretch (≤ 1.5)"),
        (0, Ratio(2.5, 2.1, 2.9), "alone exceeds the aim (≤ 2), alone exceeds the stretch (≤ 1.5)"),
        (3, Ratio(0.95, 0.92, 0.97), "leaves room for the aim (≥ 0.9), alone exceeds the stretch (≥ 1)"),
        (3, Ratio(0.5, 0.4, 0.6), "alone exceeds the aim (≥ 0.9), alone exceeds the stretch (≥ 1)"),
    ],
)
def test_what_an_init_floor_means_for_a_target(target: int, floor: Ratio, said: str) -> None:
    assert targets.TARGETS[target].says(floor).endswith(said)
