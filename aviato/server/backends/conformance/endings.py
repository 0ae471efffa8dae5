"""docs/protocol.md: Endings."""

from __future__ import annotations

import asyncio
import base64

import pytest

from aviato.server.backends.conformance.process_1 import Process1
from aviato.wire.frames import FrameType

pytestmark = pytest.mark.anyio


HEARS = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"bye\\n"), os._exit(0)))
print("ready", flush=True)
while True: time.sleep(0.02)
"""


async def ended(process_1: Process1) -> dict[str, object]:
    await process_1.peer.gone()
    assert process_1.peer.ended is not None
    return process_1.peer.ended


@pytest.mark.parametrize("grace", [0, 5])
async def test_stopped(process_1: Process1, grace) -> None:
    peer = process_1.peer
    channel = await peer.start(peer.spec("python3", "-I", "-c", HEARS))
    while (await peer.next(channel)).type != FrameType.DATA:
        pass
    await peer.begin("stop", grace_seconds=grace)
    assert await ended(process_1) == {"reason": "stopped", "returncode": None}
    said = b""
    while not peer.silent(channel):
        frame = await peer.next(channel)
        said += frame.payload if frame.type == FrameType.DATA else b""
    assert said == (b"bye\n" if grace else b"")
    assert (await process_1.last_words())[0]["reason"] == "stopped"


async def test_with_its_main_command(process_1: Process1) -> None:
    peer = process_1.peer
    channel = await peer.start(peer.spec("sh", "-c", "sleep 60 & echo out; exit 7", main=True))
    seen = await peer.finish(channel)
    assert (seen.stdout, seen.result["returncode"]) == ("out\n", 7)
    assert await ended(process_1) == {"reason": "exited", "returncode": 7}


async def test_a_main_command_s_end_waits_for_the_next_server(process_1: Process1) -> None:
    peer = process_1.peer
    spec = peer.spec("sh", "-c", "read line; sleep 1; echo out; exit 7", main=True, stdin=True)
    channel = await peer.start(spec)
    assert [(await peer.next(channel)).type for _ in range(2)] == [FrameType.ACCEPTED, FrameType.STARTED]
    await peer.begin("stdin", b"go\n", exec_id=spec.exec_id, offset=0, eof=True)
    peer.close()
    await asyncio.sleep(2)
    other = await process_1.connect()
    seen = await other.finish(await other.start(None, spec.exec_id))
    assert (seen.stdout, seen.result["returncode"]) == ("out\n", 7)
    await other.gone()
    assert other.ended == {"reason": "exited", "returncode": 7}


async def test_results_that_nobody_confirmed_are_left(process_1: Process1) -> None:
    peer = process_1.peer
    kept, taken = peer.spec("sh", "-c", "echo kept"), peer.spec("true")
    for spec in (kept, taken):
        await peer.finish(await peer.start(spec))
    await peer.confirm(taken.exec_id, 0, done=True)
    await peer.begin("stop", grace_seconds=0)
    await ended(process_1)
    words = await process_1.last_words()
    [left] = [line for line in words if "exec_id" in line]
    assert left["exec_id"] == kept.exec_id and left["exit"]["returncode"] == 0
    assert base64.b64decode(left["output"][0][1]) == b"kept\n"


async def test_after_its_lifetime(make) -> None:
    async with make(max_lifetime_seconds=1.0) as process_1:
        channel = await process_1.peer.start(process_1.peer.spec("sleep", "60"))
        assert (await ended(process_1))["reason"] == "lifetime"
        assert [(await process_1.peer.next(channel)).type for _ in range(2)] == [FrameType.ACCEPTED, FrameType.STARTED]


async def test_unused(make) -> None:
    async with make(idle_timeout_seconds=0.7) as process_1:
        peer = process_1.peer
        spec = peer.spec("sleep", "1.2")
        await peer.finish(await peer.start(spec))
        await peer.confirm(spec.exec_id, 0, done=True)
        await peer.ask("ping")
        assert (await ended(process_1))["reason"] == "idle"


async def test_without_a_server(make) -> None:
    async with make(orphan_timeout_seconds=2.0) as process_1:
        for _ in range(4):
            await asyncio.sleep(0.6)
            await process_1.peer.send(FrameType.KEEPALIVE)
        await process_1.peer.ask("ping")
        process_1.peer.close()
        assert (await process_1.last_words())[0]["reason"] == "orphaned"
