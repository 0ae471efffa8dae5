"""A command has ended, its result has not arrived, and then its sandbox ends: whoever comes back gets the result."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aviato
from aviato import OperationRef, Process, ProcessResult, Sandbox
from aviato.calls.one_command import run_only
from tests.endings.conftest import until
from tests.faults.conftest import FaultyServer, faulty_server
from tests.faults.gate import Gate, gate_to

OUTPUT = b"before\n" + bytes(300_000) + b"after\n"
COMMAND = ["sh", "-c", "echo before; echo err >&2; sleep 0.3; head -c 300000 /dev/zero; echo after; echo 1 >> ran; exit 4"]


@pytest.fixture(scope="module")
def faulty(_private_environment: None) -> Iterator[FaultyServer]:
    with faulty_server(orphan_timeout=2) as server:
        yield server


@pytest.fixture
def gate(faulty: FaultyServer) -> Iterator[Gate]:
    with gate_to(faulty.url) as gate:
        yield gate
    if faulty.died:
        faulty.start()


def directly(server: FaultyServer, sandbox: Sandbox) -> Sandbox:
    """The same sandbox, by a way that nobody cuts."""
    return Sandbox.from_id(sandbox.sandbox_id, base_url=server.url).result()


def has_run(server: FaultyServer, sandbox: Sandbox) -> bool:
    """Whether the command is through, its last step included."""
    look = "[ -e ran ] && ! pgrep -f '[h]ead -c 300000'"
    return directly(server, sandbox).exec(["sh", "-c", look]).result().returncode == 0


def over(server: FaultyServer, sandbox: Sandbox) -> bool:
    return directly(server, sandbox).status in ("completed", "failed", "terminated")


def kept(server: FaultyServer, process: Process) -> list[str]:
    """Where the server still has something of a command."""
    found = []
    try:
        paths = list((server.state / "state" / "serve" / "log").rglob("sb-*"))
    except FileNotFoundError:
        return ["something that is taken away just now"]
    for path in paths:
        try:
            names = os.listdir(path) if path.is_dir() else [path.read_text()]
        except FileNotFoundError:
            continue  # Taken away just now.
        found += [str(path)] if any(process.exec_id in name for name in names) else []
    return found


# -- how the sandbox ends


def stopped(server: FaultyServer, sandbox: Sandbox) -> None:
    # It tells what has arrived of the looks at it; else a server that dies now keeps the file for them, and all that is in it.
    directly(server, sandbox).stop().result()


def by_itself(server: FaultyServer, sandbox: Sandbox) -> None:
    until(lambda: over(server, sandbox), 10)


def main_command_ended(server: FaultyServer, sandbox: Sandbox) -> None:
    directly(server, sandbox).write_file("/tmp/end", b"").result()
    until(lambda: over(server, sandbox), 10)


def without_a_server(server: FaultyServer, sandbox: Sandbox) -> None:
    server.kill()
    time.sleep(2.2)
    server.start()
    until(lambda: over(server, sandbox), 10)


def and_then_the_server_was_killed(server: FaultyServer, sandbox: Sandbox) -> None:
    stopped(server, sandbox)
    server.kill()
    server.start()


def and_then_the_server_was_restarted(server: FaultyServer, sandbox: Sandbox) -> None:
    stopped(server, sandbox)
    server.running.stop(signal.SIGTERM)
    server.start()


MAIN = {"command": "sh", "args": ["-c", "while [ ! -e /tmp/end ]; do sleep 0.05; done"]}
ENDS: dict[str, tuple[Callable[[FaultyServer, Sandbox], None], dict[str, Any], str]] = {
    "stop": (stopped, {}, "stopped"),
    "lifetime": (by_itself, {"max_lifetime_seconds": 2}, "lifetime"),
    "main command": (main_command_ended, MAIN, "exited"),
    "lifetime, no server": (without_a_server, {"max_lifetime_seconds": 2}, "lifetime"),
    "orphaned": (without_a_server, {}, "orphaned"),
    "stop, killed": (and_then_the_server_was_killed, {}, "stopped"),
    "stop, restarted": (and_then_the_server_was_restarted, {}, "stopped"),
}


def result_of(process: OperationRef[ProcessResult], form: str) -> ProcessResult:
    return process.result(20) if form == "blocking" else asyncio.run(_awaited(process))


async def _awaited(process: OperationRef[ProcessResult]) -> ProcessResult:
    return await process


@pytest.mark.deep
@pytest.mark.parametrize(("form", "detach"), [("blocking", False), ("loop", False), ("loop", True)])
@pytest.mark.parametrize("name", ENDS)
def test_the_result_outlives_its_sandbox(faulty: FaultyServer, gate: Gate, name: str, form: str, detach: bool) -> None:
    end, options, reason = ENDS[name]
    sandbox = Sandbox(base_url=gate.url, **options)
    process = sandbox.exec(COMMAND, detach=detach)
    assert next(iter(process.stdout)) == "before\n"
    # Another one, which will not have ended.
    endless = sandbox.exec(["sh", "-c", "echo up; sleep 60"])
    assert next(iter(endless.stdout)) == "up\n"
    gate.shut()
    until(lambda: has_run(faulty, sandbox), 10)
    end(faulty, sandbox)
    gate.open()
    result = result_of(process, form)
    assert (result.returncode, result.stdout_bytes, result.stderr) == (4, OUTPUT, "err\n")
    until(lambda: not kept(faulty, process), 20)
    with pytest.raises(aviato.SandboxError) as caught:
        endless.result(20)
    assert (caught.value.reason, caught.value.started) == (reason, True)


@pytest.mark.deep
@pytest.mark.parametrize("form", ["blocking", "loop"])
def test_the_process_that_made_the_sandbox_died(faulty: FaultyServer, gate: Gate, form: str) -> None:
    from tests.faults.test_trainers import Trainer

    one = Trainer(faulty.url, batch=1)
    one.says("busy")
    sandbox = Sandbox.list(tags=[one.mark], base_url=gate.url).result()[0]
    process = sandbox.exec(COMMAND)
    assert next(iter(process.stdout)) == "before\n"
    gate.shut()
    until(lambda: has_run(faulty, sandbox), 10)
    one.kill()
    until(lambda: over(faulty, sandbox), 15)
    gate.open()
    assert result_of(process, form).stdout_bytes == OUTPUT


@pytest.mark.deep
@pytest.mark.parametrize("form", ["blocking", "loop"])
@pytest.mark.parametrize("then", ["", "restarted", "killed"])
@pytest.mark.parametrize("size", [10, 900_000])
def test_the_answer_of_a_sandbox_for_one_command_was_lost(
    faulty: FaultyServer, gate: Gate, form: str, then: str, size: int
) -> None:
    """The server had sent it whole, and has ended the sandbox."""
    with Sandbox(base_url=gate.url):
        pass  # There was a server.
    sandbox = Sandbox(base_url=gate.url)
    gate.swallow()
    work = run_only(sandbox._state, ["sh", "-c", f"echo once; head -c {size} /dev/zero; exit 4"], timeout_seconds=20)
    process = OperationRef.start(work, name="the one command")
    until(lambda: _ended(faulty, sandbox), 10)
    if then:
        time.sleep(0.5)
        faulty.running.stop(signal.SIGTERM if then == "restarted" else signal.SIGKILL)
        faulty.start()
    gate.shut()
    gate.open()
    result = result_of(process, form)
    assert (result.returncode, result.stdout_bytes) == (4, b"once\n" + bytes(size))


def _ended(server: FaultyServer, sandbox: Sandbox) -> bool:
    found = Sandbox.list(include_stopped=True, base_url=server.url).result()
    return any(one.sandbox_id == sandbox.sandbox_id and one.status == "terminated" for one in found)
