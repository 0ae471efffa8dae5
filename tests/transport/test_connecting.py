"""Connections that end while they begin, by TCP and TLS, on both loops: nothing is left open, and nothing is closed twice."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from aviato.transport import connecting
from aviato.transport.resolution import endpoint
from tests.certificates import make_certificate

TIMES = 150
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Resetting(threading.Thread):
    """A server that resets what it accepts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    def stop(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.join()


@pytest.fixture
def resetting() -> Iterator[Resetting]:
    server = Resetting()
    yield server
    server.stop()


class Client(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


async def connected(url: str) -> None:
    try:
        client = await connecting.connect(endpoint(url), None, Client)
    except OSError:
        return
    await client.lost


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_connections_that_end_while_they_begin(resetting: Resetting, loop: Any, scheme: str, cancelled: bool) -> None:
    url = f"{scheme}://127.0.0.1:{resetting.port}"

    async def main() -> None:
        for number in range(TIMES):
            task = asyncio.ensure_future(connected(url))
            if cancelled:
                for _ in range(number % 12):
                    await asyncio.sleep(0)
                if number % 3 == 0:
                    await asyncio.sleep(0.0001 * (number % 20))
                task.cancel()
            # Whose descriptor is closed twice loses another's: these are opened all the while, and must stay open.
            kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
            await asyncio.wait([task])
            assert task.cancelled() or task.exception() is None
            gc.collect(0)
            for fd in kept:
                os.close(fd)

    with asyncio.Runner(loop_factory=loop) as runner:  # A first loop leaves something behind for all others.
        runner.run(connected(url))
    before = len(os.listdir("/proc/self/fd"))
    with warnings.catch_warnings(), asyncio.Runner(loop_factory=loop) as runner:
        warnings.simplefilter("error")
        runner.run(main())
        # The server takes them in turn: it is then through with those before.
        runner.run(connected(url))
    gc.collect()
    # The server's own ends, in this process, go when its thread has its turn.
    deadline = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_next_address_is_tried_where_one_does_not_answer(monkeypatch: pytest.MonkeyPatch, loop: Any) -> None:
    """The first one takes no connections: its queue is full."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as deaf,
        socket.create_server(("127.0.0.1", 0)) as hearing,
        socket.create_connection(deaf.getsockname()),
    ):
        addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one.getsockname()) for one in (deaf, hearing)]

        async def both(host: str, port: int) -> list[Any]:
            return addresses

        monkeypatch.setattr(connecting, "resolve", both)

        async def main() -> None:
            client = await asyncio.wait_for(connecting.connect(endpoint("http://sandboxes.example"), None, Client), 60)
            hearing.accept()[0].close()
            await client.lost

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_by_tls_with_a_name_and_a_kept_alive_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Any) -> None:
    cert, key = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=str(cert))
    monkeypatch.setattr(connecting, "_context", lambda: trusting)

    async def main() -> None:
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(cert, key)
        made: list[asyncio.Transport] = []

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.append(transport)  # type: ignore[arg-type]

        class Looking(Client):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                sock = transport.get_extra_info("socket")
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1

        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0, ssl=serving)
        client = await connecting.connect(endpoint(f"https://localhost:{server.sockets[0].getsockname()[1]}"), None, Looking)
        while not made:
            await asyncio.sleep(0.001)
        made[0].close()
        await client.lost
        server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
