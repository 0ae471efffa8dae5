"""HELLO, later connections, and what is said wrongly: docs/protocol.md, Frames and A connection."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest

from aviato.server.backends.conformance.peer import Peer, Refused
from aviato.server.backends.conformance.process_1 import Process1
from aviato.wire.frames import HEAD, MAX_PAYLOAD_BYTES, PROTOCOL, FrameType, encode
from aviato.wire.ids import new_exec_id

pytestmark = pytest.mark.anyio

FIELDS = {"protocol", "boot_id", "pid_namespace", "features", "orphan_timeout_seconds", "execs"}


async def test_hello_comes_first_and_says_what_there_is(process_1) -> None:
    hello = process_1.peer.hello
    assert hello.keys() >= FIELDS and hello["protocol"] == PROTOCOL and hello["execs"] == {}
    assert (await process_1.connect()).hello["configured"] is True


async def test_the_newest_connection_replaces_the_one_before_and_commands_run_on(process_1: Process1) -> None:
    first = process_1.peer
    spec = first.spec("sh", "-c", "echo one; read line; echo $line", stdin=True)
    channel = await first.start(spec)
    while (await first.next(channel)).type != FrameType.DATA:
        pass
    second = await process_1.connect()
    await first.gone()
    [told] = second.hello["execs"].values()
    assert (told["state"], told["stdout"], told["main"]) == ("running", 4, False)
    channel = await second.start(None, spec.exec_id, stdout=4)
    await second.ask("stdin", b"two\n", exec_id=spec.exec_id, offset=0, eof=True)
    seen = await second.finish(channel)
    assert seen.stdout == "two\n" and seen.result["returncode"] == 0
    assert (await process_1.connect()).hello["execs"][spec.exec_id]["state"] == "ended"


AGAIN: dict[str, Any] = {
    "environment": {"GIVEN": "yes"},
    "working_dir": "/tmp",
    "nice": 0,
    "limits": {},
    "orphan_timeout_seconds": 600,
    "max_lifetime_seconds": None,
    "idle_timeout_seconds": None,
}


async def test_one_that_is_configured_again_is_somebody_else_s(process_1: Process1) -> None:
    peer, name = process_1.peer, "another-" + new_exec_id()[3:]
    before = (await peer.sh("hostname; pwd; echo $GIVEN; cat /etc/hosts")).stdout
    await peer.send(FrameType.REQUEST, json.dumps({"op": "configure", **AGAIN, "host_name": name}).encode())
    after = (await peer.sh("hostname; pwd; echo $GIVEN; cat /etc/hosts")).stdout
    named = name if "host_name" in peer.hello["features"] else before.split()[0]
    assert after.splitlines()[:3] == [named, "/tmp", "yes"]
    hosts = [line.split() for line in before.splitlines()[3:]]
    renamed = [[named if word == before.split()[0] else word for word in line] for line in hosts]
    assert [line.split() for line in after.splitlines()[3:]] == renamed


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, 7, ["x"], "a\nb"])
async def test_a_name_that_none_can_be_changes_nothing(process_1: Process1, name: Any) -> None:
    peer = process_1.peer
    if "host_name" not in peer.hello["features"]:
        pytest.skip("it cannot be told a name")
    channel = peer.open()
    await peer.send(FrameType.REQUEST, json.dumps({"op": "configure", **AGAIN, "host_name": name}).encode(), channel=channel)
    with pytest.raises(Refused) as caught:
        await peer.next(channel)
    assert caught.value.code == "VALIDATION" and "host_name" in str(caught.value)
    assert (await peer.sh("echo $GIVEN")).stdout == "\n"


WRONG = {
    "no JSON": b"{",
    "an array": b"[]",
    "no operation": b"{}",
    "an operation that there is not": b'{"op": "dance"}',
    "a field is missing": b'{"op": "stat"}',
    "a field of another kind": b'{"op": "stat", "path": 7}',
    "bytes that are no text": b'{"op": "stat", "path": "\xff"}',
    "deep": b"[" * 2000 + b"]" * 2000,
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_request_that_cannot_be_read_is_answered_and_the_connection_goes_on(peer: Peer, name) -> None:
    channel = peer.open()
    await peer.send(FrameType.REQUEST, WRONG[name], channel=channel)
    with pytest.raises(Refused) as caught:
        await peer.next(channel)
    assert caught.value.code in ("VALIDATION", "EXECUTION")
    assert (await peer.ask("ping")) == {}


async def test_what_means_nothing_changes_nothing(peer: Peer) -> None:
    for kind in (0, 31, 41, 200, FrameType.HELLO, FrameType.EXIT, FrameType.DESCRIPTORS):
        await peer.send(kind, b"x", channel=9)
    for kind in (FrameType.DATA, FrameType.END, FrameType.CREDIT):
        await peer.send(kind, b"late", channel=77, offset=5)
    assert (await peer.sh("echo here")).stdout == "here\n"


async def test_a_channel_that_is_given_up_is_free_once_that_is_answered(peer: Peer) -> None:
    channel = await peer.begin("write", path="/tmp/given-up", mode=None, size=None)
    await peer.send(FrameType.DATA, b"half", channel=channel)
    await peer.send(FrameType.CLOSE, channel=channel)
    assert (await peer.next(channel)).type == FrameType.CLOSE
    assert [entry["path"] for entry in json.loads(await peer.rest(await peer.begin("list", path="/tmp")))] == []


async def test_a_frame_that_announces_too_much_ends_its_connection_alone(process_1: Process1) -> None:
    await process_1.peer.send_bytes(HEAD.pack(FrameType.REQUEST, 0, 1, MAX_PAYLOAD_BYTES + 1, 0))
    await process_1.peer.gone()
    assert (await (await process_1.connect()).sh("echo here")).stdout == "here\n"


async def test_frames_may_be_cut_anywhere(peer: Peer) -> None:
    data, channels = b"", [peer.open() for _ in range(20)]
    for channel in channels:
        data += encode(FrameType.REQUEST, b'{"op": "ping"}', channel=channel)
    at, cuts = 0, random.Random(4)
    while at < len(data):
        size = cuts.randint(1, 40)
        await peer.send_bytes(data[at : at + size])
        at += size
    for channel in channels:
        assert (await peer.next(channel)).type == FrameType.REPLY


async def test_noise_ends_a_connection_or_means_nothing(process_1: Process1) -> None:
    noise = random.Random(7)
    for _ in range(8):
        peer = await process_1.connect()
        try:
            await peer.send_bytes(noise.randbytes(3000))
        except OSError:
            pass
    assert (await (await process_1.connect()).sh("echo here")).stdout == "here\n"


async def test_a_cut_in_the_middle_of_a_frame_leaves_nothing(process_1: Process1) -> None:
    peer = process_1.peer
    channel = await peer.begin("write", path="/tmp/cut", mode=None, size=1 << 20)
    await peer.send_bytes(encode(FrameType.DATA, os.urandom(1 << 16), channel=channel)[:5000])
    peer.close()
    other = await process_1.connect()
    assert json.loads(await other.rest(await other.begin("list", path="/tmp"))) == []
