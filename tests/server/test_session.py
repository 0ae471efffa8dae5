"""The server's end of sessions: on the real backend, and beside what HTTP answers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import secrets
import socket
from pathlib import Path

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.registry import make_backend
from aviato.server.operations import exec_stream, execs
from aviato.server.operations.reply import Reply
from aviato.server.service.secrets import Secrets
from aviato.wire.frames import FrameDecoder, FrameType, encode
from aviato.wire.ids import new_exec_id, new_sandbox_id
from aviato.wire.session import PIECE_BYTES, WHOLE, WINDOW_BYTES
from aviato.wire.shared_memory import BYTES_HEADER, GONE, MEMORY_HEADER, READY, RECORD, SEALS, SHARED, SIZE
from aviato.wire.version import PID_HEADER, WIRE_HEADER
from tests.server.frames import Session, Shared, Sharing, exec_body, exec_line, file_line, keyed, result_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def tmp_path(passable_path):
    return passable_path


@pytest.fixture
def backend(folder):
    return make_backend("local", directory=Path(folder.path))


@pytest.fixture
async def connect(server, folder):
    """Makes sessions."""
    opened = []

    async def make():
        session = await Session(f"{folder.path}/sock").__aenter__()
        opened.append(session)
        return session

    yield make
    for session in opened:
        await session.__aexit__()


@pytest.fixture
async def session(connect):
    return await connect()


@pytest.fixture
def patient(monkeypatch):
    """A machine that is busy takes longer for what ends at once."""
    monkeypatch.setattr(exec_stream, "HOLD_BACK_SECONDS", 5.0)


async def until(condition, seconds=10):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0)


def busy(server):
    return [one for one in server.connections.all() if server.connection_limit.is_busy(one)]


def answering(server):
    return [task for session in server.sessions._open for task in session.answering]


async def http(server, line, body=b"", headers=None):
    """The same by HTTP."""
    method, path = line.split(" ")
    async with server.http.request(
        method, server.base + path, data=io.BytesIO(body) if body else None, headers=headers
    ) as response:
        return response.status, response.headers, await response.read()


async def test_its_begin_says_who_answers(session):
    assert f"\r\n{PID_HEADER}: {os.getpid()}\r\n" in session.head and f"\r\n{WIRE_HEADER}: 1\r\n" in session.head


async def test_what_ends_at_once_is_answered_in_one_frame(server, session, patient):
    sandbox_id = (await server.running())["sandbox_id"]
    for number in range(3):
        channel = session.open(exec_line(sandbox_id), exec_body("sh", "-c", f"echo {number}; exit {number}"))
        frame = await session.next(channel)
        assert (frame.type, frame.stream) == (FrameType.ANSWER, WHOLE)
        assert result_of(frame.payload[frame.offset :]) == (b"%d\n" % number, number)
    assert not server.service.execs.feeds and not answering(server)


async def test_what_takes_longer_goes_on_with_what_it_has_said(server, session):
    sandbox_id = (await server.running())["sandbox_id"]
    status, _, body = await session.ask(exec_line(sandbox_id), exec_body("sh", "-c", "echo a; sleep 0.2; echo b; exit 3"))
    assert (status, result_of(body)) == (200, (b"a\nb\n", 3))
    kinds = [frame.type for frame in FrameDecoder().feed(body)]
    assert (kinds.count(FrameType.ACCEPTED), kinds.count(FrameType.STARTED)) == (1, 1)
    large = "import os; os.write(1, b'x' * 400_000)"
    status, _, body = await session.ask(exec_line(sandbox_id), exec_body("python3", "-c", large))
    assert (status, result_of(body)) == (200, (b"x" * 400_000, 0))


async def test_what_says_nothing_until_its_end_is_answered_once(server, session, monkeypatch):
    monkeypatch.setattr(exec_stream, "HOLD_BACK_SECONDS", 0.5)
    monkeypatch.setattr(exec_stream, "QUIET_SECONDS", 10.0)
    sandbox_id = (await server.running())["sandbox_id"]
    for command, returncode in ((("sh", "-c", "sleep 1; exit 3"), 3), (("/nowhere/x",), 127)):
        frame = await session.next(session.open(exec_line(sandbox_id), exec_body(*command)))
        assert (frame.type, frame.stream) == (FrameType.ANSWER, WHOLE)
        assert result_of(frame.payload[frame.offset :])[1] == returncode


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
async def test_what_goes_on_is_heard_of_before(server, session, monkeypatch, says, quiet_seconds, fields):
    monkeypatch.setattr(exec_stream, "QUIET_SECONDS", quiet_seconds)
    sandbox_id = (await server.running())["sandbox_id"]
    body = exec_body("sh", "-c", f"{says} until [ -e go ]; do sleep 0.01; done", **fields)
    channel = session.open(exec_line(sandbox_id), body)
    assert (await session.next(channel)).stream != WHOLE
    while b"started_at" not in (await session.next(channel)).payload:
        pass
    assert (await session.ask(file_line("PUT", sandbox_id, "go"), headers=keyed("k")))[0] == 204
    while (await session.next(channel)).type != FrameType.END:
        pass


async def test_errors_are_those_of_http(server, session, patient):
    running = (await server.running())["sandbox_id"]
    ended = (await server.running())["sandbox_id"]
    await server.call("POST", f"/v1/sandboxes/{ended}/stop", body={"graceful_shutdown_seconds": 0}, expect=200)
    await server.wait(ended, "ended")
    used = exec_body("true")
    assert (await session.ask(exec_line(running), used))[0] == 200
    other = used.replace(b"true", b"false")
    name = f"3.{'0' * 32}"
    kinds = [
        (400, exec_line(running), b"{", {}),
        (400, exec_line(running), exec_body(), {}),
        (400, exec_line(running), exec_body("true", working_dir="not/absolute"), {}),
        (422, exec_line(running), exec_body("true", working_dir="/not/there"), {}),
        (409, exec_line(running), other, {}),
        (404, exec_line(new_sandbox_id()), exec_body("true"), {}),
        (None, exec_line(ended), exec_body("true"), {}),
        (400, f"{exec_line(running)}?detach=1", exec_body("true"), {}),
        (422, file_line("GET", running, "not/there"), b"", {}),
        (422, file_line("GET", running, "/tmp"), b"", {}),
        (422, file_line("PUT", running, "/tmp"), b"x", {}),
        (422, file_line("PUT", running, "/usr/x"), b"x", keyed("k")),
        (400, file_line("PUT", running, "a"), b"x", keyed("no key")),
        (404, file_line("GET", new_sandbox_id(), "a"), b"", {}),
        (400, file_line("PUT", running, "a", offset=1), b"x", {}),
        (400, file_line("PUT", running, "a", mode="9"), b"x", {}),
        (400, file_line("GET", running, ""), b"", {}),
        (400, file_line("PUT", running, "a", memory_bytes=10), READY, {MEMORY_HEADER: name}),
        (400, f"GET /v1/sandboxes/{running}/files?path=a&path=b", b"", {}),
        (422, f"GET /v1/sandboxes/{running}/files?path=%ff", b"", {}),
        (400, "POST /v1/sandboxes", b"{", {}),
        (400, "POST /v1/sandboxes", json.dumps({"sandbox_id": new_sandbox_id(), "tags": ["x" * 10_000]}).encode(), {}),
        (404, f"POST /v1/sandboxes/{new_sandbox_id()}/stop", b"{}", {}),
        (404, "GET /v1/nothing", b"", {}),
        (404, "GET /", b"", {}),
        (404, "GET //v1/health", b"", {}),
        (405, "DELETE /v1/health", b"", {}),
    ]
    for status, line, body, headers in kinds:
        ours, theirs = await session.ask(line, body, headers=headers), await http(server, line, body, headers)
        said = [json.loads(answer[2])["error"] for answer in (ours, theirs)]
        assert ours[0] == theirs[0] and status in (None, ours[0]), (line, ours, theirs)
        assert said[0] == said[1], line
        assert ours[1]["Content-Type"] == theirs[1]["Content-Type"].partition(";")[0]
    assert not server.service.execs.feeds


async def test_an_error_that_says_when_to_come_again(server, session, monkeypatch):
    await server.service.ready()
    monkeypatch.setattr(server.service.registry, "unable", SandboxUnavailableError("not here", retry_delay_seconds=7.0))
    status, headers, _ = await session.ask("POST /v1/sandboxes", json.dumps({"sandbox_id": new_sandbox_id()}).encode())
    assert (status, headers["Retry-After"]) == (503, "7")


async def test_a_fault_of_the_servers_own_is_said(server, session, monkeypatch):
    async def fail(*arguments, **options):
        raise RuntimeError("a fault")

    monkeypatch.setattr(server.service.execs, "start", fail)
    sandbox_id = (await server.running())["sandbox_id"]
    status, _, body = await session.ask(exec_line(sandbox_id), exec_body("true"))
    error = json.loads(body)["error"]
    assert (status, error["reason"], error["is_infrastructure"]) == (500, "internal", True)


async def test_a_sandbox_is_made_and_ended(server, session):
    fields = {"sandbox_id": new_sandbox_id(), "lease_id": server.lease_id}
    body = json.dumps(fields).encode()
    status, headers, said = await session.ask("POST /v1/sandboxes", body)
    assert (status, headers["Content-Type"]) == (201, "application/json")
    assert json.loads(said)["status"] in ("pending", "starting")
    status, _, said = await session.ask("POST /v1/sandboxes", body)
    assert (status, json.loads(said)["sandbox_id"]) == (200, fields["sandbox_id"])
    running = await server.wait(fields["sandbox_id"], "running")
    assert running == await server.call("POST", "/v1/sandboxes", body=fields, expect=200)
    for _ in range(2):
        stop = f"POST /v1/sandboxes/{fields['sandbox_id']}/stop"
        status, _, said = await session.ask(stop, b'{"graceful_shutdown_seconds": 0}')
        assert status == 200 and json.loads(said) == await server.wait(fields["sandbox_id"], "ended")


async def test_secrets_are_found(server, session, monkeypatch):
    monkeypatch.setattr(server.service.sandboxes, "_secrets", Secrets({"WORD": "a word"}, None))
    secret = {"store": "env", "name": "WORD", "env_var": "TOKEN"}
    fields = {"sandbox_id": new_sandbox_id(), "lease_id": server.lease_id, "secrets": [secret]}
    assert (await session.ask("POST /v1/sandboxes", json.dumps(fields).encode()))[0] == 201
    _, _, body = await session.ask(exec_line(fields["sandbox_id"]), exec_body("sh", "-c", 'test "$TOKEN" = "a word"'))
    assert result_of(body)[1] == 0


async def test_requests_beside_each_other_are_answered_as_they_end(server, session):
    sandbox_id = (await server.running())["sandbox_id"]
    slow = session.open(exec_line(sandbox_id), exec_body("sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo slow"))
    for number in range(20):
        assert result_of((await session.ask(exec_line(sandbox_id), exec_body("echo", str(number))))[2])[0] == b"%d\n" % number
    assert (await session.ask(file_line("PUT", sandbox_id, "go"), headers=keyed("k")))[0] == 204
    assert result_of((await session.answer(slow))[2]) == (b"slow\n", 0)


async def test_many_at_once(server, session):
    async def one():
        fields = {"sandbox_id": new_sandbox_id(), "lease_id": server.lease_id}
        assert (await session.ask("POST /v1/sandboxes", json.dumps(fields).encode()))[0] == 201
        ran = await session.ask(exec_line(fields["sandbox_id"]), exec_body("true"))
        stop = f"POST /v1/sandboxes/{fields['sandbox_id']}/stop"
        return result_of(ran[2])[1], (await session.ask(stop, b'{"graceful_shutdown_seconds": 0}'))[0]

    assert await asyncio.gather(*(one() for _ in range(12))) == [(0, 200)] * 12


@pytest.mark.parametrize("how", ["cut", "gone"])
@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.012, 0.05])
async def test_a_caller_that_goes_leaves_nothing(server, session, seconds, how):
    sandbox_id = (await server.running())["sandbox_id"]
    channel = session.open(exec_line(sandbox_id), exec_body("sleep", "0.1"))
    await until(lambda: answering(server))
    await asyncio.sleep(seconds)
    if how == "gone":
        session.writer.transport.abort()
    else:
        session.cut(channel)
        while (await session.next(channel)).type != FrameType.CUT:
            pass
    await until(lambda: not server.service.execs.feeds and not answering(server) and not busy(server))
    if how == "cut":
        # Its number is as good as any other.
        session.open(exec_line(sandbox_id), exec_body("echo", "x"), channel=channel)
        assert result_of((await session.answer(channel))[2]) == (b"x\n", 0)


async def test_an_answer_in_spite_of_a_cut_is_nobody_s(server, session, monkeypatch):
    """Its number is another request's by then."""
    under_way, cut = asyncio.Event(), asyncio.Event()

    async def stubborn(*arguments, **options):
        under_way.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await cut.wait()

    async def pieces():
        yield b"of the first"

    sandbox_id = (await server.running())["sandbox_id"]
    monkeypatch.setattr(server.service.execs, "cancel_all", stubborn)
    monkeypatch.setattr(execs, "done", lambda: Reply(content_type="text/plain", pieces=pieces()))
    operation = next(one for one in execs.OPERATIONS if one.path.endswith("/execs/cancel"))
    assert operation.handler is execs.cancel_all
    channel = session.open(f"{exec_line(sandbox_id)}/cancel")
    await under_way.wait()
    session.cut(channel)
    assert (await session.next(channel)).type == FrameType.CUT
    again = session.open("GET /v1/health", channel=channel)
    status, _, body = await session.answer(again)
    assert status == 200 and b"of the first" not in body
    waiting = session.open(exec_line(sandbox_id), exec_body("sh", "-c", "sleep 0.3; echo x"), channel=channel)
    cut.set()
    assert result_of((await session.answer(waiting))[2]) == (b"x\n", 0)


