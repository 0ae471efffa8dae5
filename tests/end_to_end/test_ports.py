"""Programs inside, reached through exposed ports: HTTP, WebSocket, plain TCP; full, slow, gone, restarted, ended."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import aviato
from aviato import AsyncClient, NetworkOptions, Sandbox, SandboxDefaults

ECHO = """
import socket, sys, threading

def serve(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)

family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.socket(family, socket.SOCK_STREAM)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if family == socket.AF_INET6:
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(1024)
threading.stack_size(64 << 10)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

WEBSOCKET = """
import base64, hashlib, http.server

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                break
            size = head[1] & 127
            if size == 126:
                size = int.from_bytes(self.rfile.read(2), "big")
            mask, data = self.rfile.read(4), self.rfile.read(size)
            data = bytes(byte ^ mask[n % 4] for n, byte in enumerate(data))
            length = bytes([len(data)]) if len(data) < 126 else b"\\x7e" + len(data).to_bytes(2, "big")
            self.wfile.write(bytes([head[0]]) + length + data)
        self.close_connection = True

http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)
    return value


def fetch(url: str, data: bytes | None = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, data, timeout=15) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def serve(sandbox: Any, source: str, *arguments: str) -> Any:
    """Start a program that stays."""
    process = sandbox.exec(["python3", "-c", source, *arguments], timeout_seconds=120)
    process._when_done(lambda ref: ref.exception())
    return process


def connect(sandbox: Sandbox, port: int | None = None) -> socket.socket:
    url = sandbox.service_address if port is None else sandbox.service_urls[port].removeprefix("http://")
    host, _, address = str(url).partition(":")
    connection = socket.create_connection((host, int(address)), timeout=15)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_all(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.fixture
def echo(served: Any) -> Iterator[Sandbox]:
    with Sandbox(ports=[9000]) as sandbox:
        serve(sandbox, ECHO, "127.0.0.1", "9000")
        sandbox.wait_for_port(9000).result()
        yield sandbox


def test_an_http_server_is_reached(served: Any) -> None:
    with Sandbox(ports=[8000, 80]) as sandbox:
        assert sandbox.exposed_ports == (8000, 80) and list(sandbox.service_urls) == [8000, 80]
        assert sandbox.service_urls[8000] == f"http://{sandbox.service_address}"
        assert str(sandbox.service_address).startswith("127.0.0.1:")
        assert (sandbox.applied_ingress_mode, sandbox.applied_egress_mode) == ("public", "none")
        sandbox.write_file("/srv/page.txt", b"from inside" * 100_000).result()
        sandbox.exec(["sh", "-c", "cd /srv && python3 -m http.server 8000 >/dev/null 2>&1 &"]).result()
        assert sandbox.wait_for_port(8000).result() == sandbox.service_urls[8000]
        assert fetch(f"{sandbox.service_urls[8000]}/page.txt") == (200, b"from inside" * 100_000)
        assert fetch(f"{sandbox.service_urls[8000]}/nothing")[0] == 404
        for found in (Sandbox.from_id(sandbox.sandbox_id).result(), Sandbox.list().result()[-1]):
            assert found.service_urls == sandbox.service_urls and found.exposed_ports == (8000, 80)
            assert found.service_address == sandbox.service_address
    assert sandbox.service_urls == {} and sandbox.service_address is None and sandbox.exposed_ports == (8000, 80)


@pytest.mark.anyio
async def test_a_websocket_server_is_reached(served: Any) -> None:
    async with Sandbox(ports=[8000]) as sandbox:
        serve(sandbox, WEBSOCKET)
        url = await sandbox.wait_for_port(8000)
        async with aiohttp.ClientSession() as http, http.ws_connect(url) as websocket:
            for message in ("hello", "x" * 5_000):
                await websocket.send_str(message)
                assert await websocket.receive_str(timeout=10) == message
            await websocket.send_bytes(bytes(range(256)))
            assert await websocket.receive_bytes(timeout=10) == bytes(range(256))


@pytest.mark.anyio
async def test_the_async_client_has_ports(served: Any) -> None:
    async with AsyncClient() as client:
        sandbox = await client.sandbox(ports=[9000])
        process = sandbox.spawn(["python3", "-c", ECHO, "127.0.0.1", "9000"])
        url = await sandbox.wait_for_port(9000)
        assert sandbox.info is not None and sandbox.info.service_urls == {9000: url}
        with pytest.raises(aviato.AviatoValidationError, match="port 9001"):
            await sandbox.wait_for_port(9001)
        process.cancel()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_each_way_to_listen_is_reached(served: Any, address: str) -> None:
    with Sandbox(ports=[9000]) as sandbox:
        serve(sandbox, ECHO, address, "9000")
        sandbox.wait_for_port(9000).result()
        with connect(sandbox) as connection:
            connection.sendall(b"ping")
            assert connection.recv(10) == b"ping"


def test_a_port_nobody_listens_on_is_named(served: Any) -> None:
    with Sandbox(ports=[8000]) as sandbox:
        status, text = fetch(sandbox.service_urls[8000], b"x" * 200_000)
        assert status == 502 and b"Nobody listens on port 8000 of sandbox " + sandbox.sandbox_id.encode() in text
        with connect(sandbox) as connection:
            connection.sendall(b"\0not http")
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
        with pytest.raises(aviato.SandboxTimeoutError, match=f"port 8000 of sandbox {sandbox.sandbox_id}") as caught:
            sandbox.wait_for_port(8000, timeout_seconds=0.2).result()
        assert caught.value.reason == "port_not_listening" and not caught.value.is_infrastructure
        with pytest.raises(aviato.AviatoValidationError, match=r"port 8001 .* not exposed.*8000"):
            sandbox.wait_for_port(8001).result()
        waiting = sandbox.wait_for_port(8000)
        sandbox.stop().result()
        with pytest.raises(aviato.SandboxNotRunningError):
            waiting.result()


@pytest.mark.parametrize("value", ["8000", 8000, [True], ["8000"], [80.0], b"a", {80: 1}])
def test_ports_of_a_wrong_type(value: Any) -> None:
    with pytest.raises(TypeError, match="ports"):
        Sandbox(ports=value)


@pytest.mark.parametrize("value", [[0], [65536], [-1], [80, 80], list(range(1, 66))])
def test_ports_that_cannot_be(value: Any) -> None:
    with pytest.raises(aviato.AviatoValidationError, match="ports") as caught:
        Sandbox(ports=value)
    assert list(caught.value.field_violations) == ["ports"]


def test_network_options_say_the_same(served: Any) -> None:
    defaults = SandboxDefaults(network=NetworkOptions(exposed_ports=[8000]))
    with Sandbox(defaults=defaults, ports=[8001, 8000]) as sandbox:
        assert sandbox.exposed_ports == (8001, 8000)
    with Sandbox(defaults=defaults, network=NetworkOptions(ingress_mode="none")) as sandbox:
        assert (sandbox.exposed_ports, sandbox.applied_ingress_mode, sandbox.service_urls) == ((), "none", {})
    with pytest.raises(aviato.AviatoValidationError, match="ingress_mode"):
        Sandbox(ports=[1], network=NetworkOptions(ingress_mode="none"))
    wrong: Any
    for wrong in (
        {"ingress_mode": "some"},
        {"ingress_mode": "public"},
        {"ingress_mode": "none", "exposed_ports": [1]},
        {"egress_mode": "all"},
    ):
        with pytest.raises(aviato.AviatoValidationError, match=next(reversed(wrong))):
            NetworkOptions(**wrong)
    with pytest.raises(TypeError, match="network"):
        Sandbox(network={"exposed_ports": [1]})  # type: ignore[arg-type]


def test_each_direction_is_closed_by_itself(echo: Sandbox) -> None:
    with connect(echo) as connection:
        connection.sendall(b"a" * 1_000_000)
        connection.shutdown(socket.SHUT_WR)
        assert len(read_all(connection)) == 1_000_000
    source = """
