"""The client's end of a session: every way in which an answer can be cut into pieces, and every way in which it can be none."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aviato.exceptions import AviatoValidationError, SandboxRequestTimeoutError, SandboxUnavailableError
from aviato.transport import session as client
from aviato.transport import sessions
from aviato.transport.http import HttpTransport
from aviato.transport.resolution import endpoint
from aviato.transport.server import Server
from aviato.wire.frames import Frame, FrameDecoder, FrameType, encode
from aviato.wire.session import PIECE_BYTES, UPGRADE, WHOLE, WINDOW_BYTES, encode_head

BEGUN = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: aviato-session\r\nAviato-Wire: 1\r\nAviato-Server-Pid: 7\r\n\r\n"
OK = encode_head("200", {"Content-Type": "text/plain"})


def whole(body: bytes, channel: int = 1, head: bytes = OK) -> bytes:
    """An answer in one frame."""
    return encode(FrameType.ANSWER, head + body, stream=WHOLE, channel=channel, offset=len(head))


def begin(channel: int = 1) -> bytes:
    return encode(FrameType.ANSWER, OK, channel=channel, offset=len(OK))


def data(content: bytes, offset: int = 0, channel: int = 1) -> bytes:
    return encode(FrameType.DATA, content, channel=channel, offset=offset)


def end(channel: int = 1) -> bytes:
    return encode(FrameType.END, channel=channel)


PIECES = begin() + data(b"he") + data(b"llo", 2) + end()


class Peer:
    """The server's end of one connection, which was asked for a session and has begun one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    async def next(self) -> Frame:
        """The next frame of the client."""
        while not self._frames:
            piece = await self._reader.read(1 << 16)
            if not piece:
                raise EOFError
            self._frames += self._decoder.feed(piece)
        return self._frames.pop(0)

    async def body(self, first: Frame, step: int = PIECE_BYTES) -> bytes:
        """All of a request's body; room is given in such steps."""
        content = first.payload[first.offset :]
        credited = 0
        frame = first
        while frame.stream != WHOLE and frame.type != FrameType.END:
            frame = await self.next()
            content += frame.payload
            if len(content) - credited >= step:
                credited = len(content)
                self.say(encode(FrameType.CREDIT, channel=first.channel, offset=credited))
        return content

    def say(self, frames: bytes) -> None:
        self.writer.write(frames)


