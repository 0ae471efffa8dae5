"""docs/protocol.md, Ports: connections that go over the server's own, where nothing but bytes passes.

A program inside shares the network of the test, as those of a pod share theirs with process 1: the test is that program.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from aviato.server.backends.conformance.peer import Peer, Refused
from aviato.wire.frames import FrameType
from tests.protocol.networked import PATIENCE_SECONDS, Place, place
from tests.protocol.test_over_a_network import configured, read

pytestmark = pytest.mark.anyio

REFUSED, AGAIN, TIMED_OUT, IN_USE = 111, 11, 110, 98
WINDOW = 128 << 10
MOST = 512


@pytest.fixture(scope="module")
async def there() -> AsyncIterator[Place]:
    async with place() as made:
        first = await configured(made)
        yield made
        first.close()


@pytest.fixture
async def peer(there: Place) -> AsyncIterator[Peer]:
    """A connection of the test's own, which is the one that counts."""
    made = Peer((await there.server())[0])
    await made.ready()
    yield made
    assert (await made.sh("echo on")).stdout == "on\n", "it was disturbed"
    made.close()


class Listening:
    """A program that listens inside."""

    def __init__(self, family: int = socket.AF_INET, backlog: int = 600) -> None:
        host = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        self.sock = socket.create_server((host, 0), family=family, backlog=backlog)
        self.sock.setblocking(False)
        self.port: int = self.sock.getsockname()[1]

    async def accept(self) -> socket.socket:
        """The next who connects."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            made, _ = await asyncio.get_running_loop().sock_accept(self.sock)
        made.setblocking(False)
        return made


@asynccontextmanager
async def listening(*words: Any, **options: Any) -> AsyncIterator[Listening]:
    made = Listening(*words, **options)
    with made.sock:
        yield made


async def connected(peer: Peer, inside: Listening, window: int = WINDOW) -> tuple[int, socket.socket]:
    """A channel, and the program's end."""
    channel = await peer.begin("dial", port=inside.port, window=window)
    frame = await peer.next(channel)
    assert (frame.type, json.loads(frame.payload)) == (FrameType.REPLY, {})
    return channel, await inside.accept()


async def failed(peer: Peer, port: int) -> int:
    """The error of a connection that does not come about."""
    said = json.loads((await peer.next(await peer.begin("dial", port=port, window=WINDOW))).payload)
    return int(said["errno"])


async def closed(peer: Peer, channel: int) -> None:
    """Give a channel back, and have it."""
    await peer.send(FrameType.CLOSE, channel=channel)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await peer.next(channel)).type != FrameType.CLOSE:
            pass


