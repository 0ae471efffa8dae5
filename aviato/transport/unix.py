"""HTTP over a Unix socket: connections that are used again. As much of HTTP/1.1 as an aviato server speaks.

Each command is a request, and a general client spends more on it than all the rest of this side: what there is to say on a
Unix socket needs no proxies, redirects, cookies, compression or TLS. Bodies that are sent piece by piece do not go here.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from aviato.exceptions import SandboxUnavailableError
from aviato.transport.answers import Answer, Chunks, parse_head
from aviato.transport.faults import CONNECT
from aviato.transport.run_stream import RunStreams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LARGEST_HEAD_BYTES = 64 << 10
HEAD_BYTES = 1 << 10
"""Of an answer, that are looked at first; most heads are shorter."""
COPIED_BYTES = 64 << 10
MOST_PIECES = 64
STEP_BYTES = 128 << 10
ROOM_BYTES = 256 << 10


class Connection(asyncio.BufferedProtocol):
    """A connection with one request under way at most.

    Args:
        pool: gets it back once an answer has come whole.
    """

    def __init__(self, pool: UnixPool) -> None:
        self.idle_since = 0.0
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._coming: asyncio.Future[Answer] | None = None
        self._answer: Answer | None = None
        self._left: int | None = None
        """Of a body whose length is known."""
        self._chunks: Chunks | None = None
        self._again = False
        self._paused = False
        self._sending = False
        self._room: asyncio.Future[None] | None = None
        """Set where the socket takes no more of a request for the moment."""
        self._unsent = 0
        """Of the request, when that was looked at last: who takes some of it is not silent."""
        self._silence = 0.0
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def ask(
        self, head: bytes, body: Sequence[bytes], silence_seconds: float, meanwhile: Callable[[], None] | None = None
    ) -> Answer:
        """Send a request; returns with the head of its answer.

        Args:
            head: of the request.
            body: its pieces.
            silence_seconds: how long the server may take nothing and say nothing, then and while the answer's body comes.
            meanwhile: done while the head is on its way, before the body follows.

        Raises:
            TimeoutError: it said nothing for longer.
            ConnectionError: the connection ended.
            SandboxUnavailableError: what came is not HTTP.
        """
        coming: asyncio.Future[Answer] = self._loop.create_future()
        self._coming = coming
        self._silence, self._heard = silence_seconds, self._loop.time()
        if silence_seconds != float("inf") and (self._timer is None or self._timer.when() > self._heard + silence_seconds):
            self._watch(silence_seconds)
        if self._transport is None:
            raise ConnectionResetError("the server closed it")
        steps = None
        if meanwhile is not None:
            self._send_now(self._transport, head)
            head = b""
            try:
                meanwhile()
            except BaseException:
                self.abort()
                raise
        # In one piece where it is small, which wakes the server once; what is large is not copied.
        self._unsent = sum(map(len, body))
        if self._unsent <= COPIED_BYTES or len(body) > MOST_PIECES:
            self._transport.write(b"".join((head, *body)))
        elif not isinstance(self._transport, asyncio.Transport):
            self._transport.writelines((head, *body))  # uvloop's
        else:
            steps = self._in_steps(self._transport, head, body, coming)
        if self._unsent <= COPIED_BYTES:
            self._unsent = 0  # The socket takes that at once, whatever the server does.
        try:
            if steps is not None:
                await steps
            return await coming
        except BaseException:
            self.abort()
            raise

    @staticmethod
    def _send_now(transport: asyncio.Transport, data: bytes) -> None:
        """Send at once: uvloop's transports wait for the end of the turn."""
        sent = 0
        if not transport.get_write_buffer_size():
            with suppress(OSError):  # The transport learns of it as well.
                sent = os.write(transport.get_extra_info("socket").fileno(), data)
        if sent < len(data):
            transport.write(data[sent:])

    async def _in_steps(
        self, transport: asyncio.Transport, head: bytes, body: Sequence[bytes], coming: asyncio.Future[Answer]
    ) -> None:
        """Send a large body as the server takes it. asyncio's transports copy what the socket does not take at once."""
        transport.set_write_buffer_limits(0)
        self._sending = True
        transport.write(head)
        for piece in body:
            view = memoryview(piece)
            for start in range(0, len(view), STEP_BYTES):
                if self._room is not None:
                    await asyncio.wait((self._room, coming), return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    return
                self._heard = self._loop.time()
                transport.write(view[start : start + STEP_BYTES])
        self._sending = False

    @property
    def usable(self) -> bool:
        """Whether it can be asked."""
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close it, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def taken(self, answer: Answer) -> None:
        """What had come of an answer was read."""
        if self._paused and answer is self._answer and self._transport is not None:
            self._paused, self._heard = False, self._loop.time()
            self._transport.resume_reading()

    # -- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of asyncio's

    def pause_writing(self) -> None:
        """The socket takes no more."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """It has taken what there was."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next piece of the answer goes: the same memory for all connections, which new memory is dearer than."""
        return self._pool.room

    def buffer_updated(self, nbytes: int) -> None:
        """A piece of the answer."""
        self._heard = self._loop.time()
        data = self._pool.room[:nbytes]
        try:
            if self._answer is None:
                self._take_head(data)
            else:
                self._take_body(self._answer, data)
        except ValueError as error:
            self._fail(
                SandboxUnavailableError(f"{self._pool.where}: not an answer that can be read ({error})", reason="protocol")
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._transport = None
        self.resume_writing()
        self._pool.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None and exc is None and self._left is None and self._chunks is None:
            self._answer.end()  # This is how the end of such a body is told.
        self._fail(ConnectionResetError("the server closed it" if exc is None else str(exc)))

    # -- inside

    def _take_head(self, data: memoryview) -> None:
        if self._coming is None or self._coming.done():
            raise ValueError("it was not asked for")
        position = 0
        while True:
            piece = data[position : position + HEAD_BYTES]
            if not piece:
                return
            self._head += piece
            position += len(piece)
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if end:
                break
            if len(self._head) > LARGEST_HEAD_BYTES:
                raise ValueError("its head is too large")
        body = data[position - len(rest) :]
        self._head = b""
        status, headers, self._left, chunked, self._again = parse_head(head)
        self._chunks = Chunks() if chunked else None
        answer = self._answer = Answer(self, status, headers, self._left)
        self._coming.set_result(answer)
        if body or self._left == 0:
            self._take_body(answer, body)

    def _take_body(self, answer: Answer, data: memoryview) -> None:
        if self._chunks is not None:
            for piece in self._chunks.feed(data):
                if piece is None:
                    self._end(answer)
                    return
                answer.feed(piece)
        elif self._left is None:
            answer.feed(data)
        else:
            if len(data) > self._left:
                data, self._again = data[: self._left], False  # Nobody has asked for the rest.
            self._left -= len(data)
            if data:
                answer.feed(data)
            if not self._left:
                self._end(answer)
                return
        if answer.full and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _end(self, answer: Answer) -> None:
        self._answer = self._coming = None
        answer.end()
        # Who answers before all of a body has come wants no more of it.
        unsent = self._sending or self._transport is None or self._transport.get_write_buffer_size()
        if self._again and not unsent:
            self._pool.give_back(self)
        else:
            self.abort()

    def _fail(self, error: Exception) -> None:
        coming, answer = self._coming, self._answer
        self._coming = self._answer = None
        if answer is not None:
            answer.end(error)
        elif coming is not None and not coming.done():
            coming.set_exception(error)
        self.abort()

    def _watch(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """One timer serves many requests: to set and cancel one for each costs more than to look now and then."""
        self._timer = None
        if self._coming is None or self._silence == float("inf"):
            return
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if self._paused or unsent < self._unsent:
            self._heard = self._loop.time()
        self._unsent = unsent
        left = self._heard + self._silence - self._loop.time()
        if left > 0:
            self._watch(left)
        else:
            self._fail(TimeoutError())


class UnixPool:
    """The connections of one loop to one socket.

    Args:
        where: the server, for messages.
        name: of the socket, as `connect` takes it.
        idle_seconds: how long one is kept that nobody uses.

    Attributes:
        run_streams: where batches are asked for.
    """

    def __init__(self, where: str, name: str, idle_seconds: float) -> None:
        self.where = where
        self._name = name
        self._idle_seconds = idle_seconds
        self.room = memoryview(mmap.mmap(-1, ROOM_BYTES))
        """What is read is taken from there at once; pages that nothing has come to take no memory."""
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        """Those used last are used first, so that the others can go."""
        self._timer: asyncio.TimerHandle | None = None
        self.run_streams = RunStreams(name)

    async def connection(self, seconds: float) -> Connection:
        """One that nobody uses.

        Raises:
            SandboxUnavailableError: there is none within this time.
            OSError: none can be made.
        """
        while self._idle:
            found = self._idle.pop()
            if found.usable:
                return found
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                _, made = await loop.create_unix_connection(lambda: Connection(self), self._name)
        except TimeoutError:
            raise SandboxUnavailableError(f"{self.where}: no connection within {seconds:g} s", reason=CONNECT) from None
        self._all.add(made)
        return made

    def give_back(self, connection: Connection) -> None:
        """Its answer has come whole."""
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._timer is None:
            self._timer = loop.call_later(self._idle_seconds, self._close_idle)

    def forget(self, connection: Connection) -> None:
        """It has ended."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close them all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.run_streams.close()
        for connection in list(self._all):
            connection.abort()

    def _close_idle(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        since = loop.time() - self._idle_seconds
        for connection in [one for one in self._idle if one.idle_since <= since]:
            self._idle.remove(connection)
            connection.abort()
        if self._idle:
            self._timer = loop.call_later(self._idle[0].idle_since - since, self._close_idle)