import socket
listener = socket.create_server(("127.0.0.1", 9001))
listener.accept()  # The look whether somebody listens.
connection = listener.accept()[0]
connection.sendall(b"last words")
connection.shutdown(socket.SHUT_WR)
print(len(connection.makefile("rb").read()))
"""
    with Sandbox(ports=[9001]) as sandbox:
        process = sandbox.exec(["python3", "-c", source])
        sandbox.wait_for_port(9001).result()
        with connect(sandbox) as connection:
            assert read_all(connection) == b"last words"
            connection.sendall(b"b" * 500_000)
            connection.shutdown(socket.SHUT_WR)
            assert process.result(20).stdout == "500000\n"


def test_a_slow_reader_holds_back_its_writer_and_nobody_else(echo: Sandbox, served: Any) -> None:
    data = os.urandom(1 << 20)
    total = 64
    before = memory(served.pid)
    with connect(echo) as slow:
        sent = threading.Thread(target=lambda: [slow.sendall(data) for _ in range(total)])
        sent.start()
        with connect(echo) as quick:
            for n in range(100):
                quick.sendall(b"%d" % n)
                assert quick.recv(10) == b"%d" % n
        assert sent.is_alive(), "it took everything in although nobody reads"
        assert memory(served.pid) - before < 16 << 20
        digest, left = hashlib.sha256(), total << 20
        while left:
            piece = slow.recv(1 << 18)
            assert piece
            digest.update(piece)
            left -= len(piece)
        sent.join()
        assert digest.digest() == hashlib.sha256(data * total).digest()


def test_a_thousand_connections_leave_no_descriptor(echo: Sandbox, served: Any) -> None:
    def one() -> None:
        with connect(echo) as connection:
            connection.sendall(b"x")
            assert connection.recv(1) == b"x"

    one()
    before = eventually(lambda: descriptors(served.pid))
    for _ in range(4):
        open_now = [connect(echo) for _ in range(250)]
        for connection in open_now:
            connection.sendall(b"x")
        for number, connection in enumerate(open_now):
            assert connection.recv(1) == b"x"
            if number % 3 == 0:  # A reset in place of a proper end.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
    eventually(lambda: descriptors(served.pid) <= before + 5)
    one()


def test_all_is_closed_when_the_sandbox_ends(served: Any) -> None:
    before = descriptors(served.pid)
    sandbox = Sandbox(ports=[9000]).wait()
    serve(sandbox, ECHO, "127.0.0.1", "9000")
    sandbox.wait_for_port(9000).result()
    host, _, address = str(sandbox.service_address).partition(":")
    connections = [connect(sandbox) for _ in range(40)]
    for connection in connections[:20]:
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
    assert descriptors(served.pid) >= before + 40
    sandbox.stop(0).result()
    for connection in connections:
        connection.settimeout(5)
        with connection, contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(address)))
    with socket.create_server((host, int(address))):
        pass
    # A few are the client's own connections to the server.
    eventually(lambda: descriptors(served.pid) <= before + 5)


def test_an_open_connection_keeps_an_idle_sandbox(served: Any) -> None:
    with Sandbox(ports=[9000], idle_timeout_seconds=2) as sandbox:
        sandbox.write_file("/tmp/echo.py", ECHO.encode()).result()
        sandbox.exec(["sh", "-c", "python3 /tmp/echo.py 127.0.0.1 9000 >/dev/null 2>&1 &"]).result()
        sandbox.wait_for_port(9000).result()
        with connect(sandbox) as connection:
            connection.sendall(b"a")
            assert connection.recv(1) == b"a"
            time.sleep(2.5)
            connection.sendall(b"b")
            assert connection.recv(1) == b"b"
        eventually(lambda: sandbox.get_status().is_terminal, 20)
        assert sandbox.status_reason == "idle"


def test_last_bytes_of_a_main_command_arrive(served: Any) -> None:
    source = """
