"""Connections to ports over the link to a real process 1, passed on as the server passes them on.

The program inside is the test: it shares the network with process 1, as those of a pod do.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aviato.server.link.link import Configuration, Process1Link
from aviato.server.link.port_calls import RelayedPorts
from aviato.server.link.relayed_port import WINDOW_BYTES
from aviato.server.port_relay import BUFFER_BYTES, READ_BYTES, relay
from tests.protocol.networked import Place, place
from tests.protocol.test_over_a_network import CONFIGURATION

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 20.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def there() -> AsyncIterator[Place]:
    async with place() as made:
        first = await Process1Link.connect("one", await made.begun(), Configuration.of(CONFIGURATION))
        yield made
        first.detach()


@pytest.fixture
async def link(there: Place) -> AsyncIterator[Process1Link]:
    made = await Process1Link.connect("one", (await there.server())[0])
    yield made
    if made.ended() is None and not made.is_detached:
        await made.ping()
        assert made._channels == {}, "all channels have come back"
    made.detach()


class Inside:
    """A program that listens: what it does with who connects is a function of the test."""

    def __init__(self) -> None:
        self.port = 0
        self.serve: Callable[[Streams], Awaitable[None]] = echo
        self.errors: list[BaseException] = []

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            await self.serve((reader, writer))
        except Exception as error:
            self.errors.append(error)
        finally:
            writer.close()


async def echo(streams: Streams) -> None:
    reader, writer = streams
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    made = Inside()
    server = await asyncio.start_server(made.take, "127.0.0.1", 0, backlog=600)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


@asynccontextmanager
async def client(link: Process1Link, inside: Inside) -> AsyncIterator[tuple[Streams, asyncio.Task[tuple[int, int]]]]:
    """A program outside that is connected, and what passes its bytes on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        outer, _ = listener.accept()
    outer.setblocking(False)
    task = asyncio.create_task(relay(outer, await RelayedPorts(link).dial(inside.port)))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield (reader, writer), task
            writer.close()
            await task
    finally:
        task.cancel()
        writer.close()
        await asyncio.gather(task, return_exceptions=True)


def reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection off."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_all_bytes_both_ways_and_each_end_by_itself(link: Process1Link, inside: Inside) -> None:
    content, answer = os.urandom(5_000_001), os.urandom(3_000_003)
    heard = asyncio.get_running_loop().create_future()

    async def answers(streams: Streams) -> None:
        reader, writer = streams
        heard.set_result(await reader.read(-1))
        writer.write(answer)
        await writer.drain()

    inside.serve = answers
    async with client(link, inside) as ((reader, writer), task):
        writer.write(content)
        writer.write_eof()
        assert await reader.read(-1) == answer
        assert await heard == content
        writer.close()
        assert await task == (len(content), len(answer))
    assert inside.errors == []


async def test_many_at_once(link: Process1Link, inside: Inside) -> None:
    async def one(number: int) -> None:
        async with client(link, inside) as ((reader, writer), _):
            content = number.to_bytes(4, "big") * 20_000
            writer.write(content)
            assert await reader.readexactly(len(content)) == content
            writer.write_eof()
            assert await reader.read() == b""

    await asyncio.gather(*(one(number) for number in range(100)))


async def test_who_does_not_read_outside_holds_up_the_inside(link: Process1Link, inside: Inside) -> None:
    content, sent = os.urandom(30_000_000), 0

    async def pours(streams: Streams) -> None:
        nonlocal sent
        while sent < len(content):
            streams[1].write(content[sent : sent + (1 << 16)])
            await streams[1].drain()
            sent += 1 << 16

    inside.serve = pours
    async with client(link, inside) as ((reader, writer), task):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
            await link.ping()
        assert sent < len(content), "it waits"
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert await reader.read(-1) == content
        writer.close()
        assert (await task)[1] == len(content)


async def test_who_does_not_read_inside_holds_up_the_outside(link: Process1Link, inside: Inside) -> None:
    content, go, heard = os.urandom(30_000_000), asyncio.Event(), asyncio.get_running_loop().create_future()

    async def waits(streams: Streams) -> None:
        streams[0]._transport.pause_reading()  # type: ignore[attr-defined]
        await go.wait()
        streams[0]._transport.resume_reading()  # type: ignore[attr-defined]
        heard.set_result(await streams[0].read(-1))

    inside.serve = waits
    async with client(link, inside) as ((reader, writer), _):
        [channel] = link._channels.values()
        made: Any = channel
        writer.write(content)
        writer.write_eof()
        before = -1
        while before != made._sent:
            before = made._sent
            await asyncio.sleep(0.3)
            assert len(made._waiting) <= READ_BYTES and made._sent - made._taken <= WINDOW_BYTES
            await link.ping()
        assert made._sent < len(content), "it waits"
        go.set()
        assert await heard == content
        assert await reader.read() == b""


