"""Commands that the Unix socket's door answers, and what goes on to aiohttp: on the real backend."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from aviato import AsyncClient
from aviato.server import door
from aviato.server.backends.registry import make_backend
from aviato.wire.frames import FrameDecoder, FrameType
from aviato.wire.ids import new_exec_id, new_sandbox_id
from aviato.wire.version import PID_HEADER, WIRE_HEADER, WIRE_VERSION

pytestmark = pytest.mark.anyio


@pytest.fixture
def tmp_path(passable_path):
    return passable_path


@pytest.fixture
def backend(folder):
    return make_backend("local", directory=Path(folder.path))


def head_of(sandbox_id, size, *, host="localhost", path="execs"):
    return (
        f"POST /v1/sandboxes/{sandbox_id}/{path} HTTP/1.1\r\nHost: {host}\r\n{WIRE_HEADER}: {WIRE_VERSION}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    ).encode()


def request_of(sandbox_id, *command, host="localhost", **fields):
    """As our client says it; with another host it is a stranger's."""
    body = json.dumps({"exec_id": new_exec_id(), "command": list(command), **fields}).encode()
    return head_of(sandbox_id, len(body), host=host) + body


class Connection:
    """One, by hand."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        self.writer.transport.abort()

    def send(self, data):
        self.writer.write(data)

    async def answer(self, seconds=20):
        """Status, headers and body of one."""
        async with asyncio.timeout(seconds):
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode()[:-4].split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines)
            status = int(first.split()[1])
            if status == 204:
                body = b""
            elif "Content-Length" in headers:
                body = await self.reader.readexactly(int(headers["Content-Length"]))
            else:
                body, size = b"", -1
                while size:
                    size = int(await self.reader.readuntil(b"\r\n"), 16)
                    body += (await self.reader.readexactly(size + 2))[:-2]
        return status, headers, body

    async def ask(self, data):
        self.send(data)
        return await self.answer()


@pytest.fixture
async def connect(server, folder):
    """Makes connections that were let in: the first request of each goes to aiohttp."""
    opened = []

    async def make():
        connection = Connection()
        connection.reader, connection.writer = await asyncio.open_unix_connection(f"{folder.path}/sock")
        opened.append(connection)
        status, headers, _ = await connection.ask(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (status, by_door(headers)) == (200, False)
        return connection

    yield make
    for connection in opened:
        connection.writer.transport.abort()


@pytest.fixture
def patient(monkeypatch):
    """A machine that is busy takes longer for what ends at once."""
    monkeypatch.setattr(door, "HOLD_BACK_SECONDS", 5.0)


def by_door(headers):
    """aiohttp says more of itself."""
    return "Server" not in headers


def result_of(body):
    frames = FrameDecoder().feed(body)
    printed = b"".join(one.payload for one in frames if one.type == FrameType.DATA)
    assert frames[-1].type == FrameType.EXIT
    return printed, json.loads(frames[-1].payload)["returncode"]


async def until(condition, seconds=10):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0)


async def test_what_ends_at_once_is_answered_at_the_door(server, connect, patient):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    for number in range(3):
        status, headers, body = await connection.ask(request_of(sandbox_id, "sh", "-c", f"echo {number}; exit {number}"))
        assert (status, by_door(headers)) == (200, True)
        assert (headers[WIRE_HEADER], headers[PID_HEADER]) == (str(WIRE_VERSION), str(os.getpid()))
        assert result_of(body) == (b"%d\n" % number, number)
    assert not server.service.execs.feeds and not server.desk.answering
    status, headers, body = await connection.ask(request_of(sandbox_id, "echo", "x", host="other"))
    assert (status, by_door(headers), result_of(body)) == (200, False, (b"x\n", 0))


async def test_what_takes_longer_goes_on_with_what_it_has_said(server, connect):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    status, headers, body = await connection.ask(request_of(sandbox_id, "sh", "-c", "echo a; sleep 0.2; echo b; exit 3"))
    assert (status, by_door(headers), result_of(body)) == (200, False, (b"a\nb\n", 3))
    kinds = [frame.type for frame in FrameDecoder().feed(body)]
    assert (kinds.count(FrameType.ACCEPTED), kinds.count(FrameType.STARTED)) == (1, 1)
    large = "import os; os.write(1, b'x' * 400_000)"
    status, _, body = await connection.ask(request_of(sandbox_id, "python3", "-c", large))
    assert (status, result_of(body)) == (200, (b"x" * 400_000, 0))
    # And the connection is as good as before.
    status, headers, body = await connection.ask(request_of(sandbox_id, "echo", "c"))
    assert (status, result_of(body)) == (200, (b"c\n", 0))


async def test_errors_are_the_same(server, connect, patient):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()

    async def both(body):
        """What the door answers, and aiohttp by itself; a command has an id of its own in each."""
        found = []
        for host in ("localhost", "other"):
            said = {**body, "exec_id": new_exec_id()} if isinstance(body, dict) and "exec_id" not in body else body
            data = json.dumps(said).encode() if isinstance(said, dict) else said
            status, headers, answer = await connection.ask(head_of(where, len(data), host=host) + data)
            error = json.loads(answer)["error"]
            # What the sandbox itself says is answered where it was asked.
            assert by_door(headers) == (host == "localhost" and status == 422)
            found.append((status, headers["Content-Type"], error["code"], error["reason"], error["is_infrastructure"]))
        assert found[0] == found[1]
        return found[0][0]

    where = sandbox_id
    assert await both(b"{") == 400
    assert await both({"command": []}) == 400
    assert await both({"command": ["true"], "working_dir": "not/absolute"}) == 400
    assert await both({"command": ["true"], "working_dir": "/not/there"}) == 422
    used = {"exec_id": new_exec_id(), "command": ["true"]}
    data = json.dumps(used).encode()
    assert (await connection.ask(head_of(where, len(data)) + data))[0] == 200
    assert await both({**used, "command": ["false"]}) == 409
    where = new_sandbox_id()
    assert await both({"command": ["true"]}) == 404
    where = (await server.running())["sandbox_id"]
    await server.call("POST", f"/v1/sandboxes/{where}/stop", body={"graceful_shutdown_seconds": 0}, expect=200)
    await server.wait(where, "ended")
    assert await both({"command": ["true"]}) in (404, 409)
    assert not server.service.execs.feeds


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.012, 0.05])
async def test_a_caller_that_goes_leaves_nothing(server, connect, seconds):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    connection.send(request_of(sandbox_id, "sleep", "0.1"))
    await until(lambda: server.desk.answering)
    await asyncio.sleep(seconds)
    connection.writer.transport.abort()
    await until(lambda: not server.service.execs.feeds and not server.desk.begun and not server.desk.answering)
    assert not server.desk.crowd._busy


async def test_what_nobody_goes_on_with_is_closed(server, connect, monkeypatch):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    with monkeypatch.context() as patched:
        patched.setattr(server.desk.crowd, "begin", refuse)
        status, _, _ = await connection.ask(request_of(sandbox_id, "sleep", "0.1"))
        assert status == 500
        assert server.desk.begun
    status, _, body = await connection.ask(request_of(sandbox_id, "echo", "x"))
    assert (status, result_of(body)) == (200, (b"x\n", 0))
    assert not server.desk.begun and not server.service.execs.feeds
    with monkeypatch.context() as patched:
        patched.setattr(server.desk.crowd, "begin", refuse)
        assert (await connection.ask(request_of(sandbox_id, "sleep", "0.1")))[0] == 500
    assert server.desk.begun
    connection.writer.transport.abort()
    await until(lambda: not server.desk.begun and not server.service.execs.feeds)


def refuse(request, caller):
    raise RuntimeError("no room")


async def test_requests_one_behind_the_other_are_answered_in_turn(server, connect):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    first, *more = (request_of(sandbox_id, "sh", "-c", f"sleep {s}; echo {s}") for s in (0, 0.05, 0, 0.05))
    connection.send(first)
    await until(lambda: server.desk.answering)
    for request in more:
        connection.send(request)
    said = [result_of((await connection.answer())[2])[0] for _ in range(4)]
    assert said == [b"0\n", b"0.05\n", b"0\n", b"0.05\n"]
    connection.send(first + request_of(sandbox_id, "echo", "y"))  # The first has ended: it is what it was.
    assert [result_of((await connection.answer())[2])[0] for _ in range(2)] == [b"0\n", b"y\n"]


async def test_pieces_of_a_request_belong_together(server, connect, patient):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    request = request_of(sandbox_id, "echo", "x")
    for cut in (1, 40, request.index(b"\r\n\r\n") + 2, len(request) - 3):
        fresh = request_of(sandbox_id, "echo", f"{cut:04}")
        connection.send(fresh[:cut])
        await asyncio.sleep(0.05)
        connection.send(fresh[cut:])
        status, headers, body = await connection.answer()
        assert (status, by_door(headers), result_of(body)) == (200, False, (b"%04d\n" % cut, 0))
        assert by_door((await connection.ask(request_of(sandbox_id, "true")))[1])


async def test_a_body_that_looks_like_a_request_is_a_body(server, connect):
    sandbox_id = (await server.running())["sandbox_id"]
    connection, other = await connect(), await connect()
    exec_id = new_exec_id()
    body = json.dumps({"exec_id": exec_id, "command": ["cat"], "stdin": True}).encode()
    other.send(head_of(sandbox_id, len(body)) + body)
    await until(lambda: exec_id in server.service.registry.live[sandbox_id].execs)
    text = request_of(sandbox_id, "touch", "/tmp/never")
    connection.send(head_of(sandbox_id, len(text), path=f"execs/{exec_id}/stdin?eof=1"))
    await asyncio.sleep(0.1)
    connection.send(text)
    assert (await connection.answer())[0] == 204
    assert result_of((await other.answer())[2]) == (text, 0)
    assert result_of((await connection.ask(request_of(sandbox_id, "ls", "/tmp/never")))[2])[1] != 0
    # The same before the head is whole: it is a field of that head.
    connection.send(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX: ")
    await asyncio.sleep(0.1)
    connection.send(request_of(sandbox_id, "touch", "/tmp/never"))
    assert not by_door((await connection.answer())[1])
    assert result_of((await (await connect()).ask(request_of(sandbox_id, "ls", "/tmp/never")))[2])[1] != 0


async def test_our_own_client_is_answered_at_the_door(server, folder, monkeypatch, patient):
    said = []
    monkeypatch.setattr(server.desk, "whole", lambda frames, whole=server.desk.whole: said.append(frames) or whole(frames))
    async with AsyncClient(base_url=f"unix://{folder.path}/sock") as client, await client.sandbox() as sandbox:
        for number in range(5):
            assert (await sandbox.exec(["echo", str(number)])).stdout == f"{number}\n"
    assert len(said) >= 4  # The first request of a connection goes to aiohttp.


async def test_only_who_was_let_in_is_answered(server, folder, connect, patient):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    assert by_door((await connection.ask(request_of(sandbox_id, "true")))[1])
    server.desk.guard._known.clear()
    assert not by_door((await connection.ask(request_of(sandbox_id, "true")))[1])
    assert by_door((await connection.ask(request_of(sandbox_id, "true")))[1])


async def test_aiohttp_hears_of_a_connection_now_and_then(server, connect, monkeypatch, patient):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    assert by_door((await connection.ask(request_of(sandbox_id, "true")))[1])
    monkeypatch.setattr(door, "AIOHTTP_SECONDS", 0.0)
    assert not by_door((await connection.ask(request_of(sandbox_id, "true")))[1])


async def test_heads_are_not_remembered_without_end(server, connect, monkeypatch, patient):
    monkeypatch.setattr(door, "MOST_HEADS", 3)
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    for size in range(1, 20):
        _, headers, body = await connection.ask(request_of(sandbox_id, "echo", "x" * size))
        assert by_door(headers) and result_of(body)[0] == b"x" * size + b"\n"
        assert len(server.desk._heads) <= 3


async def test_a_server_that_goes_answers_what_is_at_the_door(server, connect, patient):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    connection.send(request_of(sandbox_id, "echo", "x"))
    await until(lambda: server.desk.answering)
    await server.desk.close(5)
    assert result_of((await connection.answer())[2]) == (b"x\n", 0)