import socket
listener = socket.create_server(("127.0.0.1", 9000))
connection = listener.accept()[0]
connection.recv(1)
connection.sendall(b"z" * 200_000)
"""
    sandbox = Sandbox(command="python3", args=["-c", source], ports=[9000]).wait()
    with eventually(lambda: attempt(sandbox)) as connection:
        assert len(read_all(connection)) == 200_000
    assert sandbox.wait_until_complete(10).result().returncode == 0


def attempt(sandbox: Sandbox) -> socket.socket | None:
    """A connection to a server that takes only one, so that it cannot be asked whether it is there."""
    connection = connect(sandbox)
    connection.sendall(b"\0")
    try:
        connection.recv(1, socket.MSG_PEEK)
        return connection
    except OSError:
        connection.close()
        return None


def test_addresses_survive_a_restart_of_the_server(make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.conftest import start_server

    first = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", first.url)
    sandbox = Sandbox(ports=[9000, 9001]).wait()
    serve(sandbox, ECHO, "127.0.0.1", "9000")
    sandbox.wait_for_port(9000).result()
    urls = sandbox.service_urls
    first.process.kill()
    first.process.wait()
    # There is no server now, and connections wait for the next one.
    with connect(sandbox) as early:
        early.sendall(b"early")
        second = start_server(Path(first.state_dir).parent)
        try:
            assert early.recv(10) == b"early"
            assert Sandbox.from_id(sandbox.sandbox_id).result().service_urls == urls
            assert fetch(urls[9001])[0] == 502
            sandbox.stop().result()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(urls[9000].rpartition(":")[2])))
        finally:
            second.stop()


def test_a_queued_sandbox_has_its_addresses(make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", make_server(max_sandboxes=1).url)
    with Sandbox() as first, Sandbox(ports=[9000]) as queued:
        assert queued.get_status() == "pending" and queued.service_urls
        with connect(queued) as early:
            early.sendall(b"GET / HTTP/1.0\r\n\r\n")
            first.stop().result()
            assert b"Nobody listens on port 9000" in read_all(early)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
