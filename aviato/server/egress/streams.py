"""A connected socket read piece by piece, with what was read too far kept, and every wait bounded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

from aviato.server.egress.requests import END, MAX_HEAD_BYTES, Malformed

PIECE_BYTES = 64 << 10
LEAVE_SECONDS = 1.0
LEAVE_PIECES = 64
_RESET = struct.pack("ii", 1, 0)


class Stream:
    """One side of a request. Owns its socket.

    Args:
        sock: connected, not blocking.
        idle_seconds: how long the other side may neither send nor take anything.
    """

    def __init__(self, sock: socket.socket, idle_seconds: float) -> None:
        self.sock = sock
        self.received = 0
        self.sent = 0
        self._idle_seconds = idle_seconds
        self._held = bytearray()
        self._loop = asyncio.get_running_loop()

    def taken(self) -> bytes:
        """What was read too far; it is the caller's now."""
        held = bytes(self._held)
        self._held.clear()
        return held

    def give_back(self, data: bytes) -> None:
        """Of what was read, the part that was too much."""
        self._held[:0] = data

    async def some(self, most: int = PIECE_BYTES) -> bytes:
        """The next bytes, so many or fewer; none at the end.

        Raises:
            OSError: the connection broke, or nothing came for too long (TimeoutError).
        """
        if self._held:
            data = bytes(self._held[:most])
            del self._held[:most]
            return data
        async with asyncio.timeout(self._idle_seconds):
            data = await self._loop.sock_recv(self.sock, most)
        self.received += len(data)
        return data

    async def head(self, seconds: float) -> bytes:
        """A head, up to and with its empty line; nothing where the end comes before its first byte.

        Raises:
            Malformed: it is too long, or broken off.
            OSError: the connection broke, or it is not there in time (TimeoutError).
        """
        async with asyncio.timeout(seconds):
            return await self._until(END, MAX_HEAD_BYTES)

    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            OSError: the connection broke, or the other side takes nothing (TimeoutError).
        """
        async with asyncio.timeout(self._idle_seconds):
            await self._loop.sock_sendall(self.sock, data)
        self.sent += len(data)
        # Where both sides are fast nothing above ever waits, and nobody else would get a turn.
        await asyncio.sleep(0)

    async def leave(self) -> None:
        """Close, once the other side has had a moment to read what was sent: with bytes unread, closing would be a reset."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(LEAVE_SECONDS):
                for _ in range(LEAVE_PIECES):
                    if not await self._loop.sock_recv(self.sock, PIECE_BYTES):
                        break
        self.sock.close()

    def reset(self) -> None:
        """Close in a way that nobody takes for the end of an answer."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sock.close()

    async def _until(self, mark: bytes, limit: int) -> bytes:
        held, looked = self._held, 0
        while (end := held.find(mark, max(0, looked - len(mark) + 1))) < 0:
            looked = len(held)
            if looked > limit:
                break
            data = await self._loop.sock_recv(self.sock, PIECE_BYTES)
            self.received += len(data)
            held += data
            if not data:
                if not held:
                    return b""
                raise Malformed("it breaks off in the middle")
        if end < 0 or end > limit:
            raise Malformed(f"its head is longer than {limit} bytes", "431 Request Header Fields Too Large")
        found = bytes(held[: end + len(mark)])
        del held[: end + len(mark)]
        return found
