"""One connection through a port: bytes both ways, each end closed when the other is, no more held than a buffer each way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Protocol, cast

BUFFER_BYTES = 64 << 10
"""What waits for a slow reader; then the writer waits."""
READ_BYTES = 64 << 10
"""At once, and so how much may come on top of it."""
FIRST_BYTES_SECONDS = 1.0
LEAVE_SECONDS = 1.0
LAST_SECONDS = 60.0
"""So long what is on its way to one side may take once both have ended."""
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"CONNECT ", b"OPTIONS ", b"TRACE ", b"PATCH ")
_buffers = threading.local()
_RESET = struct.pack("ii", 1, 0)


class End(Protocol):
    """One of the two sides of a connection; what comes from there goes to the other.

    Attributes:
        lost: it is closed, and nothing more comes of it.
        received: how many bytes came from there.
    """

    lost: bool
    received: int

    def join(self, other: End, over: asyncio.Future[None]) -> None:
        """Have what comes go there, and set the future once both are lost."""

    async def begin(self) -> None:
        """Begin to pass on, what has come before first."""

    def send(self, data: bytes) -> None:
        """Write to this side."""

    def finish(self) -> None:
        """Nothing more comes from the other side."""

    def hold(self, paused: bool) -> None:
        """Let no more come from here for now, or go on."""

    def close(self) -> None:
        """Close this side once all is sent."""

    def abort(self, *, reset: bool = False) -> None:
        """Close this side at once."""


async def relay(
    outer: socket.socket, inner: socket.socket | End, *, first: bytes = b"", idle_seconds: float | None = None
) -> tuple[int, int]:
    """Move bytes between two connected sides until both are closed; cancelling closes both. Owns the sockets.

    Args:
        outer: one of them.
        inner: the other; a socket, or what is one to whoever uses it.
        first: what came from `outer` before.
        idle_seconds: both are cut once no byte has moved for so long, or for up to twice as long; None: never.

    Returns:
        How many bytes came from `outer`, and from `inner`.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    begun = _SocketEnd(outer)
    ends: tuple[End, End] = begun, _SocketEnd(inner) if isinstance(inner, socket.socket) else inner
    ends[0].join(ends[1], over)
    ends[1].join(ends[0], over)
    if first:
        begun.received_data(first)
    try:
        for end in ends:
            await end.begin()
        moved = -1
        while not over.done() and moved != (moved := ends[0].received + ends[1].received):
            await asyncio.wait({over}, timeout=idle_seconds)
    finally:
        for end in ends:
            end.abort()
    return ends[0].received, ends[1].received


class _SocketEnd(asyncio.BufferedProtocol):
    """The side of a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lost = False
        self.received = 0
        self._other: End
        self._over: asyncio.Future[None]
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._finished = self._ended = self._is_held = False
        self._is_beginning = self._is_cut = False
        self._last_call: asyncio.TimerHandle | None = None

    def join(self, other: End, over: asyncio.Future[None]) -> None:
        """See `End`."""
        self._other, self._over = other, over

    async def begin(self) -> None:
        """See `End`."""
        if self.lost:
            return
        self._is_beginning = True
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: self, self.sock)
        except Exception:
            self._is_beginning = False
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send what the other side had already."""
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._is_cut:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(BUFFER_BYTES)
        for data in self._early:
            self._transport.write(data)
        self._early.clear()
        if self._is_held:
            self._transport.pause_reading()
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
        self._other.send(data)

    def eof_received(self) -> bool:
        """Pass it on; this direction is over, and the other may go on."""
        self._ended = True
        self._other.finish()
        if self._finished:
            self.close()
            self._other.close()
        return True

    def pause_writing(self) -> None:
        """This side reads too slowly: the other waits."""
        self._other.hold(True)

    def resume_writing(self) -> None:
        """It has caught up."""
        self._other.hold(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed here, closed there; a reset stays a reset. What both have ended may have something to send still."""
        self.lost = True
        if exc is None and self._finished and self._ended:
            if not self._other.lost:
                self._last_call = asyncio.get_running_loop().call_later(LAST_SECONDS, self._other.abort)
        else:
            self._other.abort(reset=exc is not None)
        self._look_at_end()

    def _look_at_end(self) -> None:
        if self.lost and self._other.lost and not self._over.done():
            self._over.set_result(None)

    def send(self, data: bytes) -> None:
        """See `End`."""
        if self._transport is None:
            self._early.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def finish(self) -> None:
        """See `End`."""
        self._finished = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def hold(self, paused: bool) -> None:
        """See `End`."""
        self._is_held = paused
        if self._transport is not None and not self._transport.is_closing():
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        """See `End`."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, *, reset: bool = False) -> None:
        """See `End`."""
        if self._last_call is not None:
            self._last_call.cancel()
        if self.lost:
            return
        if reset:
            _send_reset(self.sock)
        if self._transport is not None:
            self._transport.abort()
        elif self._is_beginning:
            self._is_cut = True
        else:
            self.sock.close()
            self.lost = True
            self._look_at_end()


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
