"""docs/protocol.md: Output and Input."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from aviato.server.backends.conformance.peer import Peer, Refused
from aviato.server.backends.conformance.process_1 import Process1
from aviato.wire.frames import WIDE_WINDOW_BYTES, FrameType

pytestmark = pytest.mark.anyio

MIB = 1 << 20
WINDOW = MIB


def numbers(count: int) -> str:
    """A command that writes so many bytes, no two MiB of which are alike."""
    return f"seq 1000000000 | head -c {count}"


async def received(peer: Peer, channel: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        frame = await peer.next(channel)
        if frame.type == FrameType.DATA:
            assert frame.offset == len(found)
            found += frame.payload
    return found


async def rests(peer: Peer, channel: int) -> bool:
    """Whether no more comes, though there is time."""
    await asyncio.sleep(0.3)
    await peer.ask("ping")
    return peer.silent(channel)


async def test_one_who_writes_more_than_is_kept_waits(peer: Peer) -> None:
    spec = peer.spec("sh", "-c", f"{numbers(9 * MIB)}; echo done >&2")
    channel = await peer.start(spec)
    first = await received(peer, channel, WINDOW)
    assert len(first) == WINDOW and await rests(peer, channel)
    found, confirmed = first, 0
    while True:
        if len(found) - confirmed >= WINDOW // 2:
            confirmed = len(found)
            await peer.confirm(spec.exec_id, confirmed)
        frame = await peer.next(channel)
        if frame.type == FrameType.DATA and frame.stream == 1:
            assert frame.offset == len(found)
            found += frame.payload
        elif frame.type == FrameType.EXIT:
            break
    assert len(found) == 9 * MIB
    alone = await asyncio.create_subprocess_shell(f"{numbers(9 * MIB)} | md5sum", stdout=asyncio.subprocess.PIPE)
    assert hashlib.md5(found, usedforsecurity=False).hexdigest() == (await alone.communicate())[0].split()[0].decode()


async def test_more_is_kept_once_much_was_confirmed(peer: Peer) -> None:
    spec = peer.spec("sh", "-c", numbers(16 * MIB))
    channel = await peer.start(spec)
    got = 0
    while got < WIDE_WINDOW_BYTES:
        got += len(await received_more(peer, channel))
        await peer.confirm(spec.exec_id, got)
    ahead = 0
    while ahead < WIDE_WINDOW_BYTES:
        ahead += len(await received_more(peer, channel))
    assert ahead == WIDE_WINDOW_BYTES and await rests(peer, channel)
    await peer.ask("cancel", exec_id=spec.exec_id)


async def received_more(peer: Peer, channel: int) -> bytes:
    while (frame := await peer.next(channel)).type != FrameType.DATA:
        pass
    return frame.payload


async def test_it_goes_on_from_an_offset_on_another_connection(process_1: Process1) -> None:
    peer = process_1.peer
    spec = peer.spec("sh", "-c", numbers(600_000))
    first = (await peer.finish(await peer.start(spec))).streams[1]
    other = await process_1.connect()
    for offset in (0, 1, 123_456, 599_999, 600_000):
        seen = await other.finish(await other.start(None, spec.exec_id, stdout=offset))
        assert seen.streams[1] == first[offset:] and seen.gaps == []


async def test_what_was_confirmed_is_a_gap_for_who_comes_later(process_1: Process1) -> None:
    peer = process_1.peer
    spec = peer.spec("sh", "-c", "echo 12345; echo err >&2")
    await peer.finish(await peer.start(spec))
    await peer.confirm(spec.exec_id, 4)
    other = await process_1.connect()
    seen = await other.finish(await other.start(spec))
    assert seen.gaps == [(1, 0, 4)] and (seen.stdout, seen.stderr) == ("5\n", "err\n")


async def test_a_result_waits_until_it_is_confirmed(process_1: Process1) -> None:
    peer = process_1.peer
    spec = peer.spec("true")
    await peer.finish(await peer.start(spec))
    await peer.confirm(spec.exec_id, 0, done=True)
    assert (await process_1.connect()).hello["execs"] == {}


async def test_both_streams_are_whole_before_the_end(peer: Peer) -> None:
    seen = await peer.sh(f"({numbers(300_000)}) & ({numbers(300_000)}) >&2; wait")
    assert len(seen.streams[1]) == len(seen.streams[2]) == 300_000 and seen.types[-1] == FrameType.EXIT


async def test_input_belongs_at_its_offset(peer: Peer) -> None:
    spec = peer.spec("cat", stdin=True)
    channel = await peer.start(spec)
    for offset, data in ((0, b"abc"), (0, b"abc"), (1, b"bcde"), (5, b"f")):
        assert await peer.ask("stdin", data, exec_id=spec.exec_id, offset=offset, eof=False) == {}
    with pytest.raises(Refused) as caught:
        await peer.ask("stdin", b"z", exec_id=spec.exec_id, offset=9, eof=False)
    assert caught.value.code == "VALIDATION"
    await peer.ask("stdin", b"", exec_id=spec.exec_id, offset=6, eof=True)
    assert (await peer.finish(channel)).stdout == "abcdef"


async def test_who_does_not_read_is_not_given_more(peer: Peer) -> None:
    spec = peer.spec("sh", "-c", "read go < /tmp/go; wc -c", stdin=True)
    assert (await peer.sh("mkfifo /tmp/go")).result["returncode"] == 0
    channel = await peer.start(spec)
    sent, waiting = 0, 0
    while not waiting:
        asked = await peer.begin("stdin", b"x" * (64 << 10), exec_id=spec.exec_id, offset=sent, eof=False)
        sent += 64 << 10
        await peer.ask("ping")
        waiting = asked if peer.silent(asked) else 0
        assert sent < 4 * MIB
    await peer.sh("echo > /tmp/go")
    assert (await peer.next(waiting)).type == FrameType.REPLY
    await peer.ask("stdin", b"", exec_id=spec.exec_id, offset=sent, eof=True)
    assert (await peer.finish(channel)).stdout.strip() == str(sent)


async def test_after_the_end_nothing_more_is_taken(peer: Peer) -> None:
    spec = peer.spec("sh", "-c", "cat; sleep 60", stdin=True)
    channel = await peer.start(spec)
    await peer.ask("stdin", b"all", exec_id=spec.exec_id, offset=0, eof=True)
    assert await peer.ask("stdin", b"all", exec_id=spec.exec_id, offset=0, eof=True) == {}
    with pytest.raises(Refused) as caught:
        await peer.ask("stdin", b"more", exec_id=spec.exec_id, offset=3, eof=False)
    assert (caught.value.code, caught.value.reason) == ("EXECUTION", "stdin_closed")
    assert await received(peer, channel, 3) == b"all"
    await peer.ask("cancel", exec_id=spec.exec_id)
    assert (await peer.finish(channel)).result["cancelled"] is True
