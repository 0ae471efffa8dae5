"""The way out of a sandbox whose process 1 hands no descriptor out: the proxy's connections come over the link."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aviato.server.backends.capabilities import Capability
from aviato.server.link.link import Configuration, Process1Link
from aviato.server.link.port_calls import RelayedPorts
from aviato.server.service import egress as egress_module
from aviato.wire.sandboxes import CreateSandbox
from tests.protocol.networked import place
from tests.protocol.test_over_a_network import CONFIGURATION

pytestmark = pytest.mark.anyio

PLACE = "sb-place"
CONTENT = os.urandom(400_000)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Carried:
    """A backend that carries connections."""

    capabilities = frozenset({Capability.EGRESS, Capability.INTERNET})
    brings_internet = True

    def __init__(self, link: Process1Link) -> None:
        self.link = link

    async def open_port_channel(self, place_id: str) -> RelayedPorts:
        """See `Backend`."""
        assert place_id == PLACE
        return RelayedPorts(self.link)


@asynccontextmanager
async def way(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, mode: Any) -> AsyncIterator[tuple[int, egress_module.Egress]]:
    """The port of the proxy inside."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr(egress_module, "FIRST_PORT", port)
    async with place() as there:
        link = await Process1Link.connect("one", await there.begun(), Configuration.of(CONFIGURATION))
        egress = egress_module.Egress(Carried(link), str(tmp_path), ["127.0.0.0/8"])  # type: ignore[arg-type]
        request = CreateSandbox.model_construct(sandbox_id=PLACE, egress_mode=mode, ports=[])
        await egress.attach_place(PLACE, request)
        try:
            async with asyncio.timeout(60):
                yield port, egress
        finally:
            await egress.shut()
            await link.ping()
            assert link._channels == {}, "all channels have come back"
            link.detach()


@pytest.fixture
async def web() -> AsyncIterator[int]:
    """The port of a web server."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b" /broken " in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(CONTENT) + CONTENT)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def ask(port: int, url: str) -> bytes:
    """What the proxy answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {url} HTTP/1.1\r\nHost: {url.split('/')[2]}\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_listed_hosts_and_no_others(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, web: int) -> None:
    async with way(tmp_path, monkeypatch, ["127.0.0.1"]) as (port, _):
        answers = await asyncio.gather(*(ask(port, f"http://127.0.0.1:{web}/x") for _ in range(40)))
        assert all(answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(CONTENT) for answer in answers)
        assert (await ask(port, "http://other.example/")).startswith(b"HTTP/1.1 403 ")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT 127.0.0.1:{web} HTTP/1.1\r\n\r\nGET /x HTTP/1.1\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert (await reader.read()).endswith(CONTENT)
        writer.close()


async def test_half_an_answer_is_no_answer(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, web: int) -> None:
    async with way(tmp_path, monkeypatch, ["127.0.0.1"]) as (port, _):
        with pytest.raises(ConnectionResetError):
            await ask(port, f"http://127.0.0.1:{web}/broken")


async def test_a_flood_is_bounded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, web: int) -> None:
    monkeypatch.setattr(egress_module, "CONNECTIONS_A_SANDBOX", 20)
    async with way(tmp_path, monkeypatch, ["127.0.0.1"]) as (port, egress):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        while len(egress._ways[PLACE].connections) < 20:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        listener: Any = egress._ways[PLACE].listener
        assert len(egress._ways[PLACE].connections) == 20 and len(listener._connected) + len(listener._waiting) <= 16
        for _, writer in idle:
            writer.close()
        assert (await ask(port, f"http://127.0.0.1:{web}/x")).endswith(CONTENT)


async def test_what_the_cluster_brings_about_has_no_proxy(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("internet", "none"):
        async with way(tmp_path, monkeypatch, mode) as (port, egress):
            assert egress._ways == {}
            with pytest.raises(ConnectionRefusedError):
                await ask(port, "http://127.0.0.1/")