async def test_a_caller_that_goes_has_asked_all_the_same(server, session):
    sandbox_id = (await server.running(command="sh", args=["-c", "trap '' TERM; while :; do sleep 1; done"]))["sandbox_id"]
    session.open(f"POST /v1/sandboxes/{sandbox_id}/stop", b'{"graceful_shutdown_seconds": 1}')
    await until(lambda: answering(server))
    session.writer.transport.abort()
    await until(lambda: not answering(server))
    assert (await server.wait(sandbox_id, "ended"))["status_reason"] == "stopped"


async def test_a_server_that_goes_answers_what_is_under_way(server, session, patient):
    sandbox_id = (await server.running())["sandbox_id"]
    waits = "until [ -e /tmp/go ]; do sleep 0.01; done; echo x"
    channel = session.open(exec_line(sandbox_id), exec_body("sh", "-c", waits))
    await until(lambda: answering(server))
    closing = asyncio.ensure_future(server.sessions.close(5))
    await server.exec(sandbox_id, "touch", "/tmp/go")
    await closing
    assert result_of((await session.answer(channel))[2]) == (b"x\n", 0)
    assert await session.next(channel) is None


async def test_contents_of_files(server, session):
    sandbox_id = (await server.running())["sandbox_id"]
    for path, content in (
        ("a", b"x" * 1000),
        ("d/ü +%&=", b"\0\n\r\n\r\n"),
        ("a", b""),
        ("/tmp/\udc80".encode("utf-8", "replace"), b"y"),
        ("large", os.urandom(3 * WINDOW_BYTES + 5)),
    ):
        channel = session.open(file_line("PUT", sandbox_id, path, mode="640"), headers=keyed(secrets.token_hex(8)), whole=False)
        credited = 0
        for at in range(0, len(content), PIECE_BYTES):
            while at - credited >= WINDOW_BYTES - PIECE_BYTES:
                frame = await session.next(channel)
                assert frame.type == FrameType.CREDIT and credited < frame.offset <= at
                credited = frame.offset
            session.data(channel, content[at : at + PIECE_BYTES], at)
        session.end(channel)
        while session.pending(channel) or (frame := await session.next(channel)).type == FrameType.CREDIT:
            frame = await session.next(channel)
            if frame.type != FrameType.CREDIT:
                break
        assert (frame.type, frame.payload[: frame.offset]) == (FrameType.ANSWER, b"204")
        ours, theirs = (
            await session.ask(file_line("GET", sandbox_id, path)),
            await http(server, file_line("GET", sandbox_id, path)),
        )
        assert (ours[0], ours[2]) == (200, content) == (theirs[0], theirs[2])
        assert ours[1]["Aviato-File-Mode"] == theirs[1]["Aviato-File-Mode"] == "640"
        assert ours[1]["Aviato-File-Version"] == theirs[1]["Aviato-File-Version"]