Serve = Callable[[Peer], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(tmp_path: Path, serve: Serve, begun: bytes = BEGUN) -> AsyncIterator[str]:
    path = str(tmp_path / "socket")
    tasks: list[asyncio.Task[Any]] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            said = await reader.readuntil(b"\r\n\r\n")
            assert said.startswith(b"GET /v1/session HTTP/1.1\r\n") and f"Upgrade: {UPGRADE}\r\n".encode() in said
            writer.write(begun)
            await serve(Peer(reader, writer))
        except (EOFError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(accept, path)
    try:
        yield path
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(
    tmp_path: Path,
    serve: Serve,
    ask: Callable[[HttpTransport], Coroutine[Any, Any, Any]],
    seconds: float = 5.0,
    begun: bytes = BEGUN,
) -> Any:
    async def main() -> Any:
        async with serving(tmp_path, serve, begun) as path, asyncio.timeout(30):
            return await ask(HttpTransport(f"unix://{path}", request_timeout_seconds=seconds))

    return asyncio.run(main())


def saying(*pieces: bytes, close: bool = False) -> Serve:
    """Say these pieces to the first request, one by one."""

    async def serve(peer: Peer) -> None:
        await peer.next()
        for piece in pieces:
            peer.writer.write(piece)
            await peer.writer.drain()
            await asyncio.sleep(0)
        if not close:
            await asyncio.sleep(60)

    return serve


async def once(transport: HttpTransport) -> bytes:
    return await transport.request("GET", "/v1/health")


@pytest.mark.parametrize("answer", [whole(b"hello"), PIECES])
def test_an_answer_is_the_same_however_its_bytes_fall(tmp_path: Path, answer: bytes) -> None:
    for cut in range(1, len(answer)):
        assert run(tmp_path, saying(answer[:cut], answer[cut:]), once) == b"hello"
    assert run(tmp_path, saying(*(answer[at : at + 1] for at in range(len(answer)))), once) == b"hello"


def test_its_begin_is_the_same_however_its_bytes_fall(tmp_path: Path) -> None:
    for cut in range(1, len(BEGUN), 7):

        async def serve(peer: Peer, cut: int = cut) -> None:
            await asyncio.sleep(0)
            peer.writer.write(BEGUN[cut:])
            await saying(whole(b"hello"))(peer)

        assert run(tmp_path, serve, once, begun=BEGUN[:cut]) == b"hello"


def test_requests_share_a_connection_and_answers_find_whoever_asked(tmp_path: Path) -> None:
    connections = []

    async def serve(peer: Peer) -> None:
        connections.append(peer)
        asked = [await peer.next() for _ in range(3)]
        assert len({frame.channel for frame in asked}) == 3
        for frame in reversed(asked):
            peer.say(whole(frame.payload[: frame.offset].split(b"\n")[0], frame.channel))
        await peer.next()

    async def ask(transport: HttpTransport) -> list[bytes]:
        return await asyncio.gather(*(transport.request("GET", f"/v1/{name}") for name in "abc"))

    assert run(tmp_path, serve, ask) == [b"GET /v1/a", b"GET /v1/b", b"GET /v1/c"]
    assert len(connections) == 1


@pytest.mark.parametrize(
    "begun",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 xx\r\n\r\n",
        b"x" * (client.LARGEST_ANSWER_BYTES + 1),
    ],
)
def test_what_begins_no_session(tmp_path: Path, begun: bytes) -> None:
    with pytest.raises(SandboxUnavailableError, match="not an answer that can be read") as caught:
        run(tmp_path, saying(), once, begun=begun)
    assert caught.value.reason == "protocol"


@pytest.mark.parametrize(
    "frames",
    [
        whole(b"", channel=9),
        data(b"x"),
        begin() + begin(),
        encode(FrameType.OPEN, b"GET /", channel=1, offset=5),
        encode(FrameType.ANSWER, b"ok", stream=WHOLE, channel=1, offset=2),
        encode(FrameType.ANSWER, b"200\nno header", stream=WHOLE, channel=1, offset=13),
        encode(99, b"", channel=1),
        b"\xff" * 16,
    ],
)
def test_what_is_no_answer_ends_the_session(tmp_path: Path, frames: bytes) -> None:
    with pytest.raises(SandboxUnavailableError, match="not an answer that can be read") as caught:
        run(tmp_path, saying(frames), once)
    assert caught.value.reason == "protocol"


@pytest.mark.parametrize("answer", [b"", begin(), PIECES[:-16], PIECES[:-1], whole(b"hello")[:-1]])
def test_a_cut_is_a_lost_connection(tmp_path: Path, answer: bytes) -> None:
    with pytest.raises(SandboxUnavailableError, match="connection lost") as caught:
        run(tmp_path, saying(answer, close=True), once)
    assert (caught.value.reason, caught.value.retryable) == ("connection_lost", True)


@pytest.mark.parametrize("before", [b"", begin(), begin() + data(b"he")])
def test_an_answer_that_is_cut_leaves_the_others(tmp_path: Path, before: bytes) -> None:
    async def serve(peer: Peer) -> None:
        first, second = await peer.next(), await peer.next()
        assert (first.channel, second.channel) == (1, 2)
        peer.say(before + encode(FrameType.CUT, channel=1) + whole(b"hello", 2))
        third = await peer.next()
        peer.say(whole(b"again", third.channel))
        await peer.next()

    async def ask(transport: HttpTransport) -> None:
        cut, other = await asyncio.gather(once(transport), once(transport), return_exceptions=True)
        assert isinstance(cut, SandboxUnavailableError) and cut.reason == "connection_lost" and other == b"hello"
        assert await once(transport) == b"again"

    run(tmp_path, serve, ask)


@pytest.mark.parametrize("answer", [b"", begin(), begin() + data(b"he")])
def test_silence_is_told_by_what_was_heard_last_and_leaves_the_others(tmp_path: Path, answer: bytes) -> None:
    async def serve(peer: Peer) -> None:
        await peer.next()
        peer.say(answer)
        peer.say(whole(b"hello", (await peer.next()).channel))
        assert (await peer.next()).type == FrameType.CUT
        third = await peer.next()
        assert third.channel not in (0, 1)  # The server has not said that it is done with the first.
        peer.say(whole(b"again", third.channel))
        await peer.next()

    async def ask(transport: HttpTransport) -> bytes:
        first = asyncio.create_task(once(transport))
        await asyncio.sleep(0.1)
        assert await once(transport) == b"hello"
        with pytest.raises(SandboxRequestTimeoutError, match="no answer within"):
            await first
        return await once(transport)

    assert run(tmp_path, serve, ask, 0.3) == b"again"


def test_a_session_of_which_nobody_hears_anything_is_asked_no_more(tmp_path: Path) -> None:
    """As when a machine has lost its power: the connection looks open for a quarter of an hour."""
    peers: list[Peer] = []

    async def serve(peer: Peer) -> None:
        peers.append(peer)
        frame = await peer.next()
        if len(peers) > 1:
            peer.say(whole(b"hello", frame.channel))
        await asyncio.sleep(60)

    async def ask(transport: HttpTransport) -> bytes:
        with pytest.raises(SandboxRequestTimeoutError, match="no answer within"):
            await once(transport)
        return await once(transport)

    assert run(tmp_path, serve, ask, 0.2) == b"hello"
    assert len(peers) == 2


def test_a_request_that_is_given_up_is_cut(tmp_path: Path) -> None:
    cut = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.next()
        assert (await peer.next()).type == FrameType.CUT
        cut.set()
        peer.say(data(b"late") + encode(FrameType.CUT, channel=1))
        await peer.next()

    async def ask(transport: HttpTransport) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(once(transport), 0.05)
        await asyncio.wait_for(cut.wait(), 5)

    run(tmp_path, serve, ask)


def test_a_slow_reader_holds_its_own_answer_up_alone(tmp_path: Path) -> None:
    size, sent = 8 * WINDOW_BYTES, 0

    async def serve(peer: Peer) -> None:
        nonlocal sent
        peer.say(begin((await peer.next()).channel))
        taken = 0
        while sent < size:
            while sent - taken >= WINDOW_BYTES:
                frame = await peer.next()
                if frame.type == FrameType.CREDIT:
                    assert frame.channel == 1 and taken < frame.offset <= sent
                    taken = frame.offset
                else:
                    peer.say(whole(b"hello", frame.channel))
            peer.say(data(b"x" * PIECE_BYTES, sent))
            sent += PIECE_BYTES
        peer.say(end())
        await peer.next()

    async def ask(transport: HttpTransport) -> None:
        response = await transport.open("GET", "/v1/large")
        while sent < WINDOW_BYTES:
            await asyncio.sleep(0)
        assert await once(transport) == b"hello"
        await asyncio.sleep(0.5)  # Longer than the server may be silent.
        assert sent == WINDOW_BYTES
        got = 0
        while piece := await response.next():
            got += len(piece)
        assert got == size and response.finished

    run(tmp_path, serve, ask, 0.3)


OURS = b"\r\nAviato-Wire: 1"


@pytest.mark.parametrize(
    ("status", "seconds", "asked_again"),
    [
        (b"404 Not Found", 60, False),
        (b"404 Not Found" + OURS, 60, False),
        (b"502 Bad Gateway", 60, False),
        (b"502 Bad Gateway", 0, True),
        (b"503 Service Unavailable" + OURS, 60, True),
    ],
)
def test_a_server_without_sessions_is_asked_by_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: bytes, seconds: float, asked_again: bool
) -> None:
    monkeypatch.setattr(sessions, "ASK_AGAIN_SECONDS", seconds)
    connections = 0

    async def main() -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            try:
                while said := await reader.readuntil(b"\r\n\r\n"):
                    if b"Upgrade" in said:
                        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
                    else:
                        writer.write(b"HTTP/1.1 200 OK\r\nAviato-Wire: 1\r\nContent-Length: 5\r\n\r\nhello")
            except (EOFError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_unix_server(accept, str(tmp_path / "s"))
        transport = HttpTransport(f"unix://{tmp_path}/s", request_timeout_seconds=5)
        assert [await once(transport) for _ in range(2)] == [b"hello"] * 2
        server.close()

    asyncio.run(main())
    assert connections == 2 + asked_again


def test_an_idle_session_is_closed_after_a_while(tmp_path: Path) -> None:
    async def serve(peer: Peer) -> None:
        while True:
            frame = await peer.next()
            if frame.type == FrameType.OPEN:
                peer.say(whole(b"hello", frame.channel))

    async def main() -> None:
        async with serving(tmp_path, serve) as path:
            pool = sessions.Sessions(Server(endpoint(f"unix://{path}")), path, idle_seconds=0.1)
            first = await pool.session(1, {})
            assert first is not None and await pool.session(1, {}) is first
            for _ in range(3):
                await asyncio.sleep(0.04)
                assert await (await first.ask("GET /", {}, None, 5)).read() == b"hello"
            while first.usable:
                await asyncio.sleep(0.01)
            second = await pool.session(1, {})
            assert second is not None and second is not first
            pool.close()

    asyncio.run(asyncio.wait_for(main(), 10))


def test_who_asks_first_is_first_to_go_on_a_new_connection(tmp_path: Path) -> None:
    """In each turn of the loop one more asks: also in those between the opening and the first one's next step."""
    went: list[int] = []

    async def serve(peer: Peer) -> None:
        await peer.next()

    async def main() -> None:
        async with serving(tmp_path, serve) as path:
            pool = sessions.Sessions(Server(endpoint(f"unix://{path}")), path, idle_seconds=1)

            async def ask(number: int) -> None:
                assert await pool.session(5, {}) is not None
                went.append(number)

            asking = []
            after = 10
            while after:
                asking.append(asyncio.create_task(ask(len(asking))))
                await asyncio.sleep(0)
                after -= bool(went)
            await asyncio.gather(*asking)
            pool.close()

    asyncio.run(asyncio.wait_for(main(), 10))
    assert went == sorted(went) and len(went) > 10


def test_a_full_session_makes_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "FULL", 2)
    peers = []

    async def serve(peer: Peer) -> None:
        peers.append(peer)
        asked = [await peer.next() for _ in range(2)]
        while len(peers) < 2:
            await asyncio.sleep(0.001)
        for frame in asked:
            peer.say(whole(b"hello", frame.channel))
        await peer.next()

    async def ask(transport: HttpTransport) -> list[bytes]:
        tasks = []
        for _ in range(4):
            tasks.append(asyncio.create_task(once(transport)))
            await asyncio.sleep(0.05)
        return await asyncio.gather(*tasks)

    assert run(tmp_path, serve, ask) == [b"hello"] * 4


