"""Real servers in state directories of their own; a user's embedded server is never touched."""

from __future__ import annotations

import gc
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.base_roots import share
from tests.default_image import BEFORE_SERVE, replace_here
from tests.short_form import SHORT

# Before anything imports it, so that its assertions say what they compared.
pytest.register_assert_rewrite("aviato.promises", "aviato.server.backends.conformance")

START_SECONDS = 120.0
SERVE = f"{BEFORE_SERVE}from aviato.cli.main import main; main()"
INIT = "AVIATO_INIT"
"""Of all variables of ours the one that the tests are made with: another process 1."""
SECRETS = {"AVIATO_SECRET_HF_TOKEN": "hf-token-of-the-tests"}
"""What every server of the tests has."""
ABOVE = len(str(Path(__file__).parent)) + 1
"""Characters before the paths of `SHORT`."""


def pytest_configure(config: pytest.Config) -> None:
    replace_here()
    gc.disable()  # Until all is collected: of modules and items nothing is garbage, and looking takes a quarter of the time.


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let no test's collector look at them again."""
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also the deep matrices, and the tests that take minutes")
    parser.addoption(
        "--deep-in", action="append", default=[], help="also the deep matrices of files below tests whose path begins so"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Of `-n auto`: most tests wait most of the time."""
    return max(4, os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A part of the tests in order for each worker, and half of what another has left when it is done with its own.

    By xdist's own choice tests come two at a time towards the end, and what a module shares is made by each worker.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> Generator[None, Any, Any]:
    """Mark rows while all rows of a test are there, also those that `--last-failed` leaves out."""
    made = yield
    step = SHORT.get(str(collector.path)[ABOVE:], {}).get(name)
    if step is not None:
        for row, item in enumerate(made):
            if step == 0 or row % step:
                item.add_marker(pytest.mark.deep)
    return made


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    whole = tuple(config.getoption("--deep-in"))

    def is_left_out(item: pytest.Item) -> bool:
        is_deep = item.get_closest_marker("deep") is not None and not str(item.path)[ABOVE:].startswith(whole)
        return is_deep or item.get_closest_marker("long") is not None

    left_out = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


@dataclass
class RunningServer:
    """A server that a test may talk to, kill and inspect."""

    url: str
    pid: int
    state_dir: str
    process: subprocess.Popen[bytes]
    log: Path

    def port(self) -> int:
        """Its port over TCP, as its log has it."""
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(r"http://127.0.0.1:(\d+)\n", self.log.read_text())) is None:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)
        return int(found[1])

    def restart(self, **settings: Any) -> None:
        """Another server on the same state, once this one has ended; settings are its flags."""
        again = start_server(Path(self.state_dir).parent, **settings)
        self.pid, self.process = again.pid, again.process

    def stop(self, sig: int = signal.SIGINT) -> None:
        """End it, with its sandboxes by default; SIGTERM leaves them to the next one."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def free_port() -> int:
    """A port of TCP for a server that may die and come back: none that the kernel lends to connections of others meanwhile."""
    lent_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(lent_from // 2, lent_from)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def start_server(
    state_dir: Path,
    *,
    environment: Mapping[str, str] = SECRETS,
    before: Sequence[str] = (),
    first: str = "",
    **settings: Any,
) -> RunningServer:
    """`aviato serve` on a Unix socket; settings are its flags, `before` are words in front of its command, and `first`
    is what its process does before all else."""
    path = state_dir / "test.sock"
    if not before:  # Else it may be another user's.
        (state_dir / "state").mkdir(mode=0o711, exist_ok=True)
        share(state_dir / "state")
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    places = ["--state-dir", str(state_dir / "state"), "--socket", str(path)]
    command = [*before, sys.executable, "-c", first + SERVE, "serve", *places, *flags]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AVIATO_") or name == INIT}
    variables = {**kept, **environment}
    log = state_dir / "server.log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables)
    deadline = time.monotonic() + START_SECONDS
    while not connects(path):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise RuntimeError(f"the server did not start:\n{log.read_text()}")
        time.sleep(0.02)
    return RunningServer(f"unix://{path}", process.pid, str(state_dir / "state"), process, log)


def make_state_dir() -> Path:
    """Short, since sockets lie in it, and open for the sandboxes' uids to pass through."""
    path = Path(tempfile.mkdtemp(prefix="aviato-test-", dir="/tmp"))
    path.chmod(0o711)
    share(path)
    return path


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def own_server() -> Iterator[RunningServer]:
    """One that a module has for itself, with an image store of its own: what lies in that of the other tests stays little."""
    directory = make_state_dir()
    running = start_server(directory)
    try:
        yield running
    finally:
        running.stop()
        remove(directory)


@pytest.fixture
def state() -> Iterator[Path]:
    """A directory for an embedded server of the test's own."""
    path = make_state_dir()
    yield path
    stop_embedded(path)
    remove(path)


@pytest.fixture(scope="session")
def embedded_state() -> Iterator[Path]:
    """Where embedded servers of this test run live; they are ended with it."""
    path = make_state_dir()
    yield path
    stop_embedded(path)
    remove(path)


def embedded_pids(state: Path) -> list[int]:
    """Servers below a state directory that are alive."""
    found = []
    for lock in state.glob("embedded/*/lock"):
        text = lock.read_text().strip()
        if text.isdigit() and Path(f"/proc/{text}").exists():
            found.append(int(text))
    return found


def in_interpreter(source: str, *, timeout: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own, with these variables besides."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
        check=False,
    )


def stop_embedded(state: Path) -> None:
    pids = embedded_pids(state)
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.05)


@pytest.fixture(scope="session", autouse=True)
def _private_environment(embedded_state: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AVIATO_", "WANDB_")) and name != INIT]:
            patch.delenv(name)
        patch.setenv("AVIATO_STATE_DIR", str(embedded_state))
        # Whatever a test or a block of a guide does with W&B, it waits for no network and writes nothing beside the code.
        offline = {"MODE": "offline", "BASE_URL": "http://127.0.0.1:9", "DIR": str(embedded_state), "ERROR_REPORTING": "false"}
        for name, value in {**offline, "SILENT": "true", "CONSOLE": "off"}.items():
            patch.setenv(f"WANDB_{name}", value)
        yield


@pytest.fixture(scope="session")
def server(_private_environment: None) -> Iterator[RunningServer]:
    """One server for all tests that do not care which."""
    state = make_state_dir()
    running = start_server(state)
    yield running
    running.stop()
    remove(state)


@pytest.fixture
def make_server(_private_environment: None) -> Iterator[Callable[..., RunningServer]]:
    """Servers of a test's own: `make_server(max_sandboxes=8)`."""
    made: list[tuple[RunningServer, Path]] = []

    def make(**settings: Any) -> RunningServer:
        state = make_state_dir()
        running = start_server(state, **settings)
        made.append((running, state))
        return running

    yield make
    for running, state in made:
        running.stop()
        remove(state)


@pytest.fixture
def soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was never reached is not tried for long, for tests of what comes after that."""
    monkeypatch.setattr("aviato.core.client.NEVER_REACHED_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def _no_thread_leaks() -> Iterator[None]:
    """A test leaves no thread behind but the loop thread, the loop's workers and wandb's own."""
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 60
    while True:
        left = [
            thread
            for thread in threading.enumerate()
            if thread not in before
            and not thread.name.startswith(("aviato-loop", "asyncio_", "uvloop_", "ThreadPoolExecutor", "wandb-"))
        ]
        if not left:
            return
        if time.monotonic() > deadline:
            pytest.fail(f"threads left behind: {left}")
        time.sleep(0.02)
