"""No clock that jumps, and no machine that stood still, ends what lives."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aviato import Sandbox
from tests import conftest
from tests.conftest import RunningServer, make_state_dir, remove, start_server
from tests.endings.test_sandboxes import first_process

LEASE_SECONDS = 1.0
YEAR_SECONDS = 366 * 86400
WALL = """
import time
_real = time.time
def jumping():
    with open({path!r}) as file:
        return _real() + float(file.read())
time.time = jumping
"""
NAMESPACE = """
import ctypes, os, sys
if os.environ.pop("AVIATO_TEST_CLOCKS", None):
    assert ctypes.CDLL(None).unshare(0x80) == 0  # CLONE_NEWTIME
    with open("/proc/self/timens_offsets", "w") as file:
        file.write("monotonic 1000000 0\\nboottime 1000000 0\\n")
    os.execv(sys.executable, [sys.executable, "-c", {serve!r}, *sys.argv[1:]])
"""


@pytest.fixture
def state() -> Iterator[Path]:
    path = make_state_dir()
    yield path
    remove(path)


@pytest.fixture
def start(state: Path) -> Iterator[Callable[..., RunningServer]]:
    """Servers on one state; the last one ends its sandboxes."""
    servers: list[RunningServer] = []

    def start(**settings: object) -> RunningServer:
        servers.append(start_server(state, environment=dict(os.environ), lease=LEASE_SECONDS, **settings))
        return servers[-1]

    yield start
    servers[-1].stop()


def live_on(boxes: list[Sandbox], seconds: float = 2.5 * LEASE_SECONDS) -> None:
    """They do, for longer than a lease."""
    time.sleep(seconds)
    for box in boxes:
        assert box.get_status() == "running"
        assert box.exec(["echo", "on"], timeout_seconds=10).result(20).stdout == "on\n"


@pytest.mark.deep
def test_the_wall_clock_jumps(state: Path, start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a year, in both directions, while the server runs and while it does not."""
    offset = state / "offset"
    offset.write_text("0")
    monkeypatch.setattr(conftest, "SERVE", WALL.format(path=str(offset)) + conftest.SERVE)
    server = start()
    boxes = [
        Sandbox.run(base_url=server.url),
        Sandbox.run(base_url=server.url, detached=True, max_lifetime_seconds=60),
        Sandbox.run(base_url=server.url, idle_timeout_seconds=30),
    ]
    for box in boxes:
        box.wait(30)  # A busy machine begins them late, and none of that is the clock's.
    running = boxes[0].exec(["sh", "-c", "sleep 9; echo over"], timeout_seconds=30)
    for jump in (YEAR_SECONDS, -YEAR_SECONDS):
        offset.write_text(str(jump))
        live_on(boxes)
    server.stop(signal.SIGKILL)
    offset.write_text(str(YEAR_SECONDS))
    start()
    live_on(boxes)
    assert running.result(20).stdout == "over\n"
    for box in boxes:
        box.stop(0).result()


@pytest.mark.skipif(os.getuid() != 0, reason="time namespaces are root's")
def test_the_monotonic_clocks_jump_across_a_restart(
    start: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a server in a container that was moved: its clocks are eleven days ahead of those of the one before."""
    server = start()
    boxes = [Sandbox.run(base_url=server.url), Sandbox.run(base_url=server.url, detached=True, max_lifetime_seconds=60)]
    server.stop(signal.SIGKILL)
    monkeypatch.setenv("AVIATO_TEST_CLOCKS", "1")
    monkeypatch.setattr(conftest, "SERVE", NAMESPACE.format(serve=conftest.SERVE) + conftest.SERVE)
    there = start()
    links = [os.readlink(f"/proc/{pid}/ns/time") for pid in (there.pid, os.getpid())]
    assert links[0] != links[1]
    live_on(boxes)
    for box in boxes:
        box.stop(0).result()


@pytest.mark.deep
@pytest.mark.parametrize("first", ["supervisor", "server"])
def test_everything_stood_still_for_longer_than_the_orphan_time(start: Callable[..., RunningServer], first: str) -> None:
    """As on a virtual machine that was paused, whose clocks ran on: nobody had a chance to speak, and nobody is an orphan."""
    server = start(orphan_timeout=2)
    box = Sandbox.run(base_url=server.url)
    mark = f"{300_000 + os.getpid()}.{first == 'server':d}"
    running = box.exec(["sh", "-c", f"sleep {mark} & sleep 0.2; echo up; sleep 7; echo over"])
    assert next(iter(running.stdout)) == "up\n"
    processes = [first_process(mark), server.pid]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(5)
    for pid in processes if first == "supervisor" else reversed(processes):
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.3)
    assert running.result(20).returncode == 0
    live_on([box], 1.0)
    box.stop(0).result()