async def test_a_reset_stays_a_reset(link: Process1Link, inside: Inside) -> None:
    async def breaks(streams: Streams) -> None:
        await streams[0].readexactly(1)
        reset(streams[1])

    inside.serve = breaks
    async with client(link, inside) as ((reader, writer), _):
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()

    broken = asyncio.get_running_loop().create_future()

    async def listens(streams: Streams) -> None:
        try:
            broken.set_result(await streams[0].read())
        except ConnectionResetError:
            broken.set_result("reset")

    inside.serve = listens
    async with client(link, inside) as ((_, writer), _):
        reset(writer)
        assert await broken == "reset"


async def test_what_is_on_its_way_when_both_have_ended_arrives(link: Process1Link, inside: Inside) -> None:
    """The program has nothing more to say, reads late, and is sent more than there is room for on the way."""
    content, go, heard = os.urandom(8_000_000), asyncio.Event(), asyncio.get_running_loop().create_future()

    async def reads_late(streams: Streams) -> None:
        streams[1].write_eof()
        streams[0]._transport.pause_reading()  # type: ignore[attr-defined]
        await go.wait()
        streams[0]._transport.resume_reading()  # type: ignore[attr-defined]
        heard.set_result(await streams[0].read(-1))

    inside.serve = reads_late
    async with client(link, inside) as ((reader, writer), task):
        assert await reader.read() == b""
        writer.write(content)
        writer.write_eof()
        asyncio.get_running_loop().call_later(0.5, go.set)
        assert await heard == content
        assert await task == (len(content), 0)
    assert inside.errors == []


async def test_what_cannot_be_had(link: Process1Link, inside: Inside) -> None:
    ports = RelayedPorts(link)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await ports.dial(port)
    with pytest.raises(OSError, match="no listening socket"):
        await ports.listen(3128)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await ports.keep(8000, listener)
    assert await ports.kept() == {}
    # A look, and one that is given up before it came about.
    (await ports.dial(inside.port)).close()
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())
        dialling = asyncio.create_task(ports.dial(full.getsockname()[1]))
        await asyncio.sleep(0.2)
        assert not dialling.done()
        dialling.cancel()
        await asyncio.gather(dialling, return_exceptions=True)
    ports.close()
    assert not ports.open


async def test_a_link_that_is_lost_breaks_all_off(there: Place, link: Process1Link, inside: Inside) -> None:
    ports = RelayedPorts(link)
    async with client(link, inside) as ((reader, writer), _):
        writer.write(b"on")
        assert await reader.readexactly(2) == b"on"
        other = await Process1Link.connect("two", (await there.server())[0])
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert not ports.open
        with pytest.raises(ConnectionResetError):
            await ports.dial(inside.port)
        other.detach()


async def test_a_link_that_comes_back_goes_on(there: Place, inside: Inside) -> None:
    """Connections are cut with it, and new ones are made over the next."""

    async def again() -> socket.socket:
        return (await there.server())[0]

    made = await Process1Link.connect("one", (await there.server())[0], reopen=again)
    async with client(made, inside) as ((reader, writer), _):
        writer.write(b"on")
        assert await reader.readexactly(2) == b"on"
        assert made._transport is not None
        made._transport.abort()
        with pytest.raises(ConnectionResetError):
            await reader.read()
    ports = RelayedPorts(made)
    assert ports.open
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                (await ports.dial(inside.port)).close()
                break
            except ConnectionResetError:
                await asyncio.sleep(0.02)
    made.detach()


async def test_between_sockets_what_is_on_its_way_arrives_too() -> None:
    """The same of a relay of the local backend."""
    content = os.urandom(BUFFER_BYTES)
    (near, outer), (inner, far) = socket.socketpair(), socket.socketpair()
    for sock in (near, outer, inner, far):
        sock.setblocking(False)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    inner.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    task = asyncio.create_task(relay(outer, inner))
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PATIENCE_SECONDS):
        far.shutdown(socket.SHUT_WR)
        assert await loop.sock_recv(near, 1) == b""
        await loop.sock_sendall(near, content)
        near.shutdown(socket.SHUT_WR)
        await asyncio.sleep(0.3)
        found = b""
        while piece := await loop.sock_recv(far, 1 << 16):
            found += piece
        assert found == content
        assert await task == (len(content), 0)
    near.close()
    far.close()