async def is_reset(sock: socket.socket) -> bool:
    """Whether it ends by being broken off, and not by an end."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            while await asyncio.get_running_loop().sock_recv(sock, 1 << 16):
                pass
        except ConnectionResetError:
            return True
    return False


async def test_it_is_said_where_it_is(there: Place, peer: Peer) -> None:
    assert {"dial", "accept"} <= set(peer.hello["features"])


async def test_bytes_go_both_ways_and_each_way_ends_by_itself(peer: Peer) -> None:
    async with listening() as inside:
        channel, sock = await connected(peer, inside)
        with sock:
            await peer.send(FrameType.DATA, b"question", channel=channel)
            assert await read(sock, 8) == b"question"
            await peer.send(FrameType.END, channel=channel, offset=8)
            assert await read(sock, 1) == b"", "the end has come"
            frame = await peer.next(channel)
            assert (frame.type, frame.offset) == (FrameType.CREDIT, 8), "all was taken"
            sock.sendall(b"answer")
            frame = await peer.next(channel)
            assert (frame.type, frame.offset, bytes(frame.payload)) == (FrameType.DATA, 0, b"answer")
            sock.shutdown(socket.SHUT_WR)
            frame = await peer.next(channel)
            assert (frame.type, frame.offset) == (FrameType.END, 6)
            await closed(peer, channel)
            assert not await is_reset(sock)


async def test_a_channel_that_was_closed_is_free(peer: Peer) -> None:
    async with listening() as inside:
        channel, sock = await connected(peer, inside)
        sock.close()
        await closed(peer, channel)
        request = json.dumps({"op": "dial", "port": inside.port, "window": WINDOW}).encode()
        await peer.send(FrameType.REQUEST, request, channel=channel)
        assert (await peer.next(channel)).type == FrameType.REPLY
        with await inside.accept() as again:
            again.sendall(b"anew")
            assert bytes((await peer.next(channel)).payload) == b"anew"
            await closed(peer, channel)


async def test_who_does_not_listen_is_refused(there: Place, peer: Peer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert await failed(peer, port) == REFUSED
    assert await failed(peer, there.port) == REFUSED, "process 1 itself is no program"
    for wrong in ({"port": 65536}, {"port": -1}, {"port": "80"}, {"port": 80, "window": -1}, {"port": 80, "window": None}):
        with pytest.raises(Refused) as caught:
            await peer.ask("dial", **{"window": WINDOW, **wrong})
        assert caught.value.code == "VALIDATION"


async def test_by_the_other_loopback(peer: Peer) -> None:
    try:
        made = Listening(socket.AF_INET6)
    except OSError:
        pytest.skip("there is no ::1 here")
    with made.sock:
        channel, sock = await connected(peer, made)
        sock.close()
        await closed(peer, channel)


async def test_no_more_comes_than_the_window(peer: Peer) -> None:
    """However much the inside says, and whoever else is served meanwhile."""
    async with listening() as inside:
        channel, sock = await connected(peer, inside, window=100_000)
        content = os.urandom(3_000_000)
        with sock:
            sending = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(sock, content))
            found = b""
            while len(found) < 100_000:
                found += bytes((await peer.next(channel)).payload)
            assert (await peer.sh("echo others")).stdout == "others\n"
            assert len(found) == 100_000 and peer.silent(channel)
            while len(found) < len(content):
                await peer.send(FrameType.CREDIT, channel=channel, offset=len(found))
                frame = await peer.next(channel)
                assert frame.offset == len(found)
                found += bytes(frame.payload)
            await sending
            assert found == content
            await closed(peer, channel)


async def test_no_more_is_taken_than_the_window(peer: Peer) -> None:
    """A program that does not read is memory of process 1's only so far."""
    async with listening() as inside:
        channel, sock = await connected(peer, inside)
        with sock:
            sent = taken = 0
            piece = os.urandom(32 << 10)
            while True:
                while sent - taken + len(piece) <= WINDOW:
                    await peer.send(FrameType.DATA, piece, channel=channel, offset=sent)
                    sent += len(piece)
                await peer.ask("ping")
                if peer.silent(channel):
                    break
                frame = await peer.next(channel)
                assert frame.type == FrameType.CREDIT
                taken = frame.offset
            assert await read(sock, sent) == piece * (sent // len(piece))
            channel_2, sock_2 = await connected(peer, inside)
            with sock_2:
                for _ in range(1000):
                    await peer.send(FrameType.DATA, piece, channel=channel_2)
                with pytest.raises(Refused) as caught:
                    while True:
                        await peer.next(channel_2)
                assert caught.value.code == "VALIDATION"
                assert await is_reset(sock_2)
            await closed(peer, channel)


async def test_what_comes_behind_an_end_is_refused(peer: Peer) -> None:
    async with listening() as inside:
        channel, sock = await connected(peer, inside)
        with sock:
            await peer.send(FrameType.END, channel=channel)
            await peer.send(FrameType.DATA, b"late", channel=channel)
            with pytest.raises(Refused):
                while True:
                    await peer.next(channel)


async def test_a_reset_stays_a_reset(peer: Peer) -> None:
    async with listening() as inside:
        channel, sock = await connected(peer, inside)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        with pytest.raises(Refused) as caught:
            await peer.next(channel)
        assert (caught.value.code, caught.value.reason) == ("UNAVAILABLE", "reset")
        channel, sock = await connected(peer, inside)
        with sock:
            await closed(peer, channel)
            assert await is_reset(sock)


async def test_a_server_that_is_replaced_breaks_its_connections_off() -> None:
    async with place() as there, listening() as inside:
        first = await configured(there)
        _, sock = await connected(first, inside)
        with sock:
            second = Peer((await there.server())[0])
            await second.ready()
            assert await is_reset(sock)
        channel, sock = await connected(second, inside)
        with sock:
            await closed(second, channel)
        for one in (first, second):
            one.close()


async def test_who_never_accepts_holds_up_nobody(peer: Peer) -> None:
    async with listening(backlog=0) as full, listening() as inside:
        stuck = [await peer.begin("dial", port=full.port, window=WINDOW) for _ in range(100)]
        for _ in range(10):
            channel, sock = await connected(peer, inside)
            sock.close()
            await closed(peer, channel)
        for channel in stuck[:50]:
            await closed(peer, channel)
        last = stuck[-1]
        assert json.loads((await peer.next(last)).payload) == {"errno": TIMED_OUT}


async def test_so_many_and_no_more(there: Place, peer: Peer) -> None:
    before = len(os.listdir(f"/proc/{pid_of(there)}/fd")) if os.geteuid() == 0 else None
    async with listening() as inside:
        made = [await connected(peer, inside) for _ in range(MOST)]
        assert await failed(peer, inside.port) == AGAIN
        assert (await peer.sh("echo others")).stdout == "others\n"
        channel, sock = made.pop()
        await closed(peer, channel)
        sock.close()
        made.append(await connected(peer, inside))
        for channel, sock in made:
            sock.close()
            await closed(peer, channel)
    if before is not None:
        assert len(os.listdir(f"/proc/{pid_of(there)}/fd")) <= before


def pid_of(there: Place) -> int:
    """Of process 1, behind the program that started it."""
    pid = there.process.pid
    while of_status(pid).split()[-1] != "1":
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


def of_status(pid: int) -> str:
    """Its numbers in all namespaces."""
    return next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))


