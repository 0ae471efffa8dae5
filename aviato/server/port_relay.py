"""One connection through a port: bytes both ways, each end closed when the other is, no more held than a buffer each way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import cast

BUFFER_BYTES = 64 << 10
"""What waits for a slow reader; then the writer waits."""
READ_BYTES = 64 << 10
"""At once, and so how much may come on top of it."""
FIRST_BYTES_SECONDS = 1.0
LEAVE_SECONDS = 1.0
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"CONNECT ", b"OPTIONS ", b"TRACE ", b"PATCH ")
_buffers = threading.local()
_RESET = struct.pack("ii", 1, 0)


async def relay(
    outer: socket.socket, inner: socket.socket, *, first: bytes = b"", idle_seconds: float | None = None
) -> tuple[int, int]:
    """Move bytes between two connected sockets until both are closed; cancelling closes both. Owns the sockets.

    Args:
        outer: one of them.
        inner: the other.
        first: what came from `outer` before.
        idle_seconds: both are cut once no byte has moved for so long, or for up to twice as long; None: never.

    Returns:
        How many bytes came from `outer`, and from `inner`.
    """
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    ends = _End(outer, over), _End(inner, over)
    ends[0].other, ends[1].other = ends[1], ends[0]
    if first:
        ends[0].received_data(first)
    try:
        for end in ends:
            await loop.connect_accepted_socket(end.as_protocol, end.sock)
        moved = -1
        while not over.done() and moved != (moved := ends[0].received + ends[1].received):
            await asyncio.wait({over}, timeout=idle_seconds)
    finally:
        for end in ends:
            end.abort()
    return ends[0].received, ends[1].received


class _End(asyncio.BufferedProtocol):
    """One side; what arrives goes to the other."""

    other: _End

    def __init__(self, sock: socket.socket, over: asyncio.Future[None]) -> None:
        self.sock = sock
        self.lost = False
        self.received = 0
        self._over = over
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._finished = False

    def as_protocol(self) -> _End:
        """Itself."""
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what the other side had already."""
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(BUFFER_BYTES)
        for data in self._early:
            self._transport.write(data)
        self._early.clear()
        if self._finished:
            self._transport.write_eof()

    def get_buffer(self, sizehint: int) -> bytearray:
        """One for all connections of a loop: between being filled and emptied nothing else happens there."""
        if not hasattr(_buffers, "buffer"):
            _buffers.buffer = bytearray(READ_BYTES)
        return cast("bytearray", _buffers.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what has come."""
        self.received_data(bytes(memoryview(_buffers.buffer)[:nbytes]))

    def received_data(self, data: bytes) -> None:
        """Pass it on."""
        self.received += len(data)
        self.other.send(data)

    def eof_received(self) -> bool:
        """Pass it on; this direction is over, and the other may go on."""
        self.other.finish()
        if self._finished:
            self.close()
            self.other.close()
        return True

    def pause_writing(self) -> None:
        """This side reads too slowly: the other waits."""
        self.other.hold(True)

    def resume_writing(self) -> None:
        """It has caught up."""
        self.other.hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed here, closed there; a reset stays a reset."""
        self.lost = True
        self.other.abort(reset=exc is not None)
        if self.other.lost and not self._over.done():
            self._over.set_result(None)

    def send(self, data: bytes) -> None:
        """Write to this side."""
        if self._transport is None:
            self._early.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def finish(self) -> None:
        """Nothing more comes from the other side."""
        self._finished = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def hold(self, paused: bool) -> None:
        """Read no more for now, or go on."""
        if self._transport is not None and not self._transport.is_closing():
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        """Close this side once all is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, *, reset: bool = False) -> None:
        """Close this side at once."""
        if self.lost:
            return
        if reset:
            _send_reset(self.sock)
        if self._transport is not None:
            self._transport.abort()
        else:
            self.sock.close()
            self.lost = True


async def refuse(sock: socket.socket, status: str, message: str) -> None:
    """Close a connection that leads nowhere: a client that speaks HTTP is told why, any other is reset. Owns the socket."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(FIRST_BYTES_SECONDS):
            head = await loop.sock_recv(sock, 4096)
        if not head.startswith(_METHODS):
            _send_reset(sock)
            return
        body = f"{message}\n"
        answer = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        await loop.sock_sendall(sock, (answer if head.startswith(b"HEAD ") else answer + body).encode())
        sock.shutdown(socket.SHUT_WR)
        # Closing with unread bytes would be a reset, which can take the answer with it.
        async with asyncio.timeout(LEAVE_SECONDS):
            while await loop.sock_recv(sock, 1 << 16):
                pass
    except (OSError, TimeoutError):
        _send_reset(sock)
    finally:
        sock.close()


def _send_reset(sock: socket.socket) -> None:
    """Make the coming close a reset."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