async def test_who_does_not_read_one_answer_gets_the_others(server, session):
    sandbox_id = (await server.running())["sandbox_id"]
    content = os.urandom(4 * WINDOW_BYTES)
    assert (await http(server, file_line("PUT", sandbox_id, "f"), content))[0] == 204
    slow = session.open(file_line("GET", sandbox_id, "f"))
    assert (await session.next(slow)).type == FrameType.ANSWER
    got = b""
    while len(got) < WINDOW_BYTES:
        got += (await session.next(slow)).payload
    for _ in range(3):
        assert result_of((await session.ask(exec_line(sandbox_id), exec_body("echo", "x")))[2])[0] == b"x\n"
    assert not session.pending(slow) and len(got) == WINDOW_BYTES
    while len(got) < len(content):
        session.credit(slow, len(got))
        got += (await session.next(slow)).payload
    assert got == content and (await session.next(slow)).type == FrameType.END


async def test_input_of_a_command_that_does_not_read_waits_with_its_sender(server, session):
    """Else a client could have a server hold any number of requests' whole bodies."""
    sandbox_id, exec_id = (await server.running())["sandbox_id"], new_exec_id()
    running = session.open(exec_line(sandbox_id), exec_body("sleep", "60", exec_id=exec_id, stdin=True))
    assert (await session.next(running)).type == FrameType.ANSWER
    writing = session.open(f"{exec_line(sandbox_id)}/{exec_id}/stdin?offset=0", whole=False)
    for at in range(0, WINDOW_BYTES, PIECE_BYTES):
        session.data(writing, bytes(PIECE_BYTES), at)
    for _ in range(3):
        assert result_of((await session.ask(exec_line(sandbox_id), exec_body("echo", "x")))[2])[0] == b"x\n"
    assert not session.pending(writing)
    assert (await session.ask(f"{exec_line(sandbox_id)}/{exec_id}/cancel"))[0] == 204
    session.end(writing)
    assert (await session.answer(writing))[0] == 409


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, 3 * WINDOW_BYTES + 1])
async def test_input_and_its_end_by_one_request(server, session, size):
    sandbox_id, exec_id, content = (await server.running())["sandbox_id"], new_exec_id(), os.urandom(size)
    running = session.open(exec_line(sandbox_id), exec_body("sha256sum", exec_id=exec_id, stdin=True))
    assert (await session.next(running)).type == FrameType.ANSWER
    assert (await http(server, f"{exec_line(sandbox_id)}/{exec_id}/stdin?offset=0&eof=1", content))[0] == 204
    body = b""
    while (frame := await session.next(running)).type != FrameType.END:
        body += frame.payload
    assert hashlib.sha256(content).hexdigest().encode() in body


