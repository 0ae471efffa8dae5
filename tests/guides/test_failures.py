"""Each row of the table of `docs/guides/failures.md` is brought about, from blocking code and from a loop, and is as said."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import OperationRef, Sandbox, SandboxDefaults
from tests.endings.test_sandboxes import ROWS as ENDINGS
from tests.endings.test_sandboxes import Place, first_process
from tests.faults.conftest import FaultyServer, faulty_server
from tests.matrices import deep

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "failures.md"
OURS, TASK = "ours", "the task's"


@pytest.fixture(scope="module")
def faulty(_private_environment: None) -> Iterator[FaultyServer]:
    with faulty_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _mended(faulty: FaultyServer, soon_given_up: None) -> Iterator[None]:
    yield
    faulty.disarm()
    if faulty.died:
        faulty.start()
    faulty.running.process.send_signal(signal.SIGCONT)


def box(server: FaultyServer, **options: Any) -> Sandbox:
    return Sandbox(base_url=server.url, **options)


def hurried(server: FaultyServer, **fields: Any) -> Sandbox:
    return Sandbox(defaults=SandboxDefaults(base_url=server.url, reconnect_timeout_seconds=0.5, **fields))


# -- what breaks; each gives the operation that fails


def no_server(server: FaultyServer) -> OperationRef[Any]:
    return Sandbox(base_url="unix:///tmp/aviato-nobody.sock").exec(["true"])


def server_gone(server: FaultyServer) -> OperationRef[Any]:
    running = hurried(server)
    running.exec(["true"]).result()
    server.kill()
    return running.exec(["true"])


def server_silent(server: FaultyServer) -> OperationRef[Any]:
    running = hurried(server, request_timeout_seconds=0.5)
    running.exec(["true"]).result()
    server.running.process.send_signal(signal.SIGSTOP)
    return running.read_file("/etc/passwd")


def store_fails(server: FaultyServer) -> OperationRef[Any]:
    server.arm("fail", "store.before")
    return hurried(server).start()


def backend_fails(server: FaultyServer) -> OperationRef[Any]:
    server.arm("fail", "fork.before")
    return box(server).exec(["true"])


def server_s_disk_is_full(server: FaultyServer) -> OperationRef[Any]:
    server.arm("fail", "disk.before")
    return box(server).exec(["echo", "x"], detach=True)


def killed_by_the_host(server: FaultyServer) -> OperationRef[Any]:
    sandbox = box(server)
    process = sandbox.exec(["sleep", "3401"])
    while sandbox.exec(["true"]).result().returncode or not process.exec_id:
        pass
    ENDINGS["lost"].end(sandbox, Place(server.running, first_process("3401")))
    return process


def unknown_image(server: FaultyServer) -> OperationRef[Any]:
    return box(server, container_image="dir:nothing").exec(["true"])


def image_elsewhere(server: FaultyServer) -> OperationRef[Any]:
    return box(server, container_image="localhost:1/no/such:image").exec(["true"])


def command_too_slow(server: FaultyServer) -> OperationRef[Any]:
    return box(server).exec(["sleep", "60"], timeout_seconds=0.1)


def checked(server: FaultyServer) -> OperationRef[Any]:
    return box(server).exec(["false"], check=True)


def own_memory(server: FaultyServer) -> OperationRef[Any]:
    bomb = "x = bytearray(200 << 20); x[::4096] = b'1' * len(x[::4096]); import time; time.sleep(5)"
    return box(server, resources={"memory": "64Mi"}).exec(["python3", "-c", bomb], check=True)


def main_out_of_memory(server: FaultyServer) -> OperationRef[Any]:
    bomb = "x = bytearray(200 << 20); x[::4096] = b'1' * len(x[::4096]); import time; time.sleep(5)"
    sandbox = box(server, resources={"memory": "64Mi"}, command="python3", args=["-c", bomb])
    sandbox.wait_until_complete(raise_on_termination=False).exception(20)
    return sandbox.exec(["true"])


def own_disk(server: FaultyServer) -> OperationRef[Any]:
    return box(server, resources={"disk": "8Mi"}).write_file("/big", bytes(9 << 20))


def no_file(server: FaultyServer) -> OperationRef[Any]:
    return box(server).read_file("/no/such/file")


def no_directory(server: FaultyServer) -> OperationRef[Any]:
    return box(server).exec(["true"], cwd="/no/such/directory")


def main_failed(server: FaultyServer) -> OperationRef[Any]:
    sandbox = box(server, command="sh", args=["-c", "exit 3"])
    sandbox.wait_until_complete().exception(20)
    return sandbox.exec(["true"])


def main_ended(server: FaultyServer) -> OperationRef[Any]:
    sandbox = box(server, command="true")
    sandbox.wait_until_complete().exception(20)
    return sandbox.exec(["true"])


def lifetime(server: FaultyServer) -> OperationRef[Any]:
    return box(server, max_lifetime_seconds=0.5).exec(["sleep", "60"])


def idle(server: FaultyServer) -> OperationRef[Any]:
    sandbox = box(server, idle_timeout_seconds=0.3)
    sandbox.wait_until_complete(raise_on_termination=False).result(20)
    return sandbox.exec(["true"])


def stopped(server: FaultyServer) -> OperationRef[Any]:
    sandbox = box(server)
    sandbox.wait()
    sandbox.stop().result()
    return sandbox.exec(["true"])


def unknown_id(server: FaultyServer) -> OperationRef[Any]:
    return Sandbox.from_id(box(server).sandbox_id, base_url=server.url)


def wrong_resources(server: FaultyServer) -> OperationRef[Any]:
    return box(server, resources=aviato.ResourceOptions(requests={"memory": "900Ti"})).start()


@dataclass
class Row:
    """One row: what it comes to, and how it is brought about here or which test does that elsewhere."""

    error: type[aviato.AviatoError]
    reason: str
    whose: str
    begin: Callable[[FaultyServer], OperationRef[Any]] | str = field(repr=False)


ELSEWHERE = "tests/endings/test_sandboxes.py::"
ROWS = {
    "No server was ever there": Row(aviato.SandboxUnavailableError, "connect", OURS, no_server),
    "The server went and did not come back in time": Row(aviato.SandboxUnavailableError, "connect", OURS, server_gone),
    "The server does not answer": Row(aviato.SandboxRequestTimeoutError, "request_timeout", OURS, server_silent),
    "The server's store cannot be written": Row(aviato.SandboxUnavailableError, "store", OURS, store_fails),
    "No sandbox can be made": Row(aviato.SandboxFailedError, "start_failed", OURS, backend_fails),
    "The server's disk cannot take the output of a detached command": Row(
        aviato.SandboxExecutionError, "output_gap", OURS, server_s_disk_is_full
    ),
    "The machine's disk cannot take a file": Row(
        aviato.SandboxFileError, "host_disk_full", OURS, "tests/faults/test_full_disk.py::test_a_full_disk"
    ),
    "The sandbox was killed from outside, as by the machine's OOM killer": Row(
        aviato.SandboxFailedError, "lost", OURS, killed_by_the_host
    ),
    "The image is unknown": Row(aviato.SandboxImageError, "image", OURS, unknown_image),
    "The image cannot be had": Row(aviato.SandboxImageError, "image_pull_failed", OURS, image_elsewhere),
    "No capacity, and the queue is full": Row(
        aviato.SandboxResourceExhaustedError,
        "resource_exhausted",
        OURS,
        "tests/server/test_capacity.py::test_a_full_queue_refuses_with_a_delay",
    ),
    "Wrong credentials": Row(
        aviato.AviatoAuthenticationError, "authentication", OURS, "tests/transport/test_http.py::test_tcp_needs_the_key"
    ),
    "The process that made the sandbox died, or was not heard of": Row(
        aviato.SandboxTerminatedError, "lease_expired", OURS, ELSEWHERE + "test_one_whose_process_died"
    ),
    "The server was ended with its sandboxes": Row(
        aviato.SandboxTerminatedError, "shutdown", OURS, ELSEWHERE + "test_the_table_of_endings"
    ),
    "No server for `orphan_timeout`": Row(
        aviato.SandboxTerminatedError, "orphaned", OURS, ELSEWHERE + "test_the_table_of_endings"
    ),
    "Let go, and its place was needed": Row(
        aviato.SandboxTerminatedError, "released", OURS, ELSEWHERE + "test_one_that_was_let_go_and_made_room"
    ),
    "The command ran too long": Row(aviato.SandboxCommandTimeoutError, "command_timeout", TASK, command_too_slow),
    "The command failed, with `check=True`": Row(aviato.SandboxExecutionError, "returncode", TASK, checked),
    "The command needed more than the sandbox's memory, with `check=True`": Row(
        aviato.SandboxExecutionError, "returncode", TASK, own_memory
    ),
    "The main command needed more than the sandbox's memory": Row(aviato.SandboxFailedError, "oom", TASK, main_out_of_memory),
    "The sandbox's disk is full": Row(aviato.SandboxFileError, "disk_full", TASK, own_disk),
    "A file was changed while it was read, and the connection was cut": Row(
        aviato.SandboxFileError,
        "changed",
        TASK,
        "tests/faults/test_streams.py::test_a_file_that_changed_meanwhile_is_no_mixture",
    ),
    "A file is missing": Row(aviato.SandboxFileError, "no_such_file", TASK, no_file),
    "The command's directory is missing": Row(aviato.SandboxFileError, "no_such_file", TASK, no_directory),
    "The main command failed": Row(aviato.SandboxFailedError, "exited", TASK, main_failed),
    "The main command ended": Row(aviato.SandboxNotRunningError, "exited", TASK, main_ended),
    "The sandbox's lifetime is over": Row(aviato.SandboxTerminatedError, "lifetime", TASK, lifetime),
    "The sandbox was idle for too long": Row(aviato.SandboxTerminatedError, "idle", TASK, idle),
    "Your own `stop()`": Row(aviato.SandboxNotRunningError, "stopped", TASK, stopped),
    "Nobody knows the id": Row(aviato.SandboxNotFoundError, "sandbox_not_found", TASK, unknown_id),
    "More was asked for than there is": Row(aviato.AviatoValidationError, "invalid", TASK, wrong_resources),
}
HERE = {name: row for name, row in ROWS.items() if not isinstance(row.begin, str)}


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("form", ["blocking", *deep(["loop"])])
def test_what_it_comes_to(faulty: FaultyServer, name: str, form: str) -> None:
    row = HERE[name]
    assert not isinstance(row.begin, str)
    with pytest.raises(aviato.AviatoError) as caught:
        if form == "blocking":
            row.begin(faulty).result(30)
        else:
            asyncio.run(_awaited(row.begin(faulty)))
    error = caught.value
    assert (type(error), error.reason, error.is_infrastructure) == (row.error, row.reason, row.whose == OURS), repr(error)


async def _awaited(operation: OperationRef[Any]) -> Any:
    return await operation


def test_the_page_has_these_rows() -> None:
    rows = re.findall(r"^\| (.+?) \| `(\w+)` \| `(\w+)` \| (ours|the task's) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(name, row.error.__name__, row.reason, row.whose) for name, row in ROWS.items()]


@pytest.mark.parametrize("name", [name for name in ROWS if name not in HERE])
def test_the_others_are_brought_about_elsewhere(name: str) -> None:
    row = ROWS[name]
    assert isinstance(row.begin, str)
    path, test = row.begin.split("::")
    source = (ROOT / path).read_text()
    assert f"def {test}(" in source
    if row.reason in ENDINGS:
        ending = ENDINGS[row.reason]
        assert (ending.error, ending.reason, ending.infrastructure) == (row.error, row.reason, row.whose == OURS)
