"""HTTP over a Unix socket: every way in which an answer can be cut into pieces, and every way in which it can be none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aviato.exceptions import SandboxRequestTimeoutError, SandboxUnavailableError
from aviato.transport import unix
from aviato.transport.answers import PAUSE_BYTES, Chunks, parse_head
from aviato.transport.http import HttpTransport

HEAD = b"HTTP/1.1 200 OK\r\nAviato-Wire: 1\r\n"
LENGTH = HEAD + b"content-length: 5\r\n\r\nhello"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: t\r\n\r\n"
UNTIL_END = HEAD + b"\r\nhello"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def answering(tmp_path: Path, serve: Serve) -> AsyncIterator[str]:
    """A server that answers by bytes, and how often it was connected to, as the length of a list."""
    path = str(tmp_path / "socket")
    tasks: list[asyncio.Task[Any]] = []

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(tracked, path)
    try:
        yield path
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def saying(*pieces: bytes, close: bool = False) -> Serve:
    """Say these pieces to each request, one by one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                writer.close()
                return

    return serve


def run(tmp_path: Path, serve: Serve, ask: Callable[[HttpTransport], Coroutine[Any, Any, Any]], seconds: float = 5.0) -> Any:
    async def main() -> Any:
        async with answering(tmp_path, serve) as path:
            return await ask(HttpTransport(f"unix://{path}", request_timeout_seconds=seconds))

    return asyncio.run(main())


async def once(transport: HttpTransport) -> bytes:
    return await transport.request("GET", "/v1/health")


@pytest.mark.parametrize("answer", [LENGTH, CHUNKED])
def test_an_answer_is_the_same_however_its_bytes_fall(tmp_path: Path, answer: bytes) -> None:
    async def ask(transport: HttpTransport) -> list[bytes]:
        return [await once(transport) for _ in range(2)]

    for cut in range(1, len(answer)):
        assert run(tmp_path, saying(answer[:cut], answer[cut:]), ask) == [b"hello"] * 2
    assert run(tmp_path, saying(*(answer[at : at + 1] for at in range(len(answer)))), ask) == [b"hello"] * 2


@pytest.mark.parametrize("step", range(1, 12))
def test_chunks_at_every_cut(step: int) -> None:
    body = CHUNKED.partition(b"\r\n\r\n")[2]
    chunks, found = Chunks(), []
    for at in range(0, len(body), step):
        found += list(chunks.feed(memoryview(body[at : at + step])))
    assert found[-1] is None
    assert b"".join(piece for piece in found if piece) == b"hello"


def test_the_end_of_the_connection_can_be_the_end_of_a_body(tmp_path: Path) -> None:
    assert run(tmp_path, saying(UNTIL_END, b" again", close=True), once) == b"hello again"


def test_no_content(tmp_path: Path) -> None:
    assert run(tmp_path, saying(b"HTTP/1.1 204 No Content\r\nAviato-Wire: 1\r\n\r\n"), once) == b""


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 99 x\r\n\r\n",
        HEAD + b"no header\r\n\r\n",
        HEAD + b"Content-Length: +5\r\n\r\nhello",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n",
        b"x" * (unix.LARGEST_HEAD_BYTES + 1),
    ],
)
def test_what_is_not_http(tmp_path: Path, answer: bytes) -> None:
    with pytest.raises(SandboxUnavailableError, match="not an answer that can be read") as caught:
        run(tmp_path, saying(answer), once)
    assert caught.value.reason == "protocol"


@pytest.mark.parametrize("answer", [b"", HEAD, LENGTH[:-1], CHUNKED[:-8]])
def test_a_cut_is_a_lost_connection(tmp_path: Path, answer: bytes) -> None:
    with pytest.raises(SandboxUnavailableError, match="connection lost") as caught:
        run(tmp_path, saying(answer, close=True), once)
    assert caught.value.reason == "connection_lost"
    assert caught.value.retryable


@pytest.mark.parametrize("answer", [b"", HEAD, LENGTH[:-1]])
def test_silence_is_told_by_what_was_heard_last(tmp_path: Path, answer: bytes) -> None:
    with pytest.raises(SandboxRequestTimeoutError, match="no answer within"):
        run(tmp_path, saying(answer), once, 0.2)


