"""Trainers that are killed in the middle of a batch leave nothing, alone or together with their server.

`AVIATO_TEST_FAULT_TRAINERS=20` makes it the long form.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from tests.endings.conftest import until
from tests.faults.conftest import FaultyServer

TRAINERS = int(os.environ.get("AVIATO_TEST_FAULT_TRAINERS", "3"))
SEED = int(os.environ.get("AVIATO_TEST_FAULT_SEED", "0")) or random.randrange(1, 1 << 31)
AT_ONCE = 4
GONE_SECONDS = 10.0
"""After the death of a trainer on a Unix socket, with the server's own settings."""
LEASE_SECONDS = 4.0
"""On TCP here."""
ORPHAN_SECONDS = 3.0
BATCH = """
import os, sys, time
import aviato
mark, batch = sys.argv[1], int(sys.argv[2])
session = aviato.Session(aviato.SandboxDefaults(tags=[mark]))
print("up", flush=True)
while True:
    boxes = [session.sandbox() for _ in range(batch)]
    long = [box.exec(["sleep", mark]) for box in boxes]
    short = [box.exec(["sh", "-c", "head -c 1000000 /dev/zero; sleep 0.2"]) for box in boxes]
    aviato.results([*short, boxes[0].write_file("/big", bytes(1 << 24))])
    if batch > 1:
        aviato.wait([box.stop(0) for box in boxes])
    else:
        print("busy", flush=True)
        time.sleep(3600)
"""


class Trainer:
    """A program that makes batches of sandboxes until it is killed."""

    count = 0

    def __init__(self, url: str, batch: int = 6, *, stderr: int | None = None) -> None:
        Trainer.count += 1
        self.mark = f"{200_000 + os.getpid() % 50_000}.{Trainer.count:04d}"
        self.url = url
        self.process = subprocess.Popen(
            [sys.executable, "-c", BATCH, self.mark, str(batch)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "AVIATO_BASE_URL": url},
        )
        self.says("up")

    def says(self, word: str) -> None:
        """Read on to a word."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def kill(self) -> None:
        """Without a word."""
        self.process.kill()
        self.process.communicate()

    def commands(self) -> list[int]:
        """Its commands on this machine."""
        wanted = f"sleep\0{self.mark}\0".encode()
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _cmdline(entry) == wanted]

    def sandboxes(self) -> int:
        """How many of its sandboxes live."""
        return len(aviato.Sandbox.list(tags=[self.mark], base_url=self.url).result())


def _cmdline(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def start(make_faulty: Any) -> Iterator[Callable[..., Trainer]]:
    """Trainers; none is left."""
    made: list[Trainer] = []

    def begin(url: str, batch: int = 6) -> Trainer:
        made.append(Trainer(url, batch))
        return made[-1]

    yield begin
    for one in made:
        if one.process.poll() is None:
            one.kill()


@pytest.fixture(params=["unix", "tcp"])
def place(request: pytest.FixtureRequest, make_faulty: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server, its address, and how long after its trainer's death a sandbox may live."""
    if request.param == "unix":
        server = make_faulty()
        return server, server.url, GONE_SECONDS
    (tmp_path / "keys").write_text("the-key\n")
    monkeypatch.setenv("AVIATO_API_KEY", "the-key")
    server = make_faulty(port=0, api_key_file=tmp_path / "keys", lease=LEASE_SECONDS)
    line: list[str] = []
    until(lambda: line.extend(part for part in server.running.log.read_text().split() if "=http:" in part) or line, 10)
    return server, line[0].partition("=")[2], LEASE_SECONDS + 5


@pytest.mark.long
@pytest.mark.timeout(300 + 15 * TRAINERS)
def test_killed_in_the_middle_of_a_batch(place: tuple[FaultyServer, str, float], start: Any) -> None:
    server, url, gone_seconds = place
    print(f"AVIATO_TEST_FAULT_SEED={SEED}")
    draw = random.Random(SEED)
    sibling = start(url, batch=1)
    sibling.says("busy")
    took: list[float] = []
    for begin in range(0, TRAINERS, AT_ONCE):
        left: dict[Trainer, float] = {}
        for one in [start(url) for _ in range(min(AT_ONCE, TRAINERS - begin))]:
            time.sleep(draw.uniform(0, 1.5))
            until(one.sandboxes, 10)
            one.kill()
            left[one] = time.monotonic()
        while left:
            for one, killed in list(left.items()):
                if not one.sandboxes() and not one.commands():
                    took.append(time.monotonic() - left.pop(one))
                else:
                    assert time.monotonic() < killed + gone_seconds, (one.sandboxes(), one.commands())
            time.sleep(0.05)  # Autogroups: who never waits may hold up processes of other sessions for seconds.
    print(f"{TRAINERS} trainers killed; nothing left after {max(took):.1f} s at the latest")
    assert sibling.process.poll() is None and sibling.sandboxes() == 1 and len(sibling.commands()) == 1
    assert len(server.places()) == 1


@pytest.mark.long
def test_killed_together_with_its_server(make_faulty: Any, start: Any) -> None:
    """Nobody starts another one: the process 1s end by themselves."""
    server = make_faulty(orphan_timeout=ORPHAN_SECONDS)
    trainers = [start(server.url, batch=1) for _ in range(3)]
    for one in trainers:
        one.says("busy")
    commands = [pid for one in trainers for pid in one.commands()]
    supervisors = {_parent(pid) for pid in commands}
    assert len(supervisors) == len(commands) == 3
    server.running.process.send_signal(signal.SIGKILL)
    for one in trainers:
        one.kill()
    server.running.process.wait()
    began = time.monotonic()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in [*commands, *supervisors]), ORPHAN_SECONDS + 5)
    took = time.monotonic() - began
    print(f"no process left after {took:.1f} s")
    assert took > ORPHAN_SECONDS / 2
    server.start()
    until(lambda: not server.places(), 10)
    ended = aviato.Sandbox.list(include_stopped=True, base_url=server.url).result()
    assert {one.status_reason for one in ended} == {"orphaned"}
