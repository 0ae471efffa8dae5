"""A connection that is lost while process 1 lives on: the link goes on over another; nothing is lost, doubled or run twice."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Self

import pytest

from aviato.server.link.handshake import NotAuthentic, prove
from aviato.server.link.link import Configuration, ExecSpec, Process1Link, SandboxGone
from aviato.wire.frames import FrameType
from tests.protocol.networked import Place, place
from tests.protocol.test_over_a_network import CONFIGURATION

pytestmark = pytest.mark.anyio

LINES = 3000
COUNT = f"""
echo x >> /tmp/runs; i=0
while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); [ $((i % 100)) = 0 ] && sleep 0.02; done
wc -l < /tmp/runs
"""


class Way:
    """The network between: connections lead through it until it is cut."""

    def __init__(self, there: Place) -> None:
        self.there = there
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def dial(self) -> socket.socket:
        """A connection that can be cut."""
        own, theirs = socket.socketpair()
        out = self.there.dial()
        for one in (own, theirs):
            one.setblocking(False)
        self._open += [theirs, out]
        for source, target in ((theirs, out), (out, theirs)):
            task = asyncio.create_task(_pump(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return own

    async def cut(self) -> None:
        """All at once, in both directions, whatever is on its way."""
        self.cuts += 1
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        made, self._open = self._open, []
        for sock in made:
            sock.close()


async def _pump(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while data := await loop.sock_recv(source, 4096):
            await loop.sock_sendall(target, data)


async def linked(there: Place, way: Way) -> Process1Link:
    """The link of a server that knows how to come back."""

    async def reopen() -> socket.socket:
        while True:
            sock = await way.dial()
            try:
                assert await prove(sock, there.key) == "running"
                return sock
            except (NotAuthentic, OSError):
                sock.close()  # It was cut off, too.

    (await there.begun()).close()  # It has its plan, and no server.
    return await Process1Link.connect("sb", await reopen(), Configuration.of(CONFIGURATION), reopen=reopen)


def command(exec_id: str, script: str, **options: object) -> ExecSpec:
    given: dict[str, object] = {"environment": {}, "working_dir": None, "stdin": False, "timeout_seconds": None, **options}
    return ExecSpec(exec_id=exec_id, command=["sh", "-c", script], **given)  # type: ignore[arg-type]


async def read(link: Process1Link, exec_id: str, script: str) -> tuple[bytes, list[int]]:
    """All output, each byte at its place, and the kinds of the frames that are no output."""
    subscription = link.subscribe(command(exec_id, script), exec_id)
    found, kinds = bytearray(), []
    async for frame in subscription:
        if frame.type == FrameType.DATA:
            assert frame.offset == len(found)
            found += frame.payload
            link.acknowledge(exec_id, len(found), 0, False)
        else:
            kinds.append(int(frame.type))
    link.acknowledge(exec_id, len(found), 0, True)
    return bytes(found), kinds


async def test_commands_go_on_over_cuts() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        scripts = [COUNT.replace("runs", f"runs{number}") for number in range(3)]
        reading = [asyncio.create_task(read(link, f"ex-{number}", script)) for number, script in enumerate(scripts)]
        while not all(task.done() for task in reading):
            await asyncio.sleep(0.1)
            await way.cut()
        expected = b"".join(b"line %d\n" % number for number in range(LINES)) + b"1\n"
        once = [int(FrameType.ACCEPTED), int(FrameType.STARTED), int(FrameType.EXIT)]
        assert [task.result() for task in reading] == [(expected, once)] * 3
        assert way.cuts > 1 and link.ended() is None
        link.detach()


async def test_what_has_no_place_to_go_on_from_is_told() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        await link.make_directory("/tmp/there")
        cut = asyncio.create_task(way.cut())
        with pytest.raises(SandboxGone) as caught:
            for _ in range(1000):
                await link.stat("/tmp/there")
        assert caught.value.ended.reason == "cut"
        await cut
        async with asyncio.timeout(20):
            while True:
                with suppress(SandboxGone):
                    assert (await link.stat("/tmp/there"))["type"] == "directory"
                    break
                await asyncio.sleep(0.05)
        link.detach()


async def test_results_that_were_confirmed_are_forgotten_though_the_word_was_lost() -> None:
    async with place() as there, Way(there) as way:
        link = await linked(there, way)
        assert (await read(link, "ex-1", "echo on"))[0] == b"on\n"
        await way.cut()  # With the confirmation on its way, or not.
        async with asyncio.timeout(20):
            while True:
                with suppress(SandboxGone):
                    await link.ping()
                    break
                await asyncio.sleep(0.05)
        other = await Process1Link.connect("sb", await _proved(there))
        assert other.hello["execs"] == {}
        other.detach()
        async with asyncio.timeout(20):
            assert (await link.wait_ended()).reason == "taken"
        link.detach()


async def _proved(there: Place) -> socket.socket:
    sock = there.dial()
    assert await prove(sock, there.key) == "running"
    return sock