def test_where_nobody_listens_whoever_asks_hears_it(tmp_path: Path) -> None:
    async def main() -> None:
        transport = HttpTransport(f"unix://{tmp_path}/nothing", request_timeout_seconds=5)
        for result in await asyncio.gather(*(once(transport) for _ in range(3)), return_exceptions=True):
            assert isinstance(result, SandboxUnavailableError) and result.reason == "connect"

    asyncio.run(main())


def test_a_server_that_begins_nothing_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(SandboxRequestTimeoutError, match=r"no answer within 0\.2 s"):
        run(tmp_path, saying(), once, 0.2, begun=b"")


def test_a_server_that_no_connection_comes_to_is_given_up() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as server, ExitStack() as stack:
            for _ in range(4):  # What is accepted by nobody fills its queue.
                one = stack.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(server.getsockname())
            with pytest.raises(SandboxUnavailableError, match=r"no connection within 0\.2 s"):
                await once(HttpTransport(f"http://127.0.0.1:{server.getsockname()[1]}", request_timeout_seconds=0.2))

    asyncio.run(main())


def test_a_connection_that_is_never_answered_is_not_waited_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a proxy whose server has gone: another connection comes to the next one."""
    monkeypatch.setattr(sessions, "OPENING_SECONDS", 0.3)
    come: list[Peer] = []

    async def serve(peer: Peer) -> None:
        come.append(peer)
        if len(come) == 1:
            await asyncio.sleep(60)
        peer.say(BEGUN)
        await peer.next()
        peer.say(whole(b"hello"))
        await asyncio.sleep(60)

    async def ask(transport: HttpTransport) -> None:
        for _ in range(2):  # The first one gives up itself, the second hears that nothing has come.
            with pytest.raises(SandboxRequestTimeoutError, match=r"no answer within 0\.[23] s"):
                await once(transport)
        assert await once(transport) == b"hello"
        assert len(come) == 2

    run(tmp_path, serve, ask, 0.2, begun=b"")


def test_a_connection_that_is_never_made_is_not_waited_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As to an address at which nothing is any more: the next one is looked up anew."""
    monkeypatch.setattr(sessions, "OPENING_SECONDS", 1.0)
    connect, tried = sessions.connect, []

    async def connect_later(*arguments: Any) -> Any:
        tried.append(arguments)
        return await (asyncio.sleep(60) if len(tried) == 1 else connect(*arguments))

    monkeypatch.setattr(sessions, "connect", connect_later)

    async def ask(transport: HttpTransport) -> None:
        for _ in range(2):
            with pytest.raises(SandboxUnavailableError, match=r"no connection within (0\.2|1\.0) s") as told:
                await once(transport)
            assert told.value.reason == "connect"
        answer = b""
        while not answer:
            with suppress(SandboxUnavailableError):
                answer = await once(transport)
        assert answer == b"hello"

    run(tmp_path, saying(whole(b"hello")), ask, 0.2)


