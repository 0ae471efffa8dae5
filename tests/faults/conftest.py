"""A server that can be made to fail, and a proxy in front of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SECRETS, RunningServer, make_state_dir, remove, start_server
from tests.faults.proxy import CALM, WILD

ROOT = Path(__file__).parents[2]


class FaultyServer:
    """A server with the switch of `fault_points`, which can be killed and started again.

    Attributes:
        url: where it is without a proxy.
        socket: the path of its Unix socket.
    """

    def __init__(self, state: Path, **settings: Any) -> None:
        self.state = state
        self.faults = state / "faults"
        self.faults.mkdir(exist_ok=True)
        self._settings = settings
        self.running: RunningServer
        self.start()
        self.url = self.running.url
        self.socket = str(state / "test.sock")

    def start(self, armed: str | None = None) -> None:
        """Start it, with nothing armed or with an act and a point: `fail hello.before`."""
        self.disarm()
        if armed is not None:
            self.arm(*armed.split())
        environment = {**SECRETS, "AVIATO_TEST_FAULTS": str(self.faults)}
        self.running = start_server(self.state, environment=environment, **self._settings)

    def arm(self, act: str, point: str, running: int = 0, creating: int = 0) -> None:
        """Let a point act while at least so many commands run and sandboxes are being made."""
        (self.faults / "new").write_text(f"{act} {point} {running} {creating}")
        (self.faults / "new").rename(self.faults / "armed")

    def disarm(self) -> None:
        """Let no point act."""
        (self.faults / "armed").unlink(missing_ok=True)

    @property
    def hits(self) -> list[tuple[str, str, int, int]]:
        """What was done: act, point, how many commands ran and how many sandboxes were being made."""
        path = self.faults / "hits"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(act, point, int(running), int(creating)) for act, point, running, creating in lines]

    @property
    def died(self) -> bool:
        """Whether its process is gone."""
        return self.running.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL it."""
        self.running.process.kill()
        self.running.process.wait()

    def places(self) -> list[str]:
        """The sandboxes whose place is there; a note alone says how one ended that the store has not heard of yet."""
        where = self.state / "state" / "serve" / "sandboxes"
        return sorted(name for name in os.listdir(where) if _content(where / name) not in (None, ["note"]))


def _content(path: Path) -> list[str] | None:
    """Of a directory, if it is there."""
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return None


@contextmanager
def faulty_server(**settings: Any) -> Iterator[FaultyServer]:
    """One, and its end with all that is in it."""
    server = FaultyServer(make_state_dir(), **settings)
    try:
        yield server
    finally:
        if server.died:
            server.start()  # It ends the sandboxes that are left.
        server.disarm()
        server.running.stop()
        remove(server.state)


@pytest.fixture
def make_faulty(_private_environment: None) -> Iterator[Callable[..., FaultyServer]]:
    """Servers that fail: `make_faulty(max_sandboxes=8)`."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(faulty_server(**settings))


class RunningProxy:
    """A proxy in a process of its own."""

    def __init__(self, server: str, seed: int, every: float, kinds: dict[str, int] | None, listen: str | None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="aviato-proxy-", dir="/tmp"))
        self.log = self.directory / "log"
        self.log.touch()
        command = [sys.executable, "-m", "tests.faults.proxy", "--server", server, "--seed", str(seed), "--every", str(every)]
        command += ["--listen", listen or str(self.directory / "s"), "--log", str(self.log)]
        command += [] if kinds is None else ["--kinds", json.dumps(kinds)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.url = f"unix://{self.address}" if self.address.startswith("/") else f"http://{self.address}"

    @property
    def faults(self) -> list[dict[str, Any]]:
        """What was done, in order."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @property
    def counts(self) -> Counter[str]:
        """How often each kind of fault happened."""
        return Counter(fault["kind"] for fault in self.faults)

    def calm(self, is_calm: bool) -> None:
        """Whether it hurts nothing from now on."""
        self.process.send_signal(CALM if is_calm else WILD)

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture
def make_proxy() -> Iterator[Callable[..., RunningProxy]]:
    """Proxies: `make_proxy("/path/of/the/server", seed=1)`."""
    made: list[RunningProxy] = []

    def make(
        server: str, *, seed: int, every: float = 0.0, kinds: dict[str, int] | None = None, listen: str | None = None
    ) -> RunningProxy:
        made.append(RunningProxy(server, seed, every, kinds, listen))
        return made[-1]

    yield make
    for proxy in made:
        proxy.stop()
