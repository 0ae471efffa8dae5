"""Commands that the Unix socket's door answers, and what goes on to aiohttp: on the real backend."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
from pathlib import Path
from urllib.parse import urlencode

import pytest

from aviato import AsyncClient
from aviato.server import door
from aviato.server.backends.registry import make_backend
from aviato.server.routes import short, streaming
from aviato.transport.memory import F_ADD_SEALS
from aviato.wire.frames import FrameDecoder, FrameType
from aviato.wire.ids import new_exec_id, new_sandbox_id
from aviato.wire.memory import BYTES_HEADER, MEMORY_HEADER, READY, SEALS, SIZE
from aviato.wire.version import KEY_HEADER, PID_HEADER, WIRE_HEADER, WIRE_VERSION

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


def file_request(method, sandbox_id, path, content=None, *, host="localhost", key=None, memory=None, **query):
    """As our client says it."""
    head = f"{method} /v1/sandboxes/{sandbox_id}/files?{urlencode({'path': path, **query})} HTTP/1.1\r\nHost: {host}\r\n"
    head += f"{WIRE_HEADER}: {WIRE_VERSION}\r\n"
    if key is not None:
        head += f"{KEY_HEADER}: {key}\r\n"
    if memory is not None:
        head += f"{MEMORY_HEADER}: {memory}\r\n"
    if content is not None:
        head += f"Content-Type: application/octet-stream\r\nContent-Length: {len(content)}\r\n"
    return f"{head}\r\n".encode() + (content or b"")


class Lent:
    """Memory of this process, which is the one that connects."""

    def __init__(self, content=b""):
        secret = secrets.token_hex(16)
        self.fd = os.memfd_create(f"aviato-{secret}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, SIZE)
        fcntl.fcntl(self.fd, F_ADD_SEALS, SEALS)
        os.pwrite(self.fd, content, 0)
        self.name = f"{self.fd}.{secret}"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.fd)


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
    monkeypatch.setattr(streaming, "HOLD_BACK_SECONDS", 5.0)


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


async def test_what_says_nothing_until_its_end_is_answered_once(server, connect, monkeypatch):
    monkeypatch.setattr(streaming, "HOLD_BACK_SECONDS", 0.5)
    monkeypatch.setattr(streaming, "QUIET_SECONDS", 10.0)
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    status, headers, body = await connection.ask(request_of(sandbox_id, "sh", "-c", "sleep 1; exit 3"))
    assert (status, by_door(headers), result_of(body)) == (200, True, (b"", 3))
    status, headers, body = await connection.ask(request_of(sandbox_id, "/nowhere/x"))
    assert (status, by_door(headers), result_of(body)[1]) == (200, True, 127)


@pytest.mark.parametrize(
    ("says", "quiet_seconds", "fields"),
    [
        ("echo a;", 30.0, {}),
        ("echo a >&2;", 30.0, {}),
        ("", 0.03, {}),
        ("", 30.0, {"stdin": True}),
        ("", 30.0, {"detach": True}),
    ],
)
async def test_what_goes_on_is_heard_of_before(server, connect, monkeypatch, says, quiet_seconds, fields):
    monkeypatch.setattr(streaming, "QUIET_SECONDS", quiet_seconds)
    sandbox_id = (await server.running())["sandbox_id"]
    connection, other = await connect(), await connect()
    connection.send(request_of(sandbox_id, "sh", "-c", f"{says} until [ -e go ]; do sleep 0.01; done", **fields))
    async with asyncio.timeout(10):
        head = await connection.reader.readuntil(b"\r\n\r\n")
        begun = await connection.reader.readuntil(b"started_at")
    assert b"chunked" in head
    assert begun
    assert (await other.ask(file_request("PUT", sandbox_id, "go", b"", key="k")))[0] == 204


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
    assert not server.desk.connection_limit._busy


async def test_what_nobody_goes_on_with_is_closed(server, connect, monkeypatch):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    with monkeypatch.context() as patched:
        patched.setattr(server.desk.connection_limit, "begin", refuse)
        status, _, _ = await connection.ask(request_of(sandbox_id, "sleep", "0.1"))
        assert status == 500
        assert server.desk.begun
    status, _, body = await connection.ask(request_of(sandbox_id, "echo", "x"))
    assert (status, result_of(body)) == (200, (b"x\n", 0))
    assert not server.desk.begun and not server.service.execs.feeds
    with monkeypatch.context() as patched:
        patched.setattr(server.desk.connection_limit, "begin", refuse)
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
    connection, other = await connect(), await connect()
    waits = "until [ -e /tmp/go ]; do sleep 0.01; done; echo x"
    connection.send(request_of(sandbox_id, "sh", "-c", waits))
    await until(lambda: server.desk.answering)
    closing = asyncio.ensure_future(server.desk.close(5))
    await other.ask(request_of(sandbox_id, "touch", "/tmp/go", host="other"))
    await closing
    assert result_of((await connection.answer())[2]) == (b"x\n", 0)


async def test_small_files_are_answered_at_the_door(server, connect):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    for path, content in (
        ("a", b"x" * 1000),
        ("d/ü +%&=", b"\0\n\r\n\r\n"),
        ("a", b""),
        ("/tmp/\udc80".encode("utf-8", "replace"), b"y"),
    ):
        written = file_request("PUT", sandbox_id, path, content, key=secrets.token_hex(8), mode="640")
        status, headers, body = await connection.ask(written)
        assert (status, by_door(headers), body) == (204, True, b"")
        found = [await connection.ask(file_request("GET", sandbox_id, path, host=host)) for host in ("localhost", "other")]
        assert [(status, by_door(headers), body) for status, headers, body in found] == [
            (200, True, content),
            (200, False, content),
        ]
        ours, theirs = ({n: v for n, v in headers.items() if n not in ("Date", "Server")} for _, headers, _ in found)
        assert ours == theirs and ours["Aviato-File-Mode"] == "640"
    # Large ones are not.
    large = b"z" * 300_000
    assert (await connection.ask(file_request("PUT", sandbox_id, "large", large, key="k1")))[0] == 204
    status, headers, body = await connection.ask(file_request("GET", sandbox_id, "large"))
    assert (status, by_door(headers), body) == (200, False, large)
    assert by_door((await connection.ask(file_request("GET", sandbox_id, "a")))[1])


async def test_errors_of_files_are_the_same(server, connect):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()

    async def both(method, path, *more, where=sandbox_id, **fields):
        found = []
        for host in ("localhost", "other"):
            status, headers, body = await connection.ask(file_request(method, where, path, *more, host=host, **fields))
            error = json.loads(body)["error"]
            found.append((status, headers["Content-Type"], error["code"], error["reason"], error.get("filepath")))
            if host == "localhost":
                door_said = by_door(headers)
        assert found[0] == found[1]
        return found[0][0], found[0][3], door_said

    assert await both("GET", "not/there") == (422, "no_such_file", True)
    assert await both("GET", "/tmp") == (422, "is_a_directory", True)
    assert await both("PUT", "/tmp", b"x") == (422, "is_a_directory", True)
    assert (await both("PUT", "/usr/x", b"x", key="k"))[::2] == (422, True)
    assert await both("GET", "a", where=new_sandbox_id()) == (404, "sandbox_not_found", True)
    assert await both("PUT", "a", b"x", offset=1) == (400, "invalid", True)
    assert await both("PUT", "a", b"x", mode="9") == (400, "invalid", False)
    assert await both("GET", "") == (400, "invalid", False)
    assert await both("PUT", "a", READY, memory_bytes=10, memory="3." + "0" * 32) == (400, "memory", False)
    twice = file_request("GET", sandbox_id, "a").replace(b"?path=a", b"?path=a&path=b")
    assert (await connection.ask(twice))[0] == 400


async def test_a_file_by_memory(server, connect):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    content = os.urandom(300_000)
    for size in (300_000, 1, 0):
        with Lent(content) as lent:
            request = file_request("PUT", sandbox_id, "f", READY, key=secrets.token_hex(8), memory=lent.name, memory_bytes=size)
            connection.send(request[:-1])
            await until(lambda: server.desk.answering)
            await asyncio.sleep(0.05)
            assert server.desk.answering
            # And the next request at once, which is not how our client does it.
            connection.send(READY + request_of(sandbox_id, "wc", "-c", "f"))
            status, headers, _ = await connection.answer()
            assert (status, by_door(headers)) == (204, True)
            os.pwrite(lent.fd, bytes(len(content)), 0)
            assert result_of((await connection.answer())[2])[0] == b"%d f\n" % size
            status, headers, body = await connection.ask(file_request("GET", sandbox_id, "f", memory=lent.name))
            assert (status, by_door(headers), BYTES_HEADER in headers) == (200, True, size > 1)
            assert (body or os.pread(lent.fd, int(headers.get(BYTES_HEADER, 0)), 0)) == content[:size]
            whole = file_request("PUT", sandbox_id, "g", READY, key=secrets.token_hex(8), memory=lent.name, memory_bytes=size)
            assert (await connection.ask(whole))[0] == 204


@pytest.mark.parametrize(("there", "path", "expected"), [(True, "/tmp", 422), (False, "f", 404)])
async def test_an_error_comes_behind_what_follows_the_head(server, connect, there, path, expected):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    where = sandbox_id if there else new_sandbox_id()
    with Lent(b"x") as lent:
        connection.send(file_request("PUT", where, path, READY, key="k", memory=lent.name, memory_bytes=1)[:-1])
        with pytest.raises(TimeoutError):
            await connection.answer(0.2)
        connection.send(READY)
        status, headers, _ = await connection.answer()
        assert (status, by_door(headers)) == (expected, True)
    assert by_door((await connection.ask(file_request("GET", sandbox_id, "f")))[1])


def test_only_heads_of_our_own_client_are_known():
    sandbox_id = new_sandbox_id()
    name = f"7.{'a' * 32}"
    good = [
        head_of(sandbox_id, 5),
        file_request("GET", sandbox_id, "a b/ü", memory=name),
        file_request("PUT", sandbox_id, "a", b"x", key="k", mode="644"),
        file_request("PUT", sandbox_id, "a", READY, key="k", memory=name, memory_bytes=3),
    ]
    heads = [request.partition(b"\r\n\r\n")[0] + b"\r\n" for request in good]
    assert [short.read_head(head).kind for head in heads] == [short.EXEC, short.READ, short.WRITE, short.WRITE]
    assert [short.read_head(head).size_bytes for head in heads] == [5, 0, 1, 1]
    assert [short.read_head(head).is_followed for head in heads] == [False, False, False, True]
    assert short.read_head(heads[1]).query.path == "a b/ü"
    wrong = [
        heads[0].replace(b"HTTP/1.1", b"HTTP/1.0"),
        heads[0].replace(b"localhost", b"localhost:80"),
        heads[0].replace(b"Content-Length", b"content-length"),
        heads[0].replace(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        heads[0].replace(b"Content-Length: 5", b"Content-Length: +5"),
        heads[0].replace(b"Content-Length: 5", b"Content-Length: 5000000"),
        heads[0].replace(b"Aviato-Wire: 1", b"Aviato-Wire: 2"),
        heads[0].replace(b"json", b"text"),
        heads[0].replace(b"Content-Type", b"Aviato-Memory: " + name.encode() + b"\r\nContent-Type"),
        heads[0].replace(b"Content-Type", b"Idempotency-Key: k\r\nContent-Type"),
        heads[0].replace(b"/execs", b"/execs?detach=1"),
        heads[0].replace(b"sb-", b"sb_"),
        heads[0] + b"Connection: close\r\n",
        heads[0] + b" folded\r\n",
        heads[1].replace(b"GET", b"HEAD"),
        heads[1].replace(b"?path", b"?offset=0&paths"),
        heads[1].replace(b"path=", b"path=x&path="),
        heads[1].replace(b"path=a", b"path=%ff"),
        heads[1].replace(b"path=a", b"path=\xff"),
        heads[2].replace(b"octet-stream", b"json"),
        heads[2].replace(b"mode=644", b"mode=9"),
    ]
    assert all(head not in heads and short.read_head(head) is None for head in wrong)


async def test_a_writer_that_goes_leaves_what_was_there(server, connect):
    sandbox_id = (await server.running())["sandbox_id"]
    connection = await connect()
    assert (await connection.ask(file_request("PUT", sandbox_id, "f", b"old", key="k0")))[0] == 204
    with Lent(b"new") as lent:
        connection.send(file_request("PUT", sandbox_id, "f", READY, key="k1", memory=lent.name, memory_bytes=3)[:-1])
        await until(lambda: server.desk.answering)
        await asyncio.sleep(0.05)
        connection.writer.transport.abort()
        await until(lambda: not server.desk.answering)
    assert not server.desk.connection_limit._busy
    status, _, body = await (await connect()).ask(file_request("GET", sandbox_id, "f"))
    assert (status, body) == (200, b"old")
    assert result_of((await (await connect()).ask(request_of(sandbox_id, "ls", "-A")))[2])[0] == b"f\n"


async def test_our_own_client_writes_and_reads_at_the_door(server, folder, monkeypatch):
    said = []
    monkeypatch.setattr(server.desk, "answer", lambda *what, answer=server.desk.answer: said.append(what) or answer(*what))
    async with AsyncClient(base_url=f"unix://{folder.path}/sock") as client, await client.sandbox() as sandbox:
        for size in (0, 100, 1 << 20, 1 << 20, 1 << 20):
            content = os.urandom(size)
            await sandbox.write_file("f", content)
            assert await sandbox.read_file("f") == content
    kinds = [status for status, *_ in said]
    assert kinds.count("204 No Content") >= 3 and kinds.count("200 OK") >= 3
