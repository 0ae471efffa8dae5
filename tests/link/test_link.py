"""The server's end of a connection to process 1, with its other end played by the test."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.link.link import Process1Link
from aviato.wire.frames import FrameDecoder, FrameType, encode

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def linked(ours: socket.socket, theirs: socket.socket, *features: str) -> Process1Link:
    """The link over one end of a pair, whose other end is process 1's."""
    connecting = asyncio.create_task(Process1Link.connect("sb-it", ours))
    hello = {"protocol": 1, "features": features, "execs": {}, "orphan_timeout_seconds": 600}
    theirs.sendall(encode(FrameType.HELLO, json.dumps(hello).encode()))
    return await connecting


async def test_what_was_said_before_the_end_is_heard_by_who_speaks_into_it() -> None:
    """A write fails before what has come is read: that is heard all the same."""
    ours, theirs = socket.socketpair()
    with theirs:
        link = await linked(ours, theirs)
        theirs.sendall(encode(FrameType.ENDED, b'{"reason": "exited", "returncode": 4}'))
    for _ in range(3):
        link.acknowledge("ex-it", 1, 0, done=False)
    assert await link.wait_ended() == Ended(reason="exited", returncode=4)


async def test_a_link_that_is_let_go_of_while_its_connection_breaks_fails_nowhere() -> None:
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    ours, theirs = socket.socketpair()
    with theirs:
        link = await linked(ours, theirs)
    pinging = asyncio.create_task(link.ping())
    await asyncio.sleep(0)  # It writes, which fails.
    link.detach()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not failures
    pinging.exception()


async def test_a_file_that_is_read_late_touches_no_other_request() -> None:
    """Its number may be another's by then: there are 65,535."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with theirs:
        connecting = asyncio.create_task(Process1Link.connect("sb-it", ours))
        hello = {"protocol": 1, "features": [], "execs": {}, "orphan_timeout_seconds": 600}
        await asyncio.get_running_loop().sock_sendall(theirs, encode(FrameType.HELLO, json.dumps(hello).encode()))
        link = await connecting
        reader = link.read_file("/a")
        piece = encode(FrameType.DATA, bytes(1 << 19), channel=1)
        for frame in (encode(FrameType.REPLY, b"{}", channel=1), piece, piece, encode(FrameType.END, channel=1)):
            await asyncio.get_running_loop().sock_sendall(theirs, frame)
        await reader.opened()
        while link._channels:
            await asyncio.sleep(0)
        link._last_channel = 0
        pinging = asyncio.create_task(link.ping())
        await asyncio.sleep(0)  # It has that number.
        for _ in range(3):
            await anext(reader)
        await reader.aclose()
        await asyncio.sleep(0.05)
        said = FrameDecoder().feed(theirs.recv(1 << 16))
        assert FrameType.CLOSE not in [frame.type for frame in said] and FrameType.CREDIT not in [frame.type for frame in said]
        theirs.send(encode(FrameType.REPLY, b"{}", channel=1))
        await asyncio.wait_for(pinging, 60)
    link.detach()


async def test_one_that_is_abandoned_tells_nobody_of_the_end_of_its_process_1() -> None:
    """Its sandbox lives on with another: who had this link before and asks only now hears the word that it was left with."""
    ours, theirs = socket.socketpair()
    with theirs:
        link = await linked(ours, theirs, "rest", "cancel_all")
        under_way = asyncio.create_task(link.ping())
        await asyncio.sleep(0)  # It is on its way.
        link.abandon(Ended(reason="reset"))
        for has_ended in (False, True):
            for ask in (lambda: under_way, link.ping, link.rest, link.cancel_all, lambda: link.stat("/")):
                with pytest.raises(SandboxGone, match="gone: reset"):
                    await asyncio.wait_for(ask(), 60)
            for begin in (lambda: link.subscribe(None, "ex-it"), link.read_layer):
                with pytest.raises(SandboxGone, match="gone: reset"):
                    begin()
            if not has_ended:
                resting = asyncio.create_task(link.rest(at_end=True))
                stopping = asyncio.create_task(link.stop(0))
                await asyncio.sleep(0)
                said = b'{"rests": false, "commands": ["ex-it"], "calls": []}'
                theirs.sendall(encode(FrameType.REPLY, said, channel=2))
                theirs.sendall(encode(FrameType.ENDED, b'{"reason": "stopped"}'))
                found = await asyncio.wait_for(resting, 60)
                assert found is not None and found.done.commands == ("ex-it",)
                assert await asyncio.wait_for(stopping, 60) == Ended(reason="stopped")
    link.detach()
