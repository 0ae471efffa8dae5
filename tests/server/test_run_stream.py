"""Many sandboxes for one command each over one request: on the real backend."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import pytest

from aviato.server.backends.registry import make_backend
from aviato.server.routes import run_stream
from aviato.transport.answers import Chunks
from aviato.wire.frames import CONFIRMED_AT_ONCE, FrameDecoder, FrameType, encode
from aviato.wire.ids import new_exec_id, new_sandbox_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def tmp_path(passable_path):
    return passable_path


@pytest.fixture
def backend(folder):
    return make_backend("local", directory=Path(folder.path))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine a command takes long that does not otherwise."""
    monkeypatch.setattr(run_stream, "HOLD_SECONDS", 20.0)


def request_of(server, *command, **fields):
    sandbox = {"sandbox_id": new_sandbox_id(), "lease_id": server.lease_id}
    return {"sandbox": sandbox, "command": {"exec_id": new_exec_id(), "command": list(command), **fields}}


class Stream:
    """One request, by hand: a general client sends no head before there is a body."""

    def __init__(self, folder):
        self._path = f"{folder.path}/sock"
        self._chunks, self._decoder = Chunks(), FrameDecoder()
        self.answers = {}

    async def __aenter__(self):
        self._reader, self._writer = await asyncio.open_unix_connection(self._path)
        self._writer.write(b"POST /v1/runs/stream HTTP/1.1\r\nHost: server\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await self._reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        return self

    async def __aexit__(self, *exc):
        self._writer.transport.abort()

    def send(self, data):
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def ask(self, number, body):
        self.send(encode(FrameType.RUN, body if isinstance(body, bytes) else json.dumps(body).encode(), offset=number))

    def confirm(self, *numbers):
        self.send(encode(FrameType.CONFIRMED, struct.pack(f">{len(numbers)}Q", *numbers)))

    def end(self):
        self._writer.write(b"0\r\n\r\n")

    async def answer(self, number, seconds=20):
        """The frame that answers, or None if the stream ended before."""
        async with asyncio.timeout(seconds):
            while number not in self.answers:
                data = await self._reader.read(1 << 16)
                pieces = list(self._chunks.feed(memoryview(data)))
                if not data or None in pieces:
                    return None
                for piece in pieces:
                    self.answers.update((frame.offset, frame) for frame in self._decoder.feed(piece))
        return self.answers[number]


def whole(frame):
    """What a command printed and how it ended."""
    assert frame.type == FrameType.RAN
    frames = FrameDecoder().feed(frame.payload)
    printed = b"".join(one.payload for one in frames if one.type == FrameType.DATA)
    assert frames[-1].type == FrameType.EXIT
    return printed, json.loads(frames[-1].payload)["returncode"]


async def gone(server, body):
    ended = await server.wait(body["sandbox"]["sandbox_id"], "ended")
    assert (ended["status"], ended["status_reason"]) == ("terminated", "stopped")


async def test_each_gets_its_own_answer_and_its_sandbox_ends(server, folder):
    slow, quick = request_of(server, "sh", "-c", "sleep 0.5; echo slow; exit 3"), request_of(server, "echo", "quick")
    async with Stream(folder) as stream:
        stream.ask(7, slow)
        stream.ask(9, quick)
        assert whole(await stream.answer(9)) == (b"quick\n", 0)
        assert 7 not in stream.answers
        assert whole(await stream.answer(7)) == (b"slow\n", 3)
        await gone(server, quick)
        await gone(server, slow)
        # The answer was the result: a repeat gets what is kept of it, and runs nothing.
        assert b"slow" in await server.call("POST", "/v1/runs", body=slow, expect=200)
        last = request_of(server, "true")
        stream.ask(7, last)
        stream.end()
        del stream.answers[7]
        assert whole(await stream.answer(7)) == (b"", 0)
        assert await stream.answer(8) is None


async def test_what_is_refused_leaves_no_sandbox_and_holds_up_no_other(server, folder):
    refused, other = request_of(server, "true", working_dir="here"), request_of(server, "true")
    async with Stream(folder) as stream:
        stream.ask(1, refused)
        stream.ask(2, b'{"sandbox": {')
        stream.ask(3, other)
        for number in (1, 2):
            frame = await stream.answer(number)
            assert frame.type == FrameType.ERROR and json.loads(frame.payload)["code"] == "VALIDATION"
        assert whole(await stream.answer(3)) == (b"", 0)
    await gone(server, refused)


@pytest.mark.parametrize("command", ["echo once; sleep 1", "echo once; head -c 600000 /dev/zero"])
async def test_what_takes_long_or_says_much_is_left_to_a_request_of_its_own(server, folder, monkeypatch, command):
    if "sleep" in command:
        monkeypatch.setattr(run_stream, "HOLD_SECONDS", 0.3)
    body = request_of(server, "sh", "-c", command)
    async with Stream(folder) as stream:
        stream.ask(1, body)
        assert (await stream.answer(1)).payload == b""
    answer = await server.call("POST", "/v1/runs", body=body, expect=200)
    assert answer.count(b"once") == 1 and b'"returncode":0' in answer.replace(b" ", b"")
    assert answer.count(b"\0") >= (600_000 if "zero" in command else 0)
    await gone(server, body)


async def test_of_too_many_at_once_the_rest_is_left_to_requests_of_their_own(server, folder, monkeypatch):
    monkeypatch.setattr(run_stream, "MOST_AT_ONCE", 1)
    first, second = request_of(server, "sleep", "0.5"), request_of(server, "true")
    async with Stream(folder) as stream:
        stream.ask(1, first)
        stream.ask(2, second)
        assert (await stream.answer(2)).payload == b"" and 1 not in stream.answers
        assert second["sandbox"]["sandbox_id"] not in server.service.registry.live
        assert whole(await stream.answer(1)) == (b"", 0)


async def test_cut_off_it_goes_on_and_its_result_waits(server, folder):
    body = request_of(server, "sh", "-c", "sleep 0.5; echo once")
    async with Stream(folder) as stream:
        stream.ask(1, body)
        while body["sandbox"]["sandbox_id"] not in server.service.registry.live:
            await asyncio.sleep(0.01)
    answer = await server.call("POST", "/v1/runs", body=body, expect=200)
    assert answer.count(b"once") == 1 and b'"returncode":0' in answer.replace(b" ", b"")
    await gone(server, body)


async def test_results_are_kept_until_their_own_stream_confirms_them(server, folder):
    bodies = [request_of(server, "echo", str(number)) for number in range(4)]
    kept = server.service.results

    def has(body):
        return kept.has(body["sandbox"]["sandbox_id"], body["command"]["exec_id"])

    async with Stream(folder) as stream, Stream(folder) as other:
        for number, body in enumerate(bodies):
            stream.ask(number, body)
        for number in range(4):
            assert (await stream.answer(number)).stream == 1
        assert all(map(has, bodies))
        other.confirm(0)
        stream.confirm(99)
        stream.confirm(1, 2)
        await gone(server, bodies[0])
        for _ in range(100):
            if not (has(bodies[1]) or has(bodies[2])):
                break
            await asyncio.sleep(0.01)
        assert [has(body) for body in bodies] == [True, False, False, True]
        stream.confirm(1, 3)
        for _ in range(100):
            if not has(bodies[3]):
                break
            await asyncio.sleep(0.01)
        assert [has(body) for body in bodies] == [True, False, False, False]
    # What nobody has confirmed waits for whoever comes back.
    await asyncio.sleep(0.5)
    assert b"0\n" in await server.call("POST", "/v1/runs", body=bodies[0], expect=200)


async def test_of_too_many_unconfirmed_the_oldest_waits(server, folder, monkeypatch):
    monkeypatch.setattr(run_stream, "MOST_UNCONFIRMED", 1)
    bodies = [request_of(server, "true") for _ in range(2)]
    async with Stream(folder) as stream:
        for number, body in enumerate(bodies):
            stream.ask(number, body)
            await stream.answer(number)
        stream.confirm(0, 1)
        stream.end()
        assert await stream.answer(2) is None
    kept = [server.service.results.has(body["sandbox"]["sandbox_id"], body["command"]["exec_id"]) for body in bodies]
    assert kept == [True, False]


@pytest.mark.parametrize(
    "said",
    [
        encode(FrameType.DATA, b"x", offset=2),
        b"\xff" * 16,
        encode(FrameType.CONFIRMED, b"1234567"),
        encode(FrameType.CONFIRMED, bytes(8 * CONFIRMED_AT_ONCE + 8)),
    ],
)
async def test_what_is_no_run_ends_the_stream(server, folder, said):
    async with Stream(folder) as stream:
        stream.send(said)
        assert await stream.answer(2) is None
    assert (await server.call("GET", "/v1/health", expect=200))["pid"]


async def test_a_server_that_goes_does_not_wait_for_it(serving, folder):
    backend = make_backend("local", directory=Path(folder.path))
    async with serving(folder, backend) as (service, client, _), Stream(folder) as stream:
        stream.ask(1, request_of(client, "true"))
        await stream.answer(1)
        service.stop_waiting()
        assert await stream.answer(2, seconds=0.4) is None


async def test_over_tcp_there_is_none(server, monkeypatch):
    """There each request counts against what a key may send."""
    monkeypatch.setattr(run_stream, "peer_uid", lambda transport: None)
    answer = await server.call("POST", "/v1/runs/stream", expect=400)
    assert answer["error"]["reason"] == "transport"
