"""The connection by which a client shares memory with a server on its machine: descriptors go beside its bytes."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.wire.session import encode_opening
from aviato.wire.shared_memory import GONE, RECORD, SHARED, UPGRADE

if TYPE_CHECKING:
    from collections.abc import Callable

OPENING_SECONDS = 10.0
LARGEST_ANSWER_BYTES = 16 << 10


class MemoryConnection:
    """The client's end of it; of a loop.

    Args:
        name: of the server's socket, as `connect` takes it.
        on_over: told when it has ended, or could not begin, and whether the server takes none.

    Attributes:
        is_open: memory can be shared by it.
    """

    def __init__(self, name: str, on_over: Callable[[bool], None]) -> None:
        self.is_open = False
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._opening: asyncio.Task[None] | None = self._loop.create_task(self._open(name))

    async def ready(self) -> bool:
        """Wait until it is open, or cannot be; whether it is."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        return self.is_open

    def share(self, secret: bytes, fd: int) -> bool:
        """Share memory under a name; False where that cannot be done."""
        try:
            return socket.send_fds(self._sock, [RECORD.pack(SHARED, secret)], [fd]) == RECORD.size
        except OSError:
            return False

    def forget(self, secret: bytes) -> None:
        """It is shared no more."""
        if self.is_open:
            try:
                said = self._sock.send(RECORD.pack(GONE, secret))
            except OSError:
                said = 0
            if said != RECORD.size:
                self._heard()  # The server lets go of everything when the connection ends.

    def close(self) -> None:
        """End it. Idempotent."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def leave(self) -> None:
        """In a forked child: it is its parent's."""
        self.is_open = False
        self._sock.close()

    # -- inside

    async def _open(self, name: str) -> None:
        answer = b""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(OPENING_SECONDS):
                await self._loop.sock_connect(self._sock, name)
                await self._loop.sock_sendall(self._sock, encode_opening({}, upgrade=UPGRADE))
                while b"\r\n\r\n" not in answer and len(answer) < LARGEST_ANSWER_BYTES:
                    if not (piece := await self._loop.sock_recv(self._sock, LARGEST_ANSWER_BYTES)):
                        break
                    answer += piece
        self._opening = None
        if answer.startswith(b"HTTP/1.1 101 "):
            self.is_open = True
            self._loop.add_reader(self._sock.fileno(), self._heard)
        else:
            self._sock.close()
            self._on_over(answer.startswith(b"HTTP/1.1 4"))

    def _heard(self) -> None:
        """The server says nothing: it is gone, or is to be left."""
        self.close()
        self._on_over(False)
