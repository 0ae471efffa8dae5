"""A way to a server that a test shuts and opens, and that cuts one request, or its answer, after so many bytes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aviato.wire.frames import HEAD, FrameType
from aviato.wire.session import WHOLE

PIECE_BYTES = 1 << 16
T = TypeVar("T")


@dataclass
class Cut:
    """What shall be cut: the connection of the next request that begins so, after so many bytes of it or of its answer.

    With `shuts` nobody is let through then; `instead` makes what the client gets in place of the rest of the answer, of the
    channel's number.
    """

    begins: bytes
    up: int | None = None
    down: int | None = None
    shuts: bool = False
    instead: Callable[[int], bytes] = lambda channel: b""
    happened: bool = False


class Gate:
    """A socket in front of a server's. Its methods are for the test's thread; it runs on one of its own.

    Args:
        server: where that is.
        only_http: no session is opened, as by a server of an earlier version.

    Attributes:
        url: where it is.
    """

    def __init__(self, server: str, *, only_http: bool = False) -> None:
        self.only_http = only_http
        self.directory = Path(tempfile.mkdtemp(prefix="aviato-gate-", dir="/tmp"))
        self.url = f"unix://{self.directory}/s"
        self._server = server.removeprefix("unix://")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aviato-loop gate")
        self._open = True
        self._swallows = False
        self._cut: Cut | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread.start()
        self._on_loop(self._listen)

    def shut(self) -> None:
        """Cut all connections and let nobody through."""

        async def shut() -> None:
            self._open = False
            for writer in self._writers:
                writer.transport.abort()

        self._on_loop(shut)

    def open(self) -> None:
        """Let everybody through again."""
        self._swallows = False
        self._open = True

    def swallow(self) -> None:
        """Pass on requests, and no byte of an answer."""
        self._swallows = True

    def cut(self, begins: str, **how: Any) -> Cut:
        """Cut the next request whose head begins so; see `Cut`."""
        self._cut = Cut(begins.encode(), **how)
        return self._cut

    def stop(self) -> None:
        """End it."""

        async def stop() -> None:
            self._open = False
            self._listening.close()
            await _rounds()  # Connections that were accepted just now have their tasks then.
            # Those of asyncio's own too, which still accept.
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                for writer in self._writers:
                    writer.transport.abort()
                await asyncio.wait(others, timeout=0.1)
            await _rounds()  # What was aborted is closed then.

        self._on_loop(stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _on_loop(self, call: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(60)

    async def _listen(self) -> None:
        self._listening = await asyncio.start_unix_server(self._accept, str(self.directory / "s"), limit=PIECE_BYTES)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if not self._open:
            writer.transport.abort()
            return
        writers = [writer]
        self._writers.add(writer)
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self._server, limit=PIECE_BYTES)
            writers.append(server_writer)
            self._writers.add(server_writer)
            if not self._open:
                return  # It was shut meanwhile.
            passing = _Passing(self)
            both = [
                asyncio.create_task(passing.up(reader, server_writer)),
                asyncio.create_task(passing.down(server_reader, writer)),
            ]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        except OSError:
            pass
        finally:
            for one_writer in writers:
                self._writers.discard(one_writer)
                one_writer.transport.abort()


async def _rounds() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class _Passing:
    """One connection through a gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._cut: Cut | None = None
        self._channel = 0
        self._left = 0
        self._is_session = False

    async def up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):
            while data := await self._next(reader):
                self._begin(data)
                if self._cut is not None and self._cut.up is not None:
                    data = self._upto(data)
                writer.write(data)
                await writer.drain()
                if self._cut is not None and self._cut.happened:
                    await self._end(self._cut)
                    return
                if data.startswith(b"GET /v1/session "):
                    self._is_session = not self._gate.only_http

    async def down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):
            if (first := await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 "):
                await self._pass_down(first, writer)
                first = b""
            while data := first or await self._next(reader):
                first = b""
                if self._gate._swallows:
                    continue
                if self._cut is not None and self._cut.down is not None:
                    data = self._upto(data)
                    data += self._cut.instead(self._channel) if self._cut.happened else b""
                await self._pass_down(data, writer)
                if self._cut is not None and self._cut.happened:
                    await self._end(self._cut)
                    return
                self._over(data)

    @staticmethod
    async def _pass_down(data: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    async def _next(self, reader: asyncio.StreamReader) -> bytes:
        """A whole frame, or a piece of HTTP."""
        if not self._is_session:
            data = await reader.read(PIECE_BYTES)
            if self._gate.only_http:
                data = data.replace(b"GET /v1/session ", b"GET /v1/nothing ")
            return data
        first = await reader.readexactly(HEAD.size)
        return first + await reader.readexactly(HEAD.unpack(first)[3])

    def _begin(self, data: bytes) -> None:
        armed = self._gate._cut
        if armed is None:
            return
        said, channel = data, 0
        if self._is_session:
            kind, _, channel, _, _ = HEAD.unpack_from(data)
            said = data[HEAD.size :] if kind == FrameType.OPEN else b""
        if said.startswith(armed.begins):
            self._cut, self._gate._cut, self._channel = armed, None, channel
            self._left = armed.up if armed.up is not None else armed.down or 0

    def _over(self, data: bytes) -> None:
        """What was not cut by the end of its answer is not cut any more."""
        if not self._is_session or self._cut is None:
            return
        kind, stream, channel, _, _ = HEAD.unpack_from(data)
        is_last = kind in (FrameType.END, FrameType.CUT) or (kind == FrameType.ANSWER and stream == WHOLE)
        if channel == self._channel and is_last:
            self._cut = None

    async def _end(self, cut: Cut) -> None:
        await asyncio.sleep(0.002)  # What was passed on shall arrive before the end does.
        if cut.shuts:
            # Nobody comes through by a connection that was there before.
            for writer in self._gate._writers:
                writer.transport.abort()

    def _upto(self, data: bytes) -> bytes:
        assert self._cut is not None
        if len(data) > self._left:
            self._cut.happened = True
            self._gate._open = self._gate._open and not self._cut.shuts
        data = data[: self._left]
        self._left -= len(data)
        return data


@contextmanager
def gate_to(server: str, *, only_http: bool = False) -> Iterator[Gate]:
    """A gate to a server's socket, and its end."""
    gate = Gate(server, only_http=only_http)
    try:
        yield gate
    finally:
        gate.stop()