async def test_a_body_that_does_not_wait_ends_the_session(server, session, monkeypatch):
    async def never(*arguments, **options):
        await asyncio.Event().wait()

    monkeypatch.setattr(server.service.files, "write", never)
    sandbox_id = (await server.running())["sandbox_id"]
    channel = session.open(file_line("PUT", sandbox_id, "f"), whole=False)
    with pytest.raises(ConnectionError):
        for at in range(64):
            session.data(channel, bytes(PIECE_BYTES), at * PIECE_BYTES)
            await session.writer.drain()
        await session.answer(channel)
    await until(lambda: not answering(server))
    assert (await server.call("GET", "/v1/health", expect=200))["pid"]


@pytest.fixture
async def sharing(server, folder):
    """A connection by which memory is shared."""
    async with Sharing(f"{folder.path}/sock") as made:
        yield made


async def test_a_file_by_memory(server, session, sharing):
    sandbox_id = (await server.running())["sandbox_id"]
    content = os.urandom(300_000)
    for size in (300_000, 1, 0):
        with Shared(content) as shared:
            sharing.share(shared)
            headers = {**keyed(secrets.token_hex(8)), MEMORY_HEADER: shared.name}
            channel = session.open(file_line("PUT", sandbox_id, "f", memory_bytes=size), headers=headers, whole=False)
            await until(lambda: answering(server))
            await asyncio.sleep(0.05)
            assert answering(server)
            session.data(channel, READY)
            session.end(channel)
            assert (await session.answer(channel))[0] == 204
            os.pwrite(shared.fd, bytes(len(content)), 0)
            assert result_of((await session.ask(exec_line(sandbox_id), exec_body("wc", "-c", "f")))[2])[0] == b"%d f\n" % size
            by_memory = {MEMORY_HEADER: shared.name}
            status, headers, body = await session.ask(file_line("GET", sandbox_id, "f"), headers=by_memory)
            assert (status, BYTES_HEADER in headers) == (200, size > 1)
            assert (body or os.pread(shared.fd, int(headers.get(BYTES_HEADER, 0)), 0)) == content[:size]
            headers = {**keyed(secrets.token_hex(8)), MEMORY_HEADER: shared.name}
            assert (await session.ask(file_line("PUT", sandbox_id, "g", memory_bytes=size), READY, headers=headers))[0] == 204


