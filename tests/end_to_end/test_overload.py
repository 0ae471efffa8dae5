"""More is asked of a server than it has: everybody has a turn, who goes leaves the queue, and every request comes to an end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import textwrap
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import pytest

from aviato import AsyncClient, Sandbox, SandboxDefaults, Session
from aviato.exceptions import SandboxResourceExhaustedError
from aviato.rl import Task, evaluate

Server = Any


def health(server: Server) -> Any:
    connection = HTTPConnection("server")
    connection.sock = socket(AF_UNIX)
    connection.sock.connect(urllib.parse.urlsplit(server.url).path)
    try:
        connection.request("GET", "/v1/health")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@pytest.fixture
def full(make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Sandbox]]:
    """A server with one place and room for 40 that wait, and the sandbox that holds the place."""
    server = make_server(max_sandboxes=1, max_queued_sandboxes=40)
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    with Sandbox.run() as holder:
        holder.wait()
        yield server, holder


@contextmanager
def program(server: Server, source: str) -> Iterator[subprocess.Popen[str]]:
    """Another client."""
    environment = {**os.environ, "AVIATO_BASE_URL": server.url}
    command = [sys.executable, "-c", textwrap.dedent(source)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def place(sandbox: Sandbox) -> int:
    """In the queue."""
    found = re.fullmatch(r"queued: place (\d+) in the server's queue", sandbox.status_reason or "")
    assert found is not None, sandbox.status_reason
    return int(found[1])


ONE = """
from aviato import Sandbox
import time
with Sandbox.run() as sandbox:
    while not (sandbox.status_reason or "").startswith("queued"):
        sandbox.get_status()
        time.sleep(0.02)
    print(sandbox.sandbox_id, sandbox.status_reason, flush=True)
    print(sandbox.exec(["echo", "ran"]).result().stdout, flush=True)
"""


def test_a_client_that_wants_one_has_its_turn_among_those_of_one_that_wants_many(full: tuple[Server, Sandbox]) -> None:
    server, holder = full
    with Session() as session:
        many = [session.sandbox() for _ in range(30)]
        until(lambda: health(server)["pending_sandboxes"] == 30)
        with program(server, ONE) as other:
            assert other.stdout is not None
            sandbox_id, _, reason = other.stdout.readline().strip().partition(" ")
            assert reason == "queued: place 2 in the server's queue"
            command = [sys.executable, "-c", "from aviato.cli.main import main; main()", "ls", "--base-url", server.url]
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            (line,) = [line for line in listed.splitlines() if sandbox_id in line]
            assert "pending (place 2 in the queue)" in line
            for one in many:
                one.get_status()
            many.sort(key=place)  # They were asked for at the same time, over several connections.
            assert [place(one) for one in many] == [1, *range(3, 32)]
            holder.stop().result()
            first = many[0].wait(20)
            assert first.exec(["echo", "first"]).result().stdout == "first\n"
            first.stop().result()
            assert other.stdout.readline() == "ran\n"
            assert other.wait(20) == 0
        assert health(server)["pending_sandboxes"] >= 28


KILLED = """
from aviato import Session
session = Session()
boxes = [session.sandbox() for _ in range(20)]
for box in boxes:
    box.start().result()