def test_a_path_that_is_not_encoded_is_refused(tmp_path: Path) -> None:
    async def ask(transport: HttpTransport) -> None:
        for path in ("/v1/a b", "/v1/a\nX: y", "/v1/ä"):
            with pytest.raises(AviatoValidationError, match="percent-encoded"):
                await transport.request("GET", path)

    run(tmp_path, saying(), ask)


SIZES = [0, 1, client.JOINED_BYTES, client.JOINED_BYTES + 1, WINDOW_BYTES, WINDOW_BYTES + 1, 5 << 20]


async def slowly(pieces: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


@pytest.mark.parametrize("pieces", [1, 3, 200])
@pytest.mark.parametrize("size", SIZES)
def test_a_body_arrives_whole(tmp_path: Path, size: int, pieces: int) -> None:
    body = os.urandom(size)
    step = -(-size // pieces) or 1
    cut = tuple(body[at : at + step] for at in range(0, size, step))

    async def serve(peer: Peer) -> None:
        for _ in range(3):
            frame = await peer.next()
            while frame.type != FrameType.OPEN:
                frame = await peer.next()
            assert (f"Content-Length: {size}".encode() in frame.payload[: frame.offset]) == (frame.channel != 3)
            assert await peer.body(frame) == body
            peer.say(whole(b"hello", frame.channel))
        await peer.next()

    async def ask(transport: HttpTransport) -> list[bytes]:
        return [await (await transport.open("PUT", "/v1/file", each)).read() for each in (cut, body, slowly(cut))]

    assert run(tmp_path, serve, ask) == [b"hello"] * 3


def test_a_server_that_takes_some_of_a_body_is_not_silent(tmp_path: Path) -> None:
    body = bytes(8 << 20)

    async def serve(peer: Peer) -> None:
        first = await peer.next()
        got = 0
        while (frame := await peer.next()).type != FrameType.END:
            got += len(frame.payload)
            if got % (1 << 20) == 0:
                await asyncio.sleep(0.15)
                peer.say(encode(FrameType.CREDIT, channel=first.channel, offset=got))
        peer.say(whole(b"hello"))
        await peer.next()

    async def ask(transport: HttpTransport) -> bytes:
        return await transport.request("PUT", "/v1/file", body)

    assert run(tmp_path, serve, ask, 0.4) == b"hello"


@pytest.mark.parametrize("reads", [False, True])
def test_a_server_that_takes_no_more_of_a_body_is_silent(tmp_path: Path, reads: bool) -> None:
    async def stuck(peer: Peer) -> None:
        await peer.next()
        while reads:
            await peer.next()
        await asyncio.sleep(60)

    async def ask(transport: HttpTransport) -> None:
        with pytest.raises(SandboxRequestTimeoutError):
            await transport.request("PUT", "/v1/file", bytes(16 << 20))

    run(tmp_path, stuck, ask, 0.2)


def test_a_slow_source_is_not_the_servers_fault(tmp_path: Path) -> None:
    async def serve(peer: Peer) -> None:
        assert await peer.body(await peer.next()) == b"ab"
        peer.say(whole(b"hello"))
        await peer.next()

    async def source() -> AsyncIterator[bytes]:
        for piece in (b"a", b"b"):
            await asyncio.sleep(0.5)
            yield piece

    async def ask(transport: HttpTransport) -> bytes:
        return await (await transport.open("PUT", "/v1/file", source())).read()

    assert run(tmp_path, serve, ask, 0.3) == b"hello"


def test_a_source_that_fails_cuts_its_request(tmp_path: Path) -> None:
    async def serve(peer: Peer) -> None:
        await peer.next()
        assert (await peer.next()).type == FrameType.DATA
        assert (await peer.next()).type == FrameType.CUT
        peer.say(encode(FrameType.CUT, channel=1))
        peer.say(whole(b"hello", (await peer.next()).channel))
        await peer.next()

    async def source() -> AsyncIterator[bytes]:
        yield b"a"
        raise KeyError("gone")

    async def ask(transport: HttpTransport) -> bytes:
        with pytest.raises(KeyError):
            await transport.open("PUT", "/v1/file", source())
        return await once(transport)

    assert run(tmp_path, serve, ask) == b"hello"


def test_an_answer_before_all_of_a_body_ends_that(tmp_path: Path) -> None:
    async def early(peer: Peer) -> None:
        for _ in range(2):
            frame = await peer.next()
            while frame.type != FrameType.OPEN:
                frame = await peer.next()
            peer.say(whole(b"hello", frame.channel))
        await peer.next()

    async def ask(transport: HttpTransport) -> None:
        for _ in range(2):
            assert await transport.request("PUT", "/v1/file", bytes(16 << 20)) == b"hello"

    run(tmp_path, early, ask)


@pytest.mark.parametrize("answer", [whole(b"hello"), PIECES])
def test_a_body_is_poured_however_its_bytes_fall(tmp_path: Path, answer: bytes) -> None:
    async def ask(transport: HttpTransport) -> bytes:
        found = bytearray()
        response = await transport.open("GET", "/v1/file")
        assert not await response.pour(found.extend)
        assert response.finished
        return bytes(found)

    for cut in range(1, len(answer)):
        assert run(tmp_path, saying(answer[:cut], answer[cut:]), ask) == b"hello"


def test_pouring_ends_early_by_what_takes(tmp_path: Path) -> None:
    class Wrong(Exception):
        pass

    def refuse(data: bytes | memoryview) -> None:
        raise Wrong

    async def ask(transport: HttpTransport) -> None:
        response = await transport.open("GET", "/v1/file")
        with pytest.raises(Wrong):
            await response.pour(refuse)
        for answers in ([True], [False, True]):
            response = await transport.open("GET", "/v1/file")
            said = iter(answers)
            assert await response.pour(lambda data, said=said: next(said))  # type: ignore[misc]
            response.close()

    async def serve(peer: Peer) -> None:
        cut: set[int] = set()

        async def answer(channel: int) -> None:
            peer.say(begin(channel))
            for at in range(99):
                if channel in cut:
                    break
                peer.say(data(b"x", at, channel))
                await asyncio.sleep(0.001)
            peer.say(encode(FrameType.CUT, channel=channel))

        tasks = []
        while True:
            frame = await peer.next()
            if frame.type == FrameType.OPEN:
                tasks.append(asyncio.create_task(answer(frame.channel)))
            elif frame.type == FrameType.CUT:
                cut.add(frame.channel)

    run(tmp_path, serve, ask)


def test_pouring_what_was_cut(tmp_path: Path) -> None:
    async def ask(transport: HttpTransport) -> None:
        response = await transport.open("GET", "/v1/file")
        found = bytearray()
        with pytest.raises(SandboxUnavailableError):
            await response.pour(found.extend)
        assert found == b"hell"

    run(tmp_path, saying(begin() + data(b"hell"), close=True), ask)


def test_what_is_done_while_a_head_is_on_its_way(tmp_path: Path) -> None:
    """The body comes after it, also where the server has read the head long before."""
    done: list[str] = []

    async def serve(peer: Peer) -> None:
        for _ in range(2):
            first = await peer.next()
            assert b"Content-Length: 1" in first.payload and first.stream != WHOLE
            assert await peer.body(first) == b"."
            done.append("body")
            peer.say(whole(b"hello", first.channel))
        await peer.next()

    async def ask(transport: HttpTransport) -> None:
        for _ in range(2):
            response = await transport.open("PUT", "/v1/file", b".", meanwhile=lambda: done.append("meanwhile"))
            assert await response.read() == b"hello"

    run(tmp_path, serve, ask)
    assert done == ["meanwhile", "body"] * 2