@pytest.mark.parametrize("how", ["cut", "gone"])
async def test_a_writer_that_goes_leaves_what_was_there(server, connect, sharing, how):
    session, other = await connect(), await connect()
    sandbox_id = (await server.running())["sandbox_id"]
    assert (await other.ask(file_line("PUT", sandbox_id, "f"), b"old", headers=keyed("k0")))[0] == 204
    with Shared(b"new") as shared:
        sharing.share(shared)
        headers = {**keyed("k1"), MEMORY_HEADER: shared.name}
        channel = session.open(file_line("PUT", sandbox_id, "f", memory_bytes=3), headers=headers, whole=False)
        await until(lambda: answering(server))
        await asyncio.sleep(0.05)
        session.cut(channel) if how == "cut" else session.writer.transport.abort()
        await until(lambda: not answering(server) and not busy(server))
    status, _, body = await other.ask(file_line("GET", sandbox_id, "f"))
    assert (status, body) == (200, b"old")
    assert result_of((await other.ask(exec_line(sandbox_id), exec_body("ls", "-A")))[2])[0] == b"f\n"


def memories(server):
    return server.service.shared_memories


async def test_memory_is_had_as_long_as_it_is_shared(server, session, sharing):
    sandbox_id = (await server.running())["sandbox_id"]

    async def write(shared):
        headers = {**keyed(secrets.token_hex(8)), MEMORY_HEADER: shared.name}
        return (await session.ask(file_line("PUT", sandbox_id, "f", memory_bytes=1), READY, headers=headers))[0]

    before = len(os.listdir("/proc/self/fd"))
    with Shared(b"a") as one, Shared(b"b") as other:
        for shared in (one, other):
            sharing.share(shared)
            assert await write(shared) == 204
        sharing.gone(one)
        await until(lambda: one.name not in memories(server)._fds)
        begin = asyncio.get_running_loop().time()
        assert await write(other) == 204 and await write(one) == 400
        assert asyncio.get_running_loop().time() - begin >= 0.9, "it could be on its way"
        sharing.sock.close()
        await until(lambda: not memories(server)._fds)
        begin = asyncio.get_running_loop().time()
        assert await write(other) == 400
        assert asyncio.get_running_loop().time() - begin < 0.9, "nobody shares anything"
    await until(lambda: len(os.listdir("/proc/self/fd")) < before)
    assert not memories(server)._added._waiters and not memories(server).sharers