def test_a_connection_is_used_again_unless_more_came_than_was_asked_for(tmp_path: Path) -> None:
    made = []

    def counted(serve: Serve) -> Serve:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            made.append(writer)
            await serve(reader, writer)

        return connected

    async def thrice(transport: HttpTransport) -> None:
        for _ in range(3):
            assert await once(transport) == b"hello"

    for answer, expected in ((LENGTH, 1), (LENGTH + b"HTTP/1.1 200 OK\r\n\r\n", 3), (LENGTH.replace(b"1.1", b"1.0"), 3)):
        made.clear()
        run(tmp_path, counted(saying(answer)), thrice)
        assert len(made) == expected
        closing = LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    made.clear()
    run(tmp_path, counted(saying(closing)), thrice)
    assert len(made) == 3


def test_a_slow_reader_holds_the_server_up(tmp_path: Path) -> None:
    size, sent = 64 * PAUSE_BYTES, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(b"x" * (1 << 16))
            sent += 1 << 16
            await writer.drain()

    async def ask(transport: HttpTransport) -> None:
        response = await transport.open("GET", "/v1/large")
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < size // 4
        got = 0
        while piece := await response.next():
            got += len(piece)
        assert got == size
        assert response.finished

    run(tmp_path, serve, ask, 0.3)


