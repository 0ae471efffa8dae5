"""docs/protocol.md: Memory and descriptors."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from aviato.server.backends.conformance.peer import Peer, Refused
from aviato.wire.frames import FrameType
from aviato.wire.shared_memory import CONFIRMED_AT, PLACE, REFUSED, SIZE, confirmation

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(1 << 20)


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("test")
    yield fd
    os.close(fd)


def inode(fd: int) -> int:
    return os.fstat(fd).st_ino


async def written(peer: Peer, fd: int, size: int, **fields: Any) -> dict[str, Any]:
    """A file whose contents lie in memory."""
    given = {"path": "f", "mode": None, "size": size, "memory": inode(fd), **fields}
    channel = await peer.begin_with(fd, "write", **given)
    await peer.send(FrameType.END, channel=channel)
    return await peer.reply(channel)


async def read(peer: Peer, fd: int, **fields: Any) -> tuple[dict[str, Any], bytes]:
    """A file that may be put into memory; what comes by the connection."""
    given = {"path": "f", "max_bytes": None, "window": 8 << 20, "memory": inode(fd), **fields}
    channel = await peer.begin_with(fd, "read", **given)
    said = json.loads((await peer.next(channel)).payload)
    return said, await peer.rest(channel)


async def test_a_file_goes_in_and_out_by_it(peer: Peer, memory: int) -> None:
    os.pwrite(memory, CONTENT, 0)
    assert await written(peer, memory, len(CONTENT)) == {}
    os.ftruncate(memory, 0)
    said, rest = await read(peer, memory)
    assert said["memory_bytes"] == said["size_bytes"] == len(CONTENT) and not rest
    assert os.pread(memory, 2 << 20, 0) == CONTENT


async def test_it_is_known_by_its_inode(peer: Peer, memory: int) -> None:
    other = os.memfd_create("other")
    os.pwrite(other, b"wrong" * 300_000, 0)
    os.pwrite(memory, CONTENT, 0)
    await peer.ask("ping")
    await peer.send_with(other, FrameType.KEEPALIVE)
    await written(peer, memory, len(CONTENT))
    os.close(other)
    assert (await peer.get("f"))[1] == CONTENT


async def test_what_did_not_come_is_sent_by_the_connection(peer: Peer, memory: int) -> None:
    with pytest.raises(Refused) as caught:
        await peer.put("f", b"", memory=inode(memory))
    assert caught.value.reason == REFUSED
    await peer.put("f", CONTENT)
    said, rest = await peer.get("f", memory=inode(memory))
    assert rest == CONTENT and "memory_bytes" not in said


async def test_who_shortens_it_gets_no_file(peer: Peer, memory: int) -> None:
    await peer.put("f", b"old")
    os.pwrite(memory, CONTENT[:5000], 0)
    with pytest.raises(Refused):
        await written(peer, memory, len(CONTENT))
    assert (await peer.get("f"))[1] == b"old"


async def test_large_output_lies_there(peer: Peer, memory: int) -> None:
    """Round it twice; who reads confirms in it, by no frame, once there is something in it."""
    size, shared = 12 << 20, 0
    os.ftruncate(memory, SIZE)
    for _ in range(5):  # On a busy machine the pipe may never be full, and no piece large.
        shared = max(shared, await shared_of(peer, memory, size))
        if shared > 8 << 20:
            break
    assert shared > 8 << 20


async def shared_of(peer: Peer, memory: int, size: int) -> int:
    """How much of so many bytes came by it."""
    os.pwrite(memory, bytes(16), CONFIRMED_AT)
    spec = peer.spec("sh", "-c", f"seq 1000000000 | head -c {size}")
    fields = {"exec_id": spec.exec_id, "stdout": 0, "stderr": 0, "spec": spec.fields()}
    channel = await peer.begin_with(memory, "exec", **fields, memory=inode(memory))
    found, shared = b"", 0
    while (frame := await peer.next(channel)).type != FrameType.EXIT:
        if frame.type == FrameType.SHARED:
            at, count = PLACE.unpack(frame.payload)
            assert frame.offset == len(found) and at + count <= CONFIRMED_AT
            found += os.pread(memory, count, at)
            shared += count
        elif frame.type == FrameType.DATA:
            assert frame.offset == len(found)
            found += frame.payload
        if shared:
            os.pwrite(memory, confirmation(len(found)), CONFIRMED_AT)
        else:
            await peer.confirm(spec.exec_id, len(found))
    alone = await asyncio.create_subprocess_shell(f"seq 1000000000 | head -c {size}", stdout=asyncio.subprocess.PIPE)
    assert found == (await alone.communicate())[0]
    return shared