async def test_memory_that_comes_after_the_request_that_names_it(server, session, sharing):
    sandbox_id = (await server.running())["sandbox_id"]
    with Shared(b"late") as shared:
        headers = [{**keyed(secrets.token_hex(8)), MEMORY_HEADER: shared.name} for _ in range(3)]
        line = file_line("PUT", sandbox_id, "f", memory_bytes=4)
        channels = [session.open(line, READY, headers=one) for one in headers]
        await until(lambda: len(answering(server)) == 3)
        await asyncio.sleep(0.05)
        session.cut(channels[0])
        await until(lambda: len(answering(server)) == 2)
        sharing.share(shared)
        assert [(await session.answer(channel))[0] for channel in channels[1:]] == [204, 204]
        assert (await session.ask(file_line("GET", sandbox_id, "f")))[2] == b"late"


@pytest.mark.parametrize("kind", ["larger", "without seals", "a file", "a device", "a socket", "a pipe", "a directory"])
async def test_nothing_but_memory_is_taken(server, session, sharing, tmp_path, kind):
    """No file, device or directory of this machine goes into a sandbox."""
    sandbox_id = (await server.running())["sandbox_id"]
    with Shared(b"x", size=SIZE + (kind == "larger"), seals=0 if kind == "without seals" else SEALS) as shared:
        memory_fd, opened = shared.fd, []
        if kind == "a file":
            (tmp_path / "f").write_bytes(bytes(SIZE))
            shared.fd = os.open(tmp_path / "f", os.O_RDWR)
        elif kind == "a device":
            shared.fd = os.open("/dev/zero", os.O_RDWR)
        elif kind == "a socket":
            opened = [socket.socket(socket.AF_UNIX)]
            shared.fd = os.dup(opened[0].fileno())
        elif kind == "a pipe":
            shared.fd, other = os.pipe()
            os.close(other)
        elif kind == "a directory":
            shared.fd = os.open("/", os.O_RDONLY)
        before = len(os.listdir("/proc/self/fd"))
        sharing.share(shared)
        headers = {**keyed("k"), MEMORY_HEADER: shared.name}
        assert (await session.ask(file_line("PUT", sandbox_id, "f", memory_bytes=1), READY, headers=headers))[0] == 400
        assert not memories(server)._fds and len(os.listdir("/proc/self/fd")) <= before
        for one in opened:
            one.close()
        if shared.fd != memory_fd:
            os.close(shared.fd)
            shared.fd = memory_fd