def test_a_request_that_is_given_up_takes_its_connection_along(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        gone.set()

    async def ask(transport: HttpTransport) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(once(transport), 0.05)
        await asyncio.wait_for(gone.wait(), 5)

    run(tmp_path, serve, ask)


def test_idle_connections_are_closed_after_a_while(tmp_path: Path) -> None:
    async def main() -> None:
        async with answering(tmp_path, saying(LENGTH)) as path:
            pool = unix.UnixPool("here", path, idle_seconds=0.05)
            connections = [await pool.connection(1) for _ in range(3)]
            for connection in connections:
                answer = await connection.ask(b"GET / HTTP/1.1\r\n\r\n", (), 5)
                assert await answer.read() == b"hello"
            assert await pool.connection(1) is connections[-1]
            while any(one.usable for one in connections[:-1]):
                await asyncio.sleep(0.01)
            assert connections[-1].usable
            pool.close()

    asyncio.run(asyncio.wait_for(main(), 5))


def test_headers_are_found_whatever_their_case() -> None:
    head = parse_head(b"HTTP/1.1 409 Conflict\r\nRetry-After:  7 \r\nX: a\r\nX: b")
    assert (head.status, head.headers["retry-after"], head.headers.getall("x")) == (409, "7", ["a", "b"])
    assert (head.length, head.chunked, head.again) == (None, False, False)


def test_heads_that_differ_are_not_taken_for_each_other() -> None:
    """Those that are equal are parsed once, and nobody can change what others read; one that is wrong is wrong each time."""
    first, second = (parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: %d" % length) for length in (5, 6))
    assert (first.length, second.length, first.again) == (5, 6, True)
    assert parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 5") == first
    assert not hasattr(first.headers, "add")
    for _ in range(2):
        with pytest.raises(ValueError, match="Transfer-Encoding"):
            parse_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip")


def test_a_path_that_is_not_encoded_is_refused(tmp_path: Path) -> None:
    async def ask(transport: HttpTransport) -> None:
        for path in ("/v1/a b", "/v1/a\r\nX: y", "/v1/ä"):
            with pytest.raises(ValueError, match="percent-encoded"):
                await transport.request("GET", path)

    run(tmp_path, saying(LENGTH), ask)


def taking(*bodies: bytes, answer: bytes = LENGTH) -> Serve:
    """Take a body of each of these sizes, and answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body in bodies:
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"Content-Length: %d\r\n" % len(body) in head
            assert await reader.readexactly(len(body)) == body
            writer.write(answer)

    return serve


@pytest.mark.parametrize("pieces", [1, 3, 3 * unix.MOST_PIECES])
@pytest.mark.parametrize("size", [0, 1, unix.COPIED_BYTES, unix.COPIED_BYTES + 1, 5 << 20])
def test_a_body_arrives_whole_and_its_connection_is_used_again(tmp_path: Path, size: int, pieces: int) -> None:
    body = os.urandom(size)
    step = -(-size // pieces) or 1
    cut = tuple(body[at : at + step] for at in range(0, size, step))

    async def ask(transport: HttpTransport) -> list[bytes]:
        return [await (await transport.open("PUT", "/v1/file", cut)).read(), await transport.request("PUT", "/v1/file", body)]

    assert run(tmp_path, taking(body, body), ask) == [b"hello"] * 2


def test_a_server_that_takes_some_of_a_body_is_not_silent(tmp_path: Path) -> None:
    body = bytes(16 << 20)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(4):
            await reader.readexactly(len(body) // 4)
            await asyncio.sleep(0.2)
        writer.write(LENGTH)

    async def ask(transport: HttpTransport) -> bytes:
        return await transport.request("PUT", "/v1/file", body)

    assert run(tmp_path, slow, ask, 0.3) == b"hello"


def test_a_server_that_takes_no_more_of_a_body_is_silent(tmp_path: Path) -> None:
    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(60)

    async def ask(transport: HttpTransport) -> None:
        with pytest.raises(SandboxRequestTimeoutError):
            await transport.request("PUT", "/v1/file", bytes(16 << 20))

    run(tmp_path, stuck, ask, 0.2)


def test_who_answers_before_all_of_a_body_has_come_is_not_asked_again_there(tmp_path: Path) -> None:
    made = 0

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        made += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(LENGTH)
        await asyncio.sleep(60)

    async def ask(transport: HttpTransport) -> None:
        for _ in range(2):
            assert await transport.request("PUT", "/v1/file", bytes(16 << 20)) == b"hello"

    run(tmp_path, early, ask)
    assert made == 2


@pytest.mark.parametrize("answer", [LENGTH, CHUNKED, UNTIL_END])
def test_a_body_is_poured_however_its_bytes_fall(tmp_path: Path, answer: bytes) -> None:
    async def ask(transport: HttpTransport) -> bytes:
        found = bytearray()
        response = await transport.open("GET", "/v1/file")
        assert not await response.pour(found.extend)
        assert response.finished
        return bytes(found)

    for cut in range(1, len(answer)):
        assert run(tmp_path, saying(answer[:cut], answer[cut:], close=answer is UNTIL_END), ask) == b"hello"


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

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b"Content-Length: 100\r\n\r\n")
        with suppress(ConnectionError):
            for _ in range(99):
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.001)
            await asyncio.sleep(60)

    run(tmp_path, serve, ask)


def test_pouring_what_was_cut(tmp_path: Path) -> None:
    async def ask(transport: HttpTransport) -> None:
        response = await transport.open("GET", "/v1/file")
        found = bytearray()
        with pytest.raises(SandboxUnavailableError):
            await response.pour(found.extend)
        assert found == b"hell"

    run(tmp_path, saying(LENGTH[:-1], close=True), ask)


def test_what_is_done_while_a_head_is_on_its_way(tmp_path: Path) -> None:
    """The body comes after it, also where the server has read the head long before."""
    done: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            assert b"Content-Length: 1\r\n" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(1) == b"."
            done.append("body")
            writer.write(LENGTH)

    async def ask(transport: HttpTransport) -> None:
        for _ in range(2):
            response = await transport.open("PUT", "/v1/file", b".", meanwhile=lambda: done.append("meanwhile"))
            assert await response.read() == b"hello"

    run(tmp_path, serve, ask)
    assert done == ["meanwhile", "body"] * 2


def test_a_connection_ends_whose_request_ends_before_its_body(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        gone.set()

    def failing() -> None:
        raise SandboxUnavailableError("no room")

    async def ask(transport: HttpTransport) -> None:
        with pytest.raises(SandboxUnavailableError):
            await transport.open("PUT", "/v1/file", b".", meanwhile=failing)
        await asyncio.wait_for(gone.wait(), 5)

    run(tmp_path, serve, ask)
