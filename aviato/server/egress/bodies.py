"""The body of a request on its way to the host: that, and no byte beyond it."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from aviato.server.egress.requests import Malformed, chunk_size

if TYPE_CHECKING:
    from aviato.server.egress.streams import Stream

PIECE_BYTES = 16 << 10
"""That are read as chunks in one turn: some milliseconds, where each is of one byte."""
MAX_LINE_BYTES = 4096
MAX_TRAILERS = 64
SMALL_BYTES = 256
SMALL_CHUNKS_A_SECOND = 5000
"""Of one sandbox: reading a chunk costs the server as much time whatever is in it."""


async def send_bytes(client: Stream, host: Stream, left: int) -> None:
    """Pass on so many bytes.

    Raises:
        OSError: one of the two is gone.
    """
    while left:
        data = await client.some()
        if not data:
            raise _gone()
        await host.send(data[:left])
        if len(data) > left:
            client.give_back(data[left:])
            return
        left -= len(data)


async def send_chunks(client: Stream, host: Stream, pace: asyncio.Lock) -> None:
    """Pass on chunks, in one form: what comes with strange sizes, extensions or trailers goes without.

    Args:
        client: where they come from.
        host: where they go.
        pace: of the sandbox; all its small chunks together go no faster than so many a second.

    Raises:
        Malformed: they are none.
        OSError: one of the two is gone.
    """
    chunks = Chunks()
    while not chunks.over:
        data = await client.some(PIECE_BYTES)
        if not data:
            raise _gone()
        async with pace:
            read, body = chunks.read, chunks.feed(data)
            small = chunks.read - read - len(body) // SMALL_BYTES
            if small > 1:
                await asyncio.sleep(small / SMALL_CHUNKS_A_SECOND)
        if body:
            await host.send(b"%x\r\n%b\r\n" % (len(body), body))
    client.give_back(chunks.rest())
    await host.send(b"0\r\n\r\n")


class Chunks:
    """Takes a body out of its chunks, piece by piece.

    Attributes:
        read: how many chunks so far.
        over: whether all is there, trailers included.
    """

    def __init__(self) -> None:
        self.read = 0
        self.over = False
        self._held = b""
        self._left = 0
        self._last = False
        self._trailers = 0

    def feed(self, data: bytes) -> bytes:
        """What of the body is in the next piece.

        Raises:
            Malformed: it is none.
        """
        data, at, body = self._held + data, 0, []
        while not self.over:
            if self._left > 2:
                body.append(data[at : at + self._left - 2])
                at += len(body[-1])
                self._left -= len(body[-1])
                if self._left > 2:
                    break
            if self._left:
                # The end of a chunk, which may come in two parts.
                if len(data) - at < 2:
                    break
                if data[at : at + 2] != b"\r\n":
                    raise Malformed("a chunk is longer than it says")
                at, self._left = at + 2, 0
            end = data.find(b"\r\n", at, at + MAX_LINE_BYTES)
            if end < 0:
                if len(data) - at >= MAX_LINE_BYTES:
                    raise Malformed("there is a chunk without a size, or a trailer that is too long")
                break
            self._line(data[at : end + 2])
            at = end + 2
        self._held = data[at:]
        return b"".join(body)

    def rest(self) -> bytes:
        """What came after the end."""
        return self._held

    def _line(self, line: bytes) -> None:
        if not self._last:
            self.read += 1
            size = chunk_size(line)
            self._left, self._last = size + 2 if size else 0, not size
            return
        self.over = line == b"\r\n"
        self._trailers += 1
        if self._trailers > MAX_TRAILERS:
            raise Malformed("there are too many trailers")


def _gone() -> OSError:
    return ConnectionAbortedError(errno.ECONNABORTED, "the client is gone")