@pytest.mark.parametrize(
    "said",
    [
        RECORD.pack(SHARED, bytes(16)),
        RECORD.pack(GONE, bytes(16)),
        RECORD.pack(b"?", bytes(16)),
        b"GET /v1/health HTTP/1.1\r\n\r\n",
    ],
)
async def test_records_that_are_none_end_the_connection(server, sharing, said):
    with Shared() as shared:
        for piece in (RECORD.pack(SHARED, shared.secret)[:5], RECORD.pack(SHARED, shared.secret)[5:]):
            socket.send_fds(sharing.sock, [piece], [shared.fd] if len(piece) == 5 else [])
            await asyncio.sleep(0.01)
        await until(lambda: shared.name in memories(server)._fds)
        sharing.sock.send(said)
        assert await asyncio.get_running_loop().sock_recv(sharing.sock, 1) == b""
        assert not memories(server)._fds and not server.sessions._memory


async def test_many_descriptors_with_one_message(server, sharing):
    def held():
        """Others may open and close files meanwhile."""
        return sum(1 for found in descriptors() if os.path.samestat(found, os.fstat(shared.fd)))

    with Shared() as shared:
        await until(lambda: memories(server).sharers == 1)
        before = held()
        socket.send_fds(sharing.sock, [RECORD.pack(SHARED, shared.secret)], [shared.fd] * 200)
        await until(lambda: shared.name in memories(server)._fds)
        assert held() == before + 1


