"""What clients can do to a server with connections: by holding them, by not reading, and by vanishing."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import statistics
import threading
import time
from urllib.parse import urlsplit

import pytest

from aviato import Session
from aviato.exceptions import SandboxFailedError
from aviato.server import reaper
from aviato.server.connections import listening
from aviato.server.connections.guard import Guard, hash_key
from aviato.server.front import Front
from aviato.server.operations import bodies
from aviato.server.service import Service, slots
from aviato.server.settings import ServerSettings
from aviato.wire.frames import FrameType, encode
from aviato.wire.ids import new_exec_id
from aviato.wire.session import WHOLE, encode_head
from tests.matrices import every
from tests.server.frames import opening

DESCRIPTORS = 240
HOSTILE, GOOD = "av-key-of-one", "av-key-of-another"


class Crowded:
    """A server of its own process that has few descriptors."""

    def __init__(self, running, port):
        self.running = running
        self.pid = running.pid
        self.path = urlsplit(running.url).path
        self.port = port
        self.opened = []

    def connect(self, way):
        family = socket.AF_UNIX if way == "unix" else socket.AF_INET
        connection = socket.socket(family)
        self.opened.append(connection)
        connection.setblocking(False)
        try:
            connection.connect(self.path if way == "unix" else ("127.0.0.1", self.port))
        except BlockingIOError:
            pass
        return connection

    @property
    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def mebibytes(self):
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

    @property
    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        for connection in self.opened:
            connection.close()


@pytest.fixture
def crowded(make_server, tmp_path):
    (tmp_path / "keys").write_text(f"{HOSTILE}\n{GOOD}\n")
    running = make_server(port=0, api_key_file=tmp_path / "keys")
    port = running.port()  # After it has raised its own limit.
    resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, 20_000 if os.getuid() == 0 else DESCRIPTORS))
    made = Crowded(running, port)
    yield made
    made.close()


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


HEAD = f"Host: localhost\r\nAuthorization: Bearer {HOSTILE}\r\n".encode()
GET = b"GET /v1/openapi.json HTTP/1.1\r\n" + HEAD + b"\r\n"
OPENING = opening({"Authorization": f"Bearer {HOSTILE}"})
ASKED = encode_head("GET /v1/openapi.json", {})
KINDS = {
    "silent": b"",
    "half a head": GET[:40],
    "idle after an answer": b"GET /v1/health HTTP/1.1\r\n" + HEAD + b"\r\n",
    "answers that nobody reads": GET * 50,
    "an idle session": OPENING,
    "a session whose answers nobody reads": OPENING
    + b"".join(encode(FrameType.OPEN, ASKED, stream=WHOLE, channel=n, offset=len(ASKED)) for n in range(1, 51)),
    "half a body": b"POST /v1/sandboxes HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000\r\n\r\n{",
}
"""By kind, what is sent."""


def send(connection, data):
    try:
        connection.send(data)
    except OSError:
        pass


@pytest.mark.parametrize(
    ("way", "kind"),
    every(3, [(way, kind) for way in ("unix", "tcp") for kind in KINDS if (way, kind) != ("unix", "half a body")]),
)
def test_many_connections_harm_nobody_else(crowded, monkeypatch, way, kind):
    """Half a body is a request under way: of those a tenant may have a share, and on the Unix socket there is one tenant."""
    monkeypatch.setenv("AVIATO_API_KEY", GOOD)
    with Session() as session:
        url = crowded.running.url if kind != "half a body" else f"http://127.0.0.1:{crowded.port}"
        first = session.sandbox(base_url=url).wait(20)
        assert [first.exec(["echo", "x"]).result(60).stdout for _ in range(3)] == ["x\n"] * 3
        mebibytes, seconds = crowded.mebibytes, []
        over = threading.Event()

        def trickle():
            """All the while, a byte on each, and new ones for those that were cut off."""
            while not over.wait(0.2):
                for _ in range(50):
                    send(crowded.connect(way), KINDS[kind])
                for connection in crowded.opened[:200]:
                    send(connection, b"x" if kind.startswith("half") else b"")

        for _ in range(300):
            send(crowded.connect(way), KINDS[kind])
        trickling = threading.Thread(target=trickle, daemon=True)
        trickling.start()
        try:
            for _ in range(20):
                begin = time.monotonic()
                assert first.exec(["echo", "y"]).result(60).stdout == "y\n"
                seconds.append(time.monotonic() - begin)
            second = session.sandbox(base_url=url)
            assert second.exec(["echo", "z"]).result(60).stdout == "z\n"
            assert crowded.descriptors < DESCRIPTORS
            assert crowded.mebibytes < mebibytes + 64
        finally:
            over.set()
            trickling.join()
        assert statistics.median(seconds) < 1.0
        crowded.close()
        until(lambda: crowded.descriptors < 60)


def test_a_server_without_descriptors_stands_still_and_goes_on(crowded, monkeypatch):
    monkeypatch.setenv("AVIATO_BASE_URL", crowded.running.url)
    with Session() as session:
        sandbox = session.sandbox().wait(20)
        running = sandbox.exec(["sh", "-c", "read x; echo $x"], stdin=True)
        running.stdin.write(b"").result(60)
        # By a second connection, which is left for the next create: there will be no descriptor for one more.
        sandbox.exec(["true"]).result(60)
        # None is left, and more want in all the time.
        soft, hard = resource.prlimit(crowded.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(crowded.pid, resource.RLIMIT_NOFILE, (crowded.descriptors, hard))
        for _ in range(100):
            crowded.connect("unix")
        before = crowded.cpu_seconds
        time.sleep(1.0)
        assert crowded.cpu_seconds - before < 0.5, "it spins"
        assert crowded.running.process.poll() is None
        crowded.close()
        with pytest.raises(SandboxFailedError) as caught:
            session.sandbox().wait(20)
        assert caught.value.is_infrastructure and "ulimit" in str(caught.value)
        resource.prlimit(crowded.pid, resource.RLIMIT_NOFILE, (soft, hard))
        running.stdin.write(b"still here\n").result(60)
        assert running.result(60).stdout == "still here\n"
        assert session.sandbox().exec(["echo", "again"]).result(60).stdout == "again\n"


@pytest.mark.deep
@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_large_bodies_come_in_turn_and_are_forgotten(crowded, monkeypatch, way):
    """One that has come is refused, and its connection stays open."""
    monkeypatch.setenv("AVIATO_BASE_URL", crowded.running.url)
    size = 15 << 20
    with Session() as session:
        sandbox = session.sandbox().wait(20)
        mebibytes = crowded.mebibytes
        left = {crowded.connect(way): size for _ in range(40)}
        for connection in left:
            send(connection, b"POST /v1/sandboxes HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % size)
        most, deadline = 0, time.monotonic() + 20
        while sum(bytes_left == 0 for bytes_left in left.values()) < 30:
            assert time.monotonic() < deadline
            for connection, bytes_left in left.items():
                try:
                    left[connection] -= connection.send(b"x" * min(bytes_left, 1 << 20)) if bytes_left else 0
                except OSError:
                    pass
            most = max(most, crowded.mebibytes)
        assert most < mebibytes + 200
        assert sandbox.exec(["echo", "x"]).result(60).stdout == "x\n"
        until(lambda: crowded.mebibytes < mebibytes + 120, 10)


def test_what_is_no_http_is_not_kept(crowded):
    """Not even by the errors that quote it."""
    mebibytes = crowded.mebibytes
    for _ in range(20):
        sending = [crowded.connect("tcp") for _ in range(10)]
        time.sleep(0.02)
        for connection in sending:
            for _ in range(10):
                send(connection, b"x" * (1 << 18))
    crowded.close()
    until(lambda: crowded.mebibytes < mebibytes + 64, 15)


# -- In the test's own loop

IN_LOOP = pytest.mark.anyio


@IN_LOOP
async def test_a_body_that_does_not_come_is_given_up(serving, folder, backend, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.3)
    async with serving(folder, backend) as (_, client, path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{")
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        await client.running()


@IN_LOOP
async def test_who_does_not_read_is_cut_off_and_finds_all_when_it_comes_back(serving, folder, backend, monkeypatch):
    text = "x" * 900_000
    async with serving(folder, backend, lease=1) as (service, client, path):
        sandbox_id = (await client.running())["sandbox_id"]
        readers = {}
        for _ in range(12):
            exec_id = new_exec_id()
            body = json.dumps({"exec_id": exec_id, "command": ["echo", text]}).encode()
            reader, writer = await asyncio.open_unix_connection(path, limit=1024)
            writer.write(b"POST /v1/sandboxes/%s/execs HTTP/1.1\r\nHost: x\r\n" % sandbox_id.encode())
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            readers[exec_id] = reader, writer
        while sum(feed.sending_bytes > 0 for feed in service.execs.feeds) < 12:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(reaper, "UNREAD_BYTES", 4 << 20)
        deadline = time.monotonic() + 60
        while (held := sum(feed.unread_bytes for feed in service.execs.feeds)) > 4 << 20:
            assert time.monotonic() < deadline, f"{held} bytes are held"
            await asyncio.sleep(0.05)
        assert len(service.execs.feeds) == 4, "no more are cut off than needed"
        cut = next(iter(readers))
        answer = await client.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{cut}", expect=200)
        assert answer.count(b"x") >= len(text)
        for _, writer in readers.values():
            writer.close()


@IN_LOOP
async def test_files_of_those_that_wait_are_bounded(serving, folder, backend, monkeypatch):
    monkeypatch.setattr(slots, "QUEUED_BYTES", 1 << 20)
    async with serving(folder, backend, max_sandboxes=1) as (_, client, _):
        holder = (await client.running())["sandbox_id"]
        large = {"mounted_files": [{"mount_path": "/data", "file_content": "eHh4" * 100_000}]}
        waiting = [(await client.create(**large))["sandbox_id"] for _ in range(2)]
        refused = await client.create(expect=429, **large)
        assert "write_file" in refused["error"]["message"] and refused["error"]["retry_delay_seconds"]
        await client.create()
        await client.call("DELETE", f"/v1/sandboxes/{waiting[1]}", expect=200)
        await client.create(**large)
        await client.call("DELETE", f"/v1/sandboxes/{holder}", expect=200)
        await client.wait(waiting[0], "running")
        await client.create(**large)


TCP_REPAIR = 19


@IN_LOOP
async def test_a_peer_that_vanished_is_noticed(folder, backend, monkeypatch):
    """As one whose machine lost its power: nothing is ever sent again, not even an end."""
    monkeypatch.setattr(listening, "VANISHED_SECONDS", 3)
    folder.make()
    front = Front(Service(ServerSettings(), folder, backend), Guard([hash_key(GOOD)]))
    listener = listening.listen_tcp("127.0.0.1", 0)
    await front.open(listening.Listeners(sockets=[listener]))
    try:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + GOOD.encode() + b"\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        (kept,) = front.connections.all()
        sock = kept.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
        try:
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        except PermissionError:
            pytest.skip("only root can let a connection vanish without a word")
        writer.transport.abort()
        await asyncio.sleep(0.1)
        assert front.connections.all(), "it was told"
        async with asyncio.timeout(60):
            while front.connections.all():
                await asyncio.sleep(0.05)
    finally:
        await front.close()
