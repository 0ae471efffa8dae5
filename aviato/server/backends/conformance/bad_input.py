"""What no server of ours would say: process 1 refuses it or closes that connection, and lives. docs/protocol.md, Frames."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from aviato.server.backends.conformance.peer import Peer, Refused
from aviato.server.backends.conformance.process_1 import Make, Process1
from aviato.wire.frames import HEAD, MAX_PAYLOAD_BYTES, FrameType, encode
from aviato.wire.ids import new_exec_id

pytestmark = pytest.mark.anyio

DEEP = 10_000
HUGE = (2**31, 2**32 + 9, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -1, -(2**63), -(10**30), 1e300, -1e300, 0.5)
NO_NUMBERS = (b"1e999", b"-1e999", b"NaN", b"Infinity", b"9" * 1_000_000, b"-", b"1.", b"0x10", b"1_000")


@pytest.fixture(scope="module")
async def process_1(make: Make) -> AsyncIterator[Process1]:
    """One for all: each test is also the next connection after the one before."""
    async with make() as made:
        yield made


@pytest.fixture
async def peer(process_1: Process1) -> Peer:
    return await process_1.connect()


async def works(peer: Peer) -> None:
    """It does what it is for."""
    assert (await peer.sh("echo here")).stdout == "here\n"


async def works_again(process_1: Process1) -> None:
    await works(await process_1.connect())


async def refused(peer: Peer, request: bytes, **head: int) -> Refused:
    """The error that comes as the one answer."""
    channel = peer.open()
    await peer.send(FrameType.REQUEST, request, channel=channel, **head)
    with pytest.raises(Refused) as caught:
        await peer.next(channel)
    return caught.value


async def answered(peer: Peer, channel: int) -> None:
    """With whatever: all that matters is that somebody is there."""
    try:
        while (await peer.next(channel)).type not in (FrameType.REPLY, FrameType.EXIT, FrameType.END):
            pass
    except Refused as error:
        assert error.code in ("VALIDATION", "FILE", "EXECUTION", "EXEC_NOT_FOUND", "UNAVAILABLE"), error.code
        assert str(error)


# -- frames -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FrameType.REQUEST, FrameType.DATA, FrameType.ACK, FrameType.KEEPALIVE, 200])
@pytest.mark.parametrize("size", [MAX_PAYLOAD_BYTES + 1, 2**31, 2**32 - 1])
async def test_a_head_that_announces_too_much_ends_its_connection_alone(process_1: Process1, kind, size) -> None:
    peer = await process_1.connect()
    await peer.send_bytes(HEAD.pack(kind, 0, 1, size, 0))
    await peer.gone()
    await works_again(process_1)


async def test_the_largest_frame_is_read(peer: Peer) -> None:
    request = b'{"op": "ping", "x": "%b"}' % (b"x" * MAX_PAYLOAD_BYTES)
    request = request[: MAX_PAYLOAD_BYTES - 2] + b'"}'
    channel = peer.open()
    await peer.send(FrameType.REQUEST, request, channel=channel)
    assert (await peer.next(channel)).type == FrameType.REPLY
    await works(peer)


WHOLE = encode(FrameType.REQUEST, b'{"op": "ping"}', channel=1)


@pytest.mark.parametrize("cut", [1, 7, 15, 16, 17, len(WHOLE) - 1])
async def test_a_connection_that_is_cut_in_a_frame_leaves_nothing(process_1: Process1, cut) -> None:
    peer = await process_1.connect()
    await peer.send_bytes(WHOLE[:cut])
    peer.close()
    after = await process_1.connect()
    assert (await after.ask("ping")) == {}  # Of the half that came nothing is before it.


@pytest.mark.parametrize("cut", [3, 16, 5000])
async def test_one_that_replaces_another_in_a_frame_begins_anew(process_1: Process1, cut) -> None:
    peer = await process_1.connect()
    channel = await peer.begin("write", path="/tmp/half", mode=None, size=1 << 16)
    await peer.send_bytes(encode(FrameType.DATA, bytes(1 << 16), channel=channel)[:cut])
    after = await process_1.connect()
    await peer.gone()
    assert json.loads(await after.rest(await after.begin("list", path="/tmp"))) == []


async def test_kinds_that_there_are_not_mean_nothing(peer: Peer) -> None:
    known = {*map(int, (FrameType.REQUEST, FrameType.DATA, FrameType.END, FrameType.ACK, FrameType.CREDIT, FrameType.CLOSE))}
    for kind in set(range(256)) - known:
        await peer.send(kind, b"\xff{", channel=kind, stream=kind, offset=2**64 - 1)
    await works(peer)


# -- the order ----------------------------------------------------------------------------------------------------------------


async def test_what_comes_before_its_request_is_lost(peer: Peer) -> None:
    channel = peer.open()
    for kind in (FrameType.DATA, FrameType.END, FrameType.CREDIT, FrameType.CLOSE):
        await peer.send(kind, b"early", channel=channel)
    assert (await peer.next(channel)).type == FrameType.CLOSE
    await peer.send(FrameType.REQUEST, b'{"op": "write", "path": "/tmp/late", "mode": null, "size": 4}', channel=channel)
    await peer.send(FrameType.DATA, b"late", channel=channel)
    await peer.send(FrameType.END, channel=channel)
    assert await peer.reply(channel) == {}
    assert (await peer.get("/tmp/late"))[1] == b"late"
    await peer.ask("remove", path="/tmp/late", recursive=False)


@pytest.mark.parametrize("ended", ["closed", "over", "refused"])
async def test_what_comes_for_a_channel_that_is_over_means_nothing(peer: Peer, ended) -> None:
    channel = await peer.begin("write", path="/tmp/over" if ended != "refused" else "/proc/over", mode=None, size=None)
    if ended == "closed":
        await peer.send(FrameType.CLOSE, channel=channel)
        assert (await peer.next(channel)).type == FrameType.CLOSE
    elif ended == "over":
        await peer.send(FrameType.END, channel=channel)
        assert await peer.reply(channel) == {}
    else:
        with pytest.raises(Refused):
            await peer.next(channel)
    for kind in (FrameType.DATA, FrameType.END, FrameType.CREDIT, FrameType.DATA):
        await peer.send(kind, b"late", channel=channel, offset=2**64 - 1)
    await works(peer)
    assert peer.silent(channel)
    there = [entry["path"] for entry in json.loads(await peer.rest(await peer.begin("list", path="/tmp")))]
    assert there == (["/tmp/over"] if ended == "over" else [])
    if there:
        await peer.ask("remove", path="/tmp/over", recursive=False)


async def test_two_requests_on_a_channel_are_one_too_many(peer: Peer) -> None:
    channel = await peer.begin("write", path="/tmp/first", mode=None, size=None)
    await peer.send(FrameType.REQUEST, b'{"op": "write", "path": "/tmp/second", "mode": null, "size": null}', channel=channel)
    with pytest.raises(Refused) as caught:
        await peer.next(channel)
    assert caught.value.code == "VALIDATION"
    await peer.send(FrameType.DATA, b"whose", channel=channel)
    await peer.send(FrameType.END, channel=channel)
    await works(peer)
    assert json.loads(await peer.rest(await peer.begin("list", path="/tmp"))) == []


async def test_a_channel_that_was_read_to_its_end_is_free(peer: Peer) -> None:
    channel = await peer.begin("list", path="/tmp")
    await peer.rest(channel)
    for _ in range(2):
        request = b'{"op": "read", "path": "/etc/hosts", "max_bytes": null, "window": 1048576}'
        await peer.send(FrameType.REQUEST, request, channel=channel)
        assert (await peer.next(channel)).type == FrameType.REPLY
        await peer.rest(channel)
    await works(peer)


@pytest.mark.parametrize("offset", [1 << 40, 2**63, 2**64 - 1])
async def test_credit_for_more_than_was_sent_is_no_harm(peer: Peer, offset) -> None:
    await peer.put("/tmp/much", bytes(3 << 20))
    channel = await peer.begin("read", path="/tmp/much", max_bytes=None, window=1 << 10)
    await peer.send(FrameType.CREDIT, channel=channel, offset=offset)
    assert json.loads((await peer.next(channel)).payload)["size_bytes"] == 3 << 20
    assert len(await peer.rest(channel)) == 3 << 20
    await peer.ask("remove", path="/tmp/much", recursive=False)


async def test_confirming_more_than_was_said_is_no_harm(peer: Peer) -> None:
    spec = peer.spec("sh", "-c", "echo one; read line; echo two", stdin=True)
    channel = await peer.start(spec)
    while (await peer.next(channel)).type != FrameType.DATA:
        pass
    await peer.confirm(spec.exec_id, 2**62, 2**62)
    await peer.ask("stdin", b"x\n", exec_id=spec.exec_id, offset=0, eof=True)
    seen = await peer.finish(channel)
    assert seen.stdout == "two\n" and seen.result["stdout_bytes_total"] == 8


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"{}", b"[" * DEEP, b'{"exec_id": 1, "stdout": -1, "stderr": [], "done": 1}']
)
@pytest.mark.parametrize("stream", [0, 1, 9])
async def test_a_confirmation_that_cannot_be_read_concerns_nobody(process_1: Process1, payload, stream) -> None:
    peer = await process_1.connect()
    await peer.send(FrameType.ACK, payload, stream=stream)
    await works_again(process_1)


# -- requests -----------------------------------------------------------------------------------------------------------------

UNREADABLE = {
    "nothing": b"",
    "no JSON": b"op=ping",
    "half": b'{"op": "ping"',
    "two": b'{"op": "ping"}{"op": "ping"}',
    "no object": b'"ping"',
    "null": b"null",
    "no text": b'{"op": "\xff"}',
    "a null byte": b'{"op": "ping"}\0',
    "lists": b'{"op": "stat", "path": %b}' % (b"[" * DEEP + b"]" * DEEP),
    "objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "lists without an end": b"[" * DEEP,
    "no operation": b'{"path": "/"}',
    "an operation that is no text": b'{"op": 7}',
    "an operation that there is not": b'{"op": "dance"}',
    "a long one": b'{"op": "%b"}' % (b"x" * (1 << 20)),
    **{number[:8].decode(): b'{"op": "ping", "x": %b}' % number for number in NO_NUMBERS if number[:1] not in b"NI9"},
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_what_cannot_be_read_is_refused(peer: Peer, name) -> None:
    error = await refused(peer, UNREADABLE[name])
    assert error.code == "VALIDATION" and str(error).startswith("a malformed request")
    assert len(str(error)) < 1000
    await works(peer)


@pytest.mark.parametrize("stream", [1, 2, 5, 6, 77, 255])
@pytest.mark.parametrize(
    "payload", [b"", b"\0", b"\xff\xff\xff\xff", b"\4\0\0\0", b"\4\0\0\0{", b"\0\0\0\0{}", b"\x10\0\0\0" + b"\xff" * 40]
)
async def test_a_form_that_cannot_be_read_is_refused(peer: Peer, stream, payload) -> None:
    assert (await refused(peer, payload, stream=stream)).code == "VALIDATION"
    await works(peer)


FIELDS: dict[str, dict[str, Any]] = {
    "exec": {"exec_id": "ex-field", "stdout": 0, "stderr": 0},
    "stdin": {"exec_id": "ex-field", "offset": 0, "eof": True},
    "signal": {"exec_id": "ex-field", "signal": 9},
    "resize": {"exec_id": "ex-field", "width": 80, "height": 24},
    "cancel": {"exec_id": "ex-field"},
    "stop": {"grace_seconds": 1},
    "stat": {"path": "/tmp"},
    "list": {"path": "/tmp"},
    "mkdir": {"path": "/tmp/new", "mode": 0o755},
    "remove": {"path": "/tmp/nothing", "recursive": True},
    "read": {"path": "/etc/hosts", "max_bytes": None, "window": 1 << 20},
    "write": {"path": "/tmp/new", "mode": None, "size": None},
    "read_tree": {"path": "/tmp", "window": 1 << 20},
    "read_layer": {"window": 1 << 20},
    "rest": {},
    "write_tree": {"path": "/tmp/new"},
    "dial": {"port": 1, "window": 1 << 20},
    "listen": {"port": 1},
    "accept": {"port": 1, "window": 1 << 20},
}
"""What each operation cannot be without."""


@pytest.mark.parametrize("operation", FIELDS)
async def test_a_field_that_is_missing_or_of_another_kind_is_named(peer: Peer, operation) -> None:
    given = FIELDS[operation]
    for name, value in given.items():
        others = [{key: other for key, other in given.items() if key != name}] if value is not None else []
        wrong: list[Any] = [[], {}, [7], True if not isinstance(value, bool) else 1, 7 if isinstance(value, str) else "7"]
        others += [{**given, name: one} for one in wrong]
        for fields in others:
            error = await refused(peer, json.dumps({"op": operation, **fields}).encode())
            assert error.code == "VALIDATION" and f"'{name}'" in str(error).replace('"', "'"), (fields, str(error))
    await works(peer)
    assert json.loads(await peer.rest(await peer.begin("list", path="/tmp"))) == []


SPEC: dict[str, Any] = {
    "exec_id": "ex-it",
    "command": ["true"],
    "environment": {},
    "working_dir": None,
    "stdin": False,
    "timeout_seconds": None,
}


@pytest.mark.parametrize("name", SPEC)
@pytest.mark.parametrize("wrong", [7, [7], {"a": 7}, [["a"]], "missing"], ids=str)
async def test_a_command_that_lacks_something_does_not_run(peer: Peer, name, wrong) -> None:
    spec: dict[str, Any] = {**SPEC, "command": ["touch", "/tmp/ran"], name: wrong}
    if wrong == "missing":
        del spec[name]
        if name in ("working_dir", "timeout_seconds"):
            pytest.skip("it may be left out")
    if name == "timeout_seconds" and wrong == 7:
        pytest.skip("that is one")
    error = await refused(peer, json.dumps({"op": "exec", "exec_id": "ex-it", "stdout": 0, "stderr": 0, "spec": spec}).encode())
    assert error.code == "VALIDATION", str(error)
    assert json.loads(await peer.rest(await peer.begin("list", path="/tmp"))) == []


ODD: dict[str, dict[str, Any]] = {
    "no words": {"command": []},
    "an empty word": {"command": [""]},
    "a null byte": {"command": ["ec\0ho", "x"]},
    "a null byte in a word": {"command": ["echo", "x\0y"]},
    "a variable with a null byte": {"environment": {"a\0b": "c"}},
    "a value with a null byte": {"environment": {"a": "b\0c"}},
    "a variable without a name": {"environment": {"": "x", "=": "y", "a=b": "c"}},
    "a directory with a null byte": {"working_dir": "/tmp\0"},
    "a long directory": {"working_dir": "/" + "x" * 100_000},
    "a long word": {"command": ["true", "x" * (1 << 20)]},
    "many words": {"command": ["true", *["x"] * 300_000]},
    "many variables": {"environment": {f"v{number}": "" for number in range(100_000)}},
    "a time that is over": {"timeout_seconds": -1},
    "no time": {"timeout_seconds": 0},
    "all time": {"timeout_seconds": 1e300},
    "a terminal of no size": {"terminal": [0, 0]},
    "a terminal of three sizes": {"terminal": [1, 2, 3]},
    "a terminal of words": {"terminal": ["a", "b"]},
    "input that is no base64": {"stdin": True, "input": "!"},
    "cases that are none": {"cases": {}},
    "cases that are a list": {"cases": []},
    "programs that are none": {"cases": {"programs": []}},
    "programs that are words": {"cases": {"programs": ["a"]}},
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_command_has_an_end_or_an_error(peer: Peer, name) -> None:
    spec = {**SPEC, **ODD[name], "exec_id": new_exec_id()}
    request = {"op": "exec", "exec_id": spec["exec_id"], "stdout": 0, "stderr": 0, "spec": spec}
    channel = peer.open()
    begin = asyncio.get_running_loop().time()
    await peer.send(FrameType.REQUEST, json.dumps(request).encode(), channel=channel)
    await answered(peer, channel)
    assert asyncio.get_running_loop().time() - begin < 5
    await works(peer)


NUMBERS: dict[str, dict[str, Any]] = {
    "exec": {"exec_id": "ex-n", "stdout": 0, "stderr": 0},
    "stdin": {"exec_id": "ex-n", "offset": 0, "eof": False},
    "signal": {"exec_id": "ex-n", "signal": 0},
    "resize": {"exec_id": "ex-n", "width": 80, "height": 24},
    "mkdir": {"path": "/tmp/made", "mode": 0o755},
    "read": {"path": "/tmp/read", "max_bytes": None, "window": 1 << 20, "offset": 0},
    "write": {"path": "/tmp/written", "mode": None, "size": None},
    "dial": {"port": 1, "window": 1 << 20},
}


@pytest.mark.parametrize("operation", NUMBERS)
async def test_huge_numbers_are_an_answer_or_an_error(peer: Peer, operation) -> None:
    """A command is there, and lives on: no number means another one."""
    await peer.put("/tmp/read", b"read")
    spec = peer.spec("sh", "-c", "read line; echo end", stdin=True, terminal=(80, 24) if operation == "resize" else None)
    listening = await peer.start(spec)
    await peer.next(listening)
    for name, usual in NUMBERS[operation].items():
        if isinstance(usual, (str, bool)):
            continue
        for number in HUGE:
            fields = {**NUMBERS[operation], name: number}
            if "exec_id" in fields:
                fields["exec_id"] = spec.exec_id
            channel = await peer.begin(operation, b"x" if operation == "stdin" else None, **fields)
            if operation in ("exec", "write"):
                # Neither has an answer of its own before more is said.
                await peer.send(FrameType.CLOSE, channel=channel)
                while True:
                    try:
                        if (await peer.next(channel)).type == FrameType.CLOSE:
                            break
                    except Refused as error:
                        assert error.code in ("VALIDATION", "FILE")
            else:
                await answered(peer, channel)
    again = await peer.start(None, spec.exec_id)
    await peer.begin("stdin", b"\n", exec_id=spec.exec_id, offset=0, eof=False)
    await peer.begin("stdin", b"\n", exec_id=spec.exec_id, offset=1, eof=True)
    seen = await peer.finish(again)
    assert seen.result["returncode"] == 0 and "end" in seen.stdout
    for name in ("read", "made", "written"):
        with suppress(Refused):
            await peer.ask("remove", path=f"/tmp/{name}", recursive=True)
