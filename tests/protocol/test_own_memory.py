"""What `aviato-init` keeps for itself. The page promises nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aviato.server.backends.conformance.peer import Peer
from aviato.server.backends.conformance.process_1 import Process1
from aviato.wire.frames import FrameType
from tests.matrices import deep

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("make", deep(["zygote", "serve"]), indirect=True)]

KIB = 1 << 10
MIB = 1 << 20
PATIENCE_SECONDS = 20.0


def own_bytes(pid: int) -> int:
    """Memory that is of no file and shared with nobody."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * KIB for line in lines if line.startswith(("Private_Dirty:", "Swap:")))


async def much_is_printed(peer: Peer) -> None:
    spec = peer.spec("head", "-c", str(MIB), "/dev/zero")
    channel = await peer.start(spec)
    got = 0
    while (frame := await peer.next(channel)).type != FrameType.EXIT:
        if frame.type == FrameType.DATA:
            got += len(frame.payload)
            await peer.confirm(spec.exec_id, got)
    assert got == MIB
    await peer.confirm(spec.exec_id, got, done=True)


async def much_is_read(peer: Peer) -> None:
    await peer.sh(f"head -c {2 * MIB} /dev/zero > f")
    await peer.get("f")


async def much_is_confirmed_late(peer: Peer) -> None:
    size = 60 * KIB
    specs = [peer.spec("head", "-c", str(size), "/dev/zero") for _ in range(8)]
    for spec in specs:
        channel = await peer.start(spec)
        while (await peer.next(channel)).type != FrameType.EXIT:
            pass
    await asyncio.sleep(0.3)  # What passed has been given back by then.
    for spec in specs:
        await peer.confirm(spec.exec_id, size, done=True)


@pytest.mark.parametrize("request_of_it", [much_is_printed, much_is_read, much_is_confirmed_late])
async def test_memory_is_given_back_in_a_moment(process_1: Process1, request_of_it: Callable[[Peer], Awaitable[None]]):
    for _ in range(3):
        seen = await process_1.peer.run("true")
        assert seen.result["returncode"] == 0
    before = own_bytes(process_1.pid)
    await request_of_it(process_1.peer)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while own_bytes(process_1.pid) > before + 64 * KIB:
            await asyncio.sleep(0.05)
