"""The client's side of a stream of runs: when it is used, and what becomes of those under way when it is not there any more."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aviato.transport import run_stream
from aviato.transport.answers import Chunks
from aviato.transport.run_stream import FEW, RunAnswer, RunStreams
from aviato.wire.frames import CONFIRMED_AT_ONCE, Frame, FrameDecoder, FrameType, encode

HEAD = b"HTTP/1.1 200 OK\r\nAviato-Wire: 1\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """One that answers by bytes."""

    def __init__(self, head: bytes = HEAD) -> None:
        self.head = head
        self.asked: list[Frame] = []
        self.connections = 0
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.readuntil(b"\r\n\r\n")
        self.writer = writer
        writer.write(self.head)
        chunks, frames = Chunks(), FrameDecoder()
        while data := await reader.read(1 << 16):
            for piece in chunks.feed(memoryview(data)):
                assert piece is not None
                self.asked += frames.feed(piece)
        writer.close()

    def say(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def until_asked(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.asked) < count:
                await asyncio.sleep(0.001)


def with_streams(tmp_path: Path, server: Server, test: Callable[[RunStreams], Awaitable[None]]) -> None:
    async def main() -> None:
        listening = await asyncio.start_unix_server(server.serve, tmp_path / "socket")
        streams = RunStreams(str(tmp_path / "socket"))
        try:
            await test(streams)
        finally:
            streams.close()
            listening.close()
            await asyncio.sleep(0.01)

    asyncio.run(main())


async def opened(streams: RunStreams) -> None:
    """Ask until there is a stream, or for some time."""
    for _ in range(FEW + 1):
        assert await streams.ask(b"by itself", 5) is None
    await asyncio.sleep(0.05)


async def asking(streams: RunStreams, body: bytes, seconds: float = 5.0) -> asyncio.Task[RunAnswer | None]:
    task = asyncio.create_task(streams.ask(body, seconds))
    await asyncio.sleep(0)
    return task


def test_a_few_open_none_and_answers_find_whoever_asked(tmp_path: Path) -> None:
    server = Server()

    async def test(streams: RunStreams) -> None:
        for _ in range(FEW):
            assert await streams.ask(b"by itself", 5) is None
        await asyncio.sleep(0.05)
        assert not server.connections
        await opened(streams)
        first, second = await asking(streams, b"one"), await asking(streams, b"two")
        await server.until_asked(2)
        assert [(frame.type, frame.payload) for frame in server.asked] == [(FrameType.RUN, b"one"), (FrameType.RUN, b"two")]
        one, two = (frame.offset for frame in server.asked)
        assert one != two
        text = encode(FrameType.RAN, b"2", offset=two) + encode(FrameType.RAN, b"", offset=one)
        server.say(text[:20])
        await asyncio.sleep(0.01)
        server.say(text[20:])
        found = await second
        assert found is not None and found.payload == b"2"
        assert await first is None  # Nothing is said: it is to be asked for by itself.
        third = await asking(streams, b"three")
        await server.until_asked(3)
        server.say(encode(FrameType.ERROR, b"{}", offset=server.asked[2].offset))
        found = await third
        assert found is not None and found.type == FrameType.ERROR
        assert server.connections == 1
        assert await streams.ask(b"x" * (run_stream.LARGEST_BYTES + 1), 5) is None and len(server.asked) == 3

    with_streams(tmp_path, server, test)


@pytest.mark.parametrize("cut", [b"no chunk\r\n", b"11\r\n\x09\x00\x00\x01\xff\xff\xff\xff00000000x\r\n", b"0\r\n\r\n", None])
def test_when_it_is_cut_those_under_way_go_by_themselves(tmp_path: Path, cut: bytes | None) -> None:
    server = Server()

    async def test(streams: RunStreams) -> None:
        await opened(streams)
        tasks = [await asking(streams, b"one"), await asking(streams, b"two")]
        await server.until_asked(2)
        assert server.writer is not None
        server.writer.write(cut) if cut is not None else server.writer.transport.abort()
        async with asyncio.timeout(2):
            assert await asyncio.gather(*tasks) == [None, None]
        await opened(streams)
        assert server.connections == 2

    with_streams(tmp_path, server, test)


def test_whoever_has_no_answer_in_time_goes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_stream, "IDLE_SECONDS", 0.1)

    async def test(streams: RunStreams) -> None:
        await opened(streams)
        async with asyncio.timeout(2):
            assert await streams.ask(b"one", 0.3) is None

    with_streams(tmp_path, Server(), test)


def test_it_is_closed_when_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_stream, "IDLE_SECONDS", 0.1)
    server = Server()

    async def test(streams: RunStreams) -> None:
        await opened(streams)
        waiting = await asking(streams, b"one")
        await asyncio.sleep(0.35)
        server.say(encode(FrameType.RAN, b"1", offset=server.asked[0].offset))
        assert await waiting is not None
        await asyncio.sleep(0.35)
        assert server.writer is not None and server.writer.is_closing()

    with_streams(tmp_path, server, test)


def test_a_cancelled_one_leaves_the_others(tmp_path: Path) -> None:
    server = Server()

    async def test(streams: RunStreams) -> None:
        await opened(streams)
        first, second = await asking(streams, b"one"), await asking(streams, b"two")
        await server.until_asked(2)
        first.cancel()
        await asyncio.sleep(0)
        for frame in server.asked:
            server.say(encode(FrameType.RAN, frame.payload, offset=frame.offset))
        found = await second
        assert found is not None and found.payload == b"two"

    with_streams(tmp_path, server, test)


def test_answers_that_have_arrived_are_confirmed_together(tmp_path: Path) -> None:
    server = Server()

    async def test(streams: RunStreams) -> None:
        await opened(streams)
        tasks = [await asking(streams, b"%d" % number) for number in range(3)]
        await server.until_asked(3)
        numbers = [frame.offset for frame in server.asked]
        server.say(encode(FrameType.RAN, b"1", stream=1, offset=numbers[0]) + encode(FrameType.RAN, b"2", offset=numbers[1]))
        server.say(encode(FrameType.RAN, b"3", stream=1, offset=numbers[2]))
        first, old, last = [found for found in await asyncio.gather(*tasks) if found is not None]
        await asyncio.sleep(0.05)
        assert len(server.asked) == 3  # Nothing is confirmed by itself.
        # A server of an earlier version does not know how.
        assert old.confirm is None and first.confirm is not None and last.confirm is not None
        assert first.confirm() and last.confirm()
        await server.until_asked(4)
        said = server.asked[3]
        assert said.type == FrameType.CONFIRMED and struct.unpack(">2Q", said.payload) == (numbers[0], numbers[2])
        for _ in range(CONFIRMED_AT_ONCE + 1):
            assert first.confirm()
        await server.until_asked(6)
        assert [len(frame.payload) for frame in server.asked[4:]] == [8 * CONFIRMED_AT_ONCE, 8]
        assert server.writer is not None
        server.writer.transport.abort()
        await asyncio.sleep(0.05)
        assert not last.confirm()  # It has to be said in another way, never by another stream.
        await opened(streams)
        assert not last.confirm() and server.connections == 2 and len(server.asked) == 6

    with_streams(tmp_path, server, test)


@pytest.mark.parametrize(("status", "asked_again"), [(b"404 Not Found", False), (b"503 Service Unavailable", True)])
def test_a_server_without_it_is_asked_once(tmp_path: Path, status: bytes, asked_again: bool) -> None:
    server = Server(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}")

    async def test(streams: RunStreams) -> None:
        await opened(streams)
        await opened(streams)
        assert server.connections == 1 + asked_again

    with_streams(tmp_path, server, test)


def test_where_nobody_listens_all_go_by_themselves(tmp_path: Path) -> None:
    async def main() -> Any:
        streams = RunStreams(str(tmp_path / "nothing"))
        await opened(streams)
        await opened(streams)
        streams.close()

    asyncio.run(main())
