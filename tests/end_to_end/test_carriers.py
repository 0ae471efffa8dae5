"""What clients and servers speak: frames over one connection, by a Unix socket, TCP or TLS; HTTP where that is all there is."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import aviato
from tests.certificates import make_certificate
from tests.conftest import free_port

KEY = "right-key-of-enough-length"
PROGRAM = """
import json, os, socket, sys
from pathlib import Path
import aviato

def loads(pid, name):
    return name in Path(f"/proc/{pid}/maps").read_text()

def connections():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.family in (socket.AF_INET, socket.AF_INET6):
                    found.append(sock.getpeername()[1])
        except OSError:
            pass
    return found.count(int(os.environ.get("PORT", 0)))

with aviato.Session() as session:
    boxes = [session.sandbox() for _ in range(3)]
    commands = [boxes[n % 3].exec(["sh", "-c", "sleep 0.2; cat"], stdin=str(n)) for n in range(40)]
    assert [one.result().stdout for one in commands] == [str(n) for n in range(40)]
    content = os.urandom(3 << 20)
    boxes[0].write_file("a", content).result()
    assert boxes[0].read_file("a").result() == content
    print(json.dumps({"aiohttp": loads(os.getpid(), "aiohttp") or "aiohttp" in sys.modules, "connections": connections()}))
"""


def served(script: Any, **environment: str) -> dict[str, Any]:
    done = script(PROGRAM, timeout=250, **environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\nanother-key-of-enough-length tenant=another\n")
    monkeypatch.setenv("AVIATO_API_KEY", KEY)
    return path


def test_nobody_loads_aiohttp_who_does_not_speak_http(script: Any, state: Path) -> None:
    """It is a third of what a server takes to begin, and what a client waits for at first is a server."""
    program = "\n".join(
        [
            PROGRAM,
            "    path = next(Path(os.environ['AVIATO_STATE_DIR']).glob('embedded/*/sock'))",
            "    pid = int(path.with_name('lock').read_text())",
            "    before = loads(pid, 'aiohttp')",
            "    connection = socket.socket(socket.AF_UNIX)",
            "    connection.connect(str(path))",
            "    connection.sendall(b'GET /v1/health HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n')",
            "    answer = connection.recv(9999)",
            "    print(json.dumps([before, loads(pid, 'aiohttp'), answer.startswith(b'HTTP/1.1 200 ')]))",
            "    assert boxes[0].exec(['echo', 'y']).result().stdout == 'y\\n'",
        ]
    )
    done = script(program, timeout=250, AVIATO_STATE_DIR=str(state))
    assert done.returncode == 0, done.stderr
    client, server = map(json.loads, done.stdout.splitlines())
    assert client == {"aiohttp": False, "connections": 0}
    assert server == [False, True, True]


@pytest.mark.parametrize("secure", [False, True])
def test_one_connection_over_tcp_too(
    script: Any, make_server: Callable[..., Any], keys: Path, tmp_path: Path, secure: bool
) -> None:
    more, environment = {}, {}
    if secure:
        cert, key = make_certificate(tmp_path)
        more, environment = {"tls_cert": cert, "tls_key": key}, {"SSL_CERT_FILE": str(cert)}
    port = free_port()
    make_server(port=port, api_key_file=keys, **more)
    url = f"http{'s' * secure}://localhost:{port}"
    found = served(script, AVIATO_BASE_URL=url, PORT=str(port), **environment)
    assert found == {"aiohttp": False, "connections": 1}


def test_whom_tls_does_not_trust(script: Any, make_server: Callable[..., Any], keys: Path, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "DNS:sandboxes.example")
    port = free_port()
    make_server(port=port, api_key_file=keys, tls_cert=cert, tls_key=key)
    program = """
        import aviato
        try:
            aviato.Sandbox.run().exec(["true"]).result()
        except aviato.SandboxUnavailableError as error:
            print(error.reason, error.retryable, error.is_infrastructure)
    """
    for environment in ({}, {"SSL_CERT_FILE": str(cert)}):
        done = script(program, timeout=250, AVIATO_BASE_URL=f"https://localhost:{port}", **environment)
        assert done.stdout == "tls False True\n", done.stderr


@asynccontextmanager
async def reverse_proxy(port: int) -> AsyncIterator[tuple[str, list[bytes]]]:
    """One that keeps to HTTP, as many do: what is for the next machine alone it does not pass on."""
    lines: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines.append(head.partition(b"\r\n")[0])
            there, back = await asyncio.open_connection("127.0.0.1", port)
            back.write(re.sub(rb"(?m)^(Connection|Upgrade): .*\r\n", b"", head))
            await asyncio.gather(relay(reader, back), relay(there, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1") as proxy:
        yield f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}", lines


def test_a_proxy_that_passes_no_upgrade_on(make_server: Callable[..., Any], keys: Path) -> None:
    port = free_port()
    make_server(port=port, api_key_file=keys)

    async def main() -> None:
        async with reverse_proxy(port) as (url, lines):
            sandbox = aviato.Sandbox(base_url=url)
            assert (await sandbox.exec(["cat"], stdin="by HTTP")).stdout == "by HTTP"
            await sandbox.write_file("a", bytes(3 << 20))
            assert await sandbox.read_file("a") == bytes(3 << 20)
            await sandbox.stop()
            assert len([line for line in lines if line.startswith(b"GET /v1/session ")]) == 1 and len(lines) > 1

    asyncio.run(main())


def test_a_proxy_of_the_environment_is_asked_by_http(
    make_server: Callable[..., Any], keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not get to see a session, which it could not carry."""
    port, lines = free_port(), []
    make_server(port=port, api_key_file=keys)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async def main() -> None:
        proxy = await asyncio.start_server(accept, "127.0.0.1")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        with pytest.raises(aviato.AviatoAuthenticationError):
            await aviato.Sandbox.list(base_url="http://sandboxes.example")
        proxy.close()

    monkeypatch.setattr("aviato.core.client.NEVER_REACHED_SECONDS", 0.2)
    asyncio.run(main())
    assert lines and all(line.startswith("GET http://sandboxes.example/v1/") and "session" not in line for line in lines)


def test_another_key_is_another_session(make_server: Callable[..., Any], keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over HTTP, where each request says whose it is."""
    port = free_port()
    make_server(port=port, api_key_file=keys)
    url = f"http://127.0.0.1:{port}"
    with aviato.Sandbox(base_url=url) as sandbox:
        assert sandbox.exec(["true"]).result().returncode == 0
        assert [one.sandbox_id for one in aviato.Sandbox.list(base_url=url).result()] == [sandbox.sandbox_id]
        monkeypatch.setenv("AVIATO_API_KEY", "another-key-of-enough-length")
        assert aviato.Sandbox.list(base_url=url).result() == []
        monkeypatch.setenv("AVIATO_API_KEY", "made-up-key-of-enough-length")
        with pytest.raises(aviato.AviatoAuthenticationError):
            aviato.Sandbox.list(base_url=url).result()
        monkeypatch.setenv("AVIATO_API_KEY", KEY)
        assert sandbox.exec(["echo", "x"]).result().stdout == "x\n"
