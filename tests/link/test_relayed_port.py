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
from pathlib import Path
from typing import Any

import pytest

from aviato.server.backends.kubernetes.backend import KubernetesBackend
from aviato.server.link.link import Configuration, Process1Link
from aviato.server.link.port_calls import RelayedPorts
from aviato.server.link.relayed_port import WINDOW_BYTES
from aviato.server.port_relay import BUFFER_BYTES, READ_BYTES, relay
from tests.protocol.networked import Place, place
from tests.protocol.test_over_a_network import CONFIGURATION

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 60.0
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


# -- from the inside ---------------------------------------------------------------------------------------------------------


class Outside:
    """What the server does with those who connect from the inside: a function of the test."""

    def __init__(self, listener: Any) -> None:
        self.listener = listener
        self.serve: Callable[[socket.socket], Awaitable[None]] = answer
        self.taken: list[asyncio.Task[None]] = []
        listener.watch(self.accept)

    def accept(self) -> None:
        """All that wait."""
        while True:
            try:
                sock = self.listener.accept()
            except BlockingIOError:
                return
            task = asyncio.create_task(self.use(sock))
            self.taken.append(task)

    async def use(self, sock: socket.socket) -> None:
        """One of them."""
        try:
            await self.serve(sock)
        finally:
            self.listener.finish(sock)


async def answer(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, b"heard " + await loop.sock_recv(sock, 100))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@asynccontextmanager
async def outside(link: Process1Link, port: int) -> AsyncIterator[Outside]:
    """A port at which process 1 listens for the server."""
    made = Outside(await RelayedPorts(link).listen(port))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield made
    finally:
        made.listener.close()
        await asyncio.gather(*made.taken, return_exceptions=True)


async def asked(port: int, said: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    try:
        return await reader.read()
    finally:
        writer.close()


async def asked_again(port: int, said: bytes) -> bytes | None:
    """What is heard; None: it was broken off."""
    try:
        return await asked(port, said)
    except ConnectionResetError:
        return None


async def test_who_connects_inside_is_served_outside(link: Process1Link) -> None:
    port = free_port()
    async with outside(link, port) as made:
        found = await asyncio.gather(*(asked(port, b"%d" % number) for number in range(100)))
        assert found == [b"heard %d" % number for number in range(100)]
        assert len(made.taken) == 100
        # Once for all servers: the same one again.
        await link.listen(port)
        with pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", 0)) as theirs:
            await link.listen(theirs.getsockname()[1])


async def test_more_than_are_waited_for_wait(link: Process1Link) -> None:
    port, go = free_port(), asyncio.Event()
    async with outside(link, port) as made:
        made.listener.unwatch()
        asking = [asyncio.create_task(asked(port, b"%d" % number)) for number in range(60)]
        await asyncio.sleep(0.3)
        await link.ping()
        assert made.taken == [] and len(made.listener._connected) <= 16
        made.listener.watch(made.accept)
        assert sorted(await asyncio.gather(*asking)) == sorted(b"heard %d" % number for number in range(60))
        go.set()


async def test_who_keeps_what_is_over_is_bounded(link: Process1Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of connections that the inside never closes so many are held, and for so long."""
    monkeypatch.setattr("aviato.server.link.relayed_listener.MOST", 20)
    monkeypatch.setattr("aviato.server.link.relayed_listener.LAST_SECONDS", 0.5)
    port = free_port()
    async with outside(link, port) as made:
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        for _, writer in kept:
            writer.write(b"x")
        for reader, _ in kept:
            assert await reader.readexactly(7) == b"heard x"
            listener = made.listener
            held = len(listener._relays) + len(listener._ending) + len(listener._waiting) + len(listener._connected)
            assert held <= 20
        for _, writer in kept:
            writer.close()


async def test_an_answer_that_is_broken_off_is_no_end(link: Process1Link) -> None:
    port = free_port()

    async def breaks(sock: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, b"half")
        await asyncio.sleep(0.2)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with outside(link, port) as made:
        made.serve = breaks
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(4) == b"half"
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_large_answers_arrive_after_the_end(link: Process1Link) -> None:
    """The server is done with it long before the inside has read all."""
    port, content = free_port(), os.urandom(300_000)

    async def says(sock: socket.socket) -> None:
        await asyncio.get_running_loop().sock_sendall(sock, content)

    async with outside(link, port) as made:
        made.serve = says
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0.3)
        reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert await reader.read() == content
        writer.close()


async def test_it_goes_on_over_the_next_connection(there: Place) -> None:
    async def again() -> socket.socket:
        return (await there.server())[0]

    port = free_port()
    made = await Process1Link.connect("one", (await there.server())[0], reopen=again)
    async with outside(made, port):
        assert await asked(port, b"before") == b"heard before"
        assert made._transport is not None
        made._transport.abort()
        # Whom the old connection had accepted is cut off with it.
        while (found := await asked_again(port, b"after")) is None:
            await asyncio.sleep(0.02)
        assert found == b"heard after"
    made.detach()


async def test_another_server_takes_it_up(there: Place, link: Process1Link) -> None:
    """Who connects while there is none waits."""
    port = free_port()
    async with outside(link, port):
        pass
    await link.ping()  # Nobody is waited for any more.
    waiting = asyncio.create_task(asked(port, b"between"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    second = await Process1Link.connect("two", (await there.server())[0])
    async with outside(second, port):
        assert await waiting == b"heard between"
    second.detach()


async def test_of_an_older_process_1_it_is_said(link: Process1Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(link.hello, "features", ["exec"])
    with pytest.raises(OSError, match="version"):
        await RelayedPorts(link).listen(free_port())
    monkeypatch.setitem(link.hello, "features", ["exec", "dial"])
    backend = KubernetesBackend(Path("/nowhere"))
    monkeypatch.setattr(backend, "_links", {"sb-1": link})
    assert (await backend.open_port_channel("sb-1")).open
    monkeypatch.setitem(link.hello, "features", ["exec"])
    with pytest.raises(OSError, match="--kubernetes-init-image"):
        await backend.open_port_channel("sb-1")
    with pytest.raises(ConnectionRefusedError):
        await backend.open_port_channel("sb-2")
