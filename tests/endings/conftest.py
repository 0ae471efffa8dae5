"""Trainers of their own: programs that hold sandboxes and then end, one way or another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from tests.conftest import RunningServer, make_state_dir, remove, start_server

LEASE_SECONDS = 1.0
"""Of the server of these tests: what is left to the lease is gone about a second after its process."""

PRELUDE = """
import asyncio, atexit, os, signal, sys, threading, time
import aviato
MARK = {mark!r}
BUSY = ["sleep", MARK]

def hold():
    "One sandbox of each kind, a command running in each."
    global alone, session, made, detached, running
    alone, session = aviato.Sandbox(tags=[MARK]), aviato.Session(aviato.SandboxDefaults(tags=[MARK]))
    made, detached = session.sandbox(), aviato.Sandbox(tags=[MARK + "-detached"], detached=True)
    aviato.wait([alone, made, detached])
    running = [box.exec(BUSY) for box in (alone, made)]
    aviato.wait([box.exec(["true"]) for box in (alone, made)])

def say(*what):
    os.write(1, (" ".join(map(str, what)) + "\\n").encode())
"""


def until(condition: Callable[[], object], seconds: float) -> float:
    """How long it took to come about."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + seconds, "it did not come about"
        time.sleep(0.02)
    return time.monotonic() - begin


class Trainer:
    """A program that holds sandboxes.

    Attributes:
        mark: the tag of its sandboxes, and the argument of its commands on this machine.
    """

    count = 0

    def __init__(self, source: str, server: RunningServer) -> None:
        Trainer.count += 1
        self.mark = f"{100_000 + os.getpid() % 50_000}.{Trainer.count:04d}"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PRELUDE.format(mark=self.mark) + textwrap.dedent(source)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "AVIATO_BASE_URL": server.url},
        )
        self.server, self.url = server, server.url

    def says(self, line: str = "up") -> None:
        """Read on to a line."""
        assert self.process.stdout is not None
        while (read := self.process.stdout.readline()) != f"{line}\n":
            assert read, self.process.communicate()[1]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 20) -> tuple[int, str, str]:
        """Wait for it: returncode, and what it wrote and was not read yet."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def living(self) -> list[aviato.Sandbox]:
        """Its sandboxes that live, the detached one left out."""
        return aviato.Sandbox.list(tags=[self.mark], base_url=self.url).result()

    def reasons(self) -> set[str | None]:
        """Why its sandboxes ended."""
        ended = aviato.Sandbox.list(tags=[self.mark], include_stopped=True, base_url=self.url).result()
        return {one.status_reason for one in ended}

    def commands(self) -> int:
        """How many of its commands run on this machine."""
        wanted = f"sleep\0{self.mark}\0".encode()
        found = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    found += (entry / "cmdline").read_bytes() == wanted
                except OSError:
                    continue
        return found

    def leaves_nothing(self, seconds: float) -> float:
        """How long it took until its sandboxes and their processes were gone; its detached one lives on."""
        took = until(lambda: not self.living() and not self.commands(), seconds)
        assert [one.status for one in self.detached()] == ["running"]
        return took

    def detached(self) -> list[aviato.Sandbox]:
        return aviato.Sandbox.list(tags=[f"{self.mark}-detached"], base_url=self.url).result()


@pytest.fixture(scope="module")
def patient(_private_environment: None) -> Iterator[RunningServer]:
    """A server with a short lease."""
    state = make_state_dir()
    server = start_server(state, lease=LEASE_SECONDS)
    yield server
    server.stop()
    remove(state)


@pytest.fixture
def trainer(patient: RunningServer, make_server: Any) -> Iterator[Callable[..., Trainer]]:
    """Start a program; at the end none is left, nor its detached sandbox. (Before `make_server` ends its servers.)"""
    made: list[Trainer] = []

    def start(source: str, server: Any = patient) -> Trainer:
        made.append(Trainer(source, server))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.send(signal.SIGCONT)
            one.process.kill()
        one.process.communicate()
        if one.server.process.poll() is None:
            for sandbox in one.detached():
                sandbox.stop(0, missing_ok=True).result()