print("waiting", flush=True)
input()
"""


def test_whoever_goes_leaves_the_queue_at_once(full: tuple[Server, Sandbox]) -> None:
    server, _ = full

    def waits(count: int) -> Callable[[], bool]:
        return lambda: health(server)["pending_sandboxes"] == count

    stopped = Sandbox.run()
    assert waits(1)()
    stopped.stop().result(2)
    assert waits(0)()

    async def left() -> None:
        async def enter() -> None:
            async with Sandbox() as waiting:
                await waiting.exec(["true"])

        task = asyncio.create_task(enter())
        await asyncio.to_thread(until, waits(1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(until, waits(0), 2)
        one_request = evaluate([Task(command=["true"])])
        await asyncio.to_thread(until, waits(1))
        one_request.cancel()
        await asyncio.to_thread(until, waits(0), 2)

    asyncio.run(left())
    with Session() as session:
        for _ in range(10):
            session.sandbox()
        until(waits(10))
    until(waits(0), 2)
    with program(server, KILLED) as client:
        assert client.stdout is not None and client.stdout.readline() == "waiting\n"
        assert waits(20)()
        client.kill()
        until(waits(0), 2)  # Its lease would last for longer.


def test_beyond_the_bound_a_request_is_tried_again_and_at_last_told(
    make_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(max_sandboxes=1, max_queued_sandboxes=2)
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    impatient = SandboxDefaults(reconnect_timeout_seconds=1)
    with Session() as session, Session(impatient) as hurried:
        boxes = [session.sandbox() for _ in range(3)]
        for box in boxes:
            box.start().result()
        boxes[0].wait()
        with pytest.raises(SandboxResourceExhaustedError) as caught:
            hurried.sandbox().start().result(20)
        assert caught.value.is_infrastructure and caught.value.retryable and caught.value.retry_delay_seconds
        assert "2 sandboxes wait" in str(caught.value) and caught.value.reason == "resource_exhausted"

        async def asynchronously() -> None:
            async with AsyncClient(defaults=impatient) as client:
                # Another loop is another client, which the queue has room for; its next has none.
                first = await client.sandbox()
                with pytest.raises(SandboxResourceExhaustedError):
                    await client.sandbox()
                await first.stop()

        asyncio.run(asynchronously())
        (outcome,) = evaluate([Task(command=["true"])], session=hurried, retry_budget_seconds=1).result(20)
        assert outcome.verdict == "infrastructure" and isinstance(outcome.error, SandboxResourceExhaustedError)
        patient = session.sandbox()
        accepted = patient.start()
        time.sleep(0.3)
        assert not accepted.done(), "the queue is full"
        for box in boxes:
            box.stop().result()
        assert patient.exec(["echo", "at last"]).result(20).stdout == "at last\n"


STORM = """
import asyncio, collections, json, sys
from aviato import Sandbox, SandboxDefaults

async def session(number):
    async with Sandbox(defaults=DEFAULTS) as sandbox:
        result = await sandbox.exec(["sh", "-c", f"echo {number}; sleep 0.02"])
        return result.stdout == f"{number}\\n"

async def main():
    global DEFAULTS
    DEFAULTS = SandboxDefaults(reconnect_timeout_seconds=float(sys.argv[2]))
    ends = await asyncio.gather(*(session(n) for n in range(int(sys.argv[1]))), return_exceptions=True)
    counts = collections.Counter("ok" if end is True else type(end).__name__ for end in ends)
    counts["infrastructure"] = sum(getattr(end, "is_infrastructure", False) for end in ends)
    print(json.dumps(counts))

asyncio.run(main())
"""


def test_ten_times_what_it_has_room_for_comes_to_a_good_or_a_typed_end(make_server: Callable[..., Server]) -> None:
    server = make_server(max_sandboxes=4, max_queued_sandboxes=8)
    Sandbox.run(base_url=server.url).stop().result()
    before = facts(server)
    environment = {**os.environ, "AVIATO_BASE_URL": server.url}

    def clients(count: int, patience: float) -> list[subprocess.Popen[str]]:
        command = [sys.executable, "-W", "error", "-c", STORM, "10", str(patience)]
        return [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(count)]

    counts = []
    for client in [*clients(3, 60), *clients(1, 0.5)]:
        counts.append(json.loads(client.communicate(timeout=250)[0]))
        assert client.returncode == 0
    assert counts[:3] == [{"ok": 10, "infrastructure": 0}] * 3
    refused = counts[3].get("SandboxResourceExhaustedError", 0)
    assert counts[3] == {k: v for k, v in {"ok": 10 - refused, "SandboxResourceExhaustedError": refused}.items() if v} | {
        "infrastructure": refused
    }
    until(lambda: facts(server)[:3] == before[:3])
    until(lambda: facts(server)[3] <= before[3] + 4)  # The store opens one more now and then.


def facts(server: Server) -> tuple[int, int, int, int]:
    """How many sandboxes, places in the queue, directories and descriptors a server has."""
    found = health(server)
    directories = len(os.listdir(Path(server.state_dir) / "serve" / "sandboxes"))
    return found["live_sandboxes"], found["pending_sandboxes"], directories, len(os.listdir(f"/proc/{server.pid}/fd"))