def descriptors():
    """What each descriptor of this process leads to."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield os.fstat(int(number))


HEALTH = b"GET /v1/health"


@pytest.mark.parametrize(
    "said",
    [
        encode(FrameType.OPEN, HEALTH, stream=WHOLE, channel=0, offset=len(HEALTH)),
        encode(FrameType.OPEN, HEALTH, stream=WHOLE, channel=1, offset=len(HEALTH) + 1),
        encode(FrameType.OPEN, HEALTH + b"\nx", stream=WHOLE, channel=1, offset=len(HEALTH) + 2),
        encode(FrameType.OPEN, HEALTH + b"\nContent-Length: +1", channel=1, offset=len(HEALTH) + 19),
        encode(FrameType.OPEN, b"x" * 70_000, stream=WHOLE, channel=1, offset=70_000),
        encode(FrameType.OPEN, HEALTH, channel=1, offset=len(HEALTH)) * 2,
        encode(FrameType.OPEN, HEALTH, channel=1, offset=len(HEALTH)) + encode(99, channel=1),
        b"\xff" * 16,
    ],
)
async def test_what_is_no_frame_of_a_client_ends_the_session(server, session, said):
    session.send(said)
    while await session.next(1) is not None:
        pass
    assert (await server.call("GET", "/v1/health", expect=200))["pid"]


async def test_what_comes_late_for_a_channel_that_is_over_hurts_nothing(session):
    assert (await session.ask("GET /v1/health"))[0] == 200
    for kind in (FrameType.DATA, FrameType.END, FrameType.CREDIT, FrameType.CUT):
        session.send(encode(kind, channel=1))
        session.send(encode(kind, channel=77))
    assert (await session.ask("GET /v1/health"))[0] == 200


async def test_frames_are_the_same_however_their_bytes_fall(session):
    text = encode(FrameType.OPEN, HEALTH, stream=WHOLE, channel=1, offset=len(HEALTH))
    for cut in range(1, len(text)):
        session.send(text[:cut])
        await asyncio.sleep(0)
        session.send(text[cut:])
        assert (await session.answer(1))[0] == 200


async def test_only_who_has_something_under_way_counts_as_busy(server, session):
    assert len(server.sessions._open) == 1 and not busy(server)
    sandbox_id = (await server.running())["sandbox_id"]
    channel = session.open(exec_line(sandbox_id), exec_body("sh", "-c", "until [ -e go ]; do sleep 0.01; done"))
    await until(lambda: busy(server))
    await session.ask(file_line("PUT", sandbox_id, "go"), headers=keyed("k"))
    await session.answer(channel)
    await until(lambda: not busy(server))
    session.writer.transport.abort()
    await until(lambda: not server.sessions._open)


async def test_who_does_not_ask_for_it_gets_none(server):
    answer = await server.call("GET", "/v1/session", expect=400)
    assert "Upgrade: aviato-session" in answer["error"]["message"]