async def test_strangers_at_its_port_hold_up_no_connection(there: Place, peer: Peer) -> None:
    """Code inside can keep all places of those who have not proved the key: connections need none."""
    strangers = [there.dial() for _ in range(50)]
    async with listening() as inside:
        channel, sock = await connected(peer, inside)
        with sock:
            sock.sendall(b"through")
            assert bytes((await peer.next(channel)).payload) == b"through"
            await closed(peer, channel)
    for one in strangers:
        one.close()


async def test_a_connection_is_use_of_the_sandbox() -> None:
    async with place() as there:
        peer = await configured(there, idle_timeout_seconds=0.5)
        async with listening() as inside:
            channel, sock = await connected(peer, inside)
            await asyncio.sleep(1.5)
            assert peer.ended is None and not peer.closed.is_set()
            with sock:
                await closed(peer, channel)
            await peer.gone()
            assert peer.ended == {"reason": "idle", "returncode": None}
        peer.close()
        assert await there.status() == 82


async def test_a_program_that_is_busy_with_its_ends_keeps_process_1_from_nothing(there: Place, peer: Peer) -> None:
    """Ends and hang-ups that nobody asks about cost no time."""
    async with listening() as inside:
        made = [await connected(peer, inside, window=1) for _ in range(20)]
        for _, sock in made:
            sock.sendall(b"more than the window")
            sock.shutdown(socket.SHUT_WR)
        for channel, _ in made:
            await peer.next(channel)
            await peer.send(FrameType.END, channel=channel)
        for _, sock in made:
            sock.close()
        before = ticks(there)
        await asyncio.sleep(1.0)
        assert ticks(there) - before < 20
        for channel, _ in made:
            await closed(peer, channel)


def ticks(there: Place) -> int:
    """Hundredths of a second that process 1 has had of a processor."""
    return sum(map(int, Path(f"/proc/{pid_of(there)}/stat").read_text().rpartition(")")[2].split()[11:13]))


# -- from the inside ---------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def inner(port: int) -> socket.socket:
    """A program inside that connects."""
    made = socket.socket()
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    return made


async def test_who_connects_comes_to_the_oldest_that_waits(peer: Peer) -> None:
    port = free_port()
    for _ in range(2):
        assert await peer.ask("listen", port=port) == {}
    waiting = [await peer.begin("accept", port=port, window=WINDOW) for _ in range(4)]
    await closed(peer, waiting[0])
    await closed(peer, waiting[2])
    await peer.ask("ping")
    assert peer.silent(waiting[1]) and peer.silent(waiting[3])
    for channel, word in ((waiting[1], b"one"), (waiting[3], b"two")):
        with await inner(port) as sock:
            sock.sendall(word)
            assert (await peer.next(channel)).type == FrameType.REPLY
            assert bytes((await peer.next(channel)).payload) == word
            await peer.send(FrameType.DATA, word, channel=channel)
            assert await read(sock, 3) == word
            await closed(peer, channel)
            assert await is_reset(sock)


async def test_nobody_is_accepted_whom_no_request_waits_for(there: Place, peer: Peer) -> None:
    port = free_port()
    assert await peer.ask("listen", port=port) == {}
    kept = [await inner(port) for _ in range(100)]
    before = ticks(there)
    await asyncio.sleep(0.5)
    assert ticks(there) - before < 10
    channel = await peer.begin("accept", port=port, window=WINDOW)
    assert (await peer.next(channel)).type == FrameType.REPLY
    await closed(peer, channel)
    for sock in kept:
        sock.close()


async def test_what_cannot_be_listened_at(there: Place, peer: Peer) -> None:
    async with listening() as inside:
        assert await peer.ask("listen", port=inside.port) == {"errno": IN_USE}
    assert await peer.ask("listen", port=there.port) == {"errno": IN_USE}
    with pytest.raises(Refused) as caught:
        await peer.ask("accept", port=free_port(), window=WINDOW)
    assert caught.value.code == "VALIDATION"
    for op, wrong in (
        ("listen", {"port": 65536}),
        ("listen", {}),
        ("accept", {"port": 80}),
        ("accept", {"port": "80", "window": 1}),
    ):
        with pytest.raises(Refused) as caught:
            await peer.ask(op, **wrong)
        assert caught.value.code == "VALIDATION"


async def test_so_many_ports_are_listened_at_and_no_more() -> None:
    async with place() as there:
        peer = await configured(there)
        found = [await peer.ask("listen", port=free_port()) for _ in range(17)]
        assert found == [{}] * 16 + [{"errno": 24}]
        peer.close()


async def test_what_the_inside_begins_is_no_use_of_the_sandbox() -> None:
    """What a command has left behind, and nobody asks for any more, keeps it from no end."""
    async with place() as there:
        peer = await configured(there, idle_timeout_seconds=1.0)
        port = free_port()
        assert await peer.ask("listen", port=port) == {}
        channels = [await peer.begin("accept", port=port, window=WINDOW) for _ in range(2)]
        with await inner(port):
            assert (await peer.next(channels[0])).type == FrameType.REPLY
            await peer.gone()
        assert peer.ended == {"reason": "idle", "returncode": None}
        peer.close()
