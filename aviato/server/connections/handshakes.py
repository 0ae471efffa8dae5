"""Connections that are to begin TLS. Few may have yet to: the server's own list has one only when its handshake is over."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.server.connections.unauthenticated import most

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0


class TlsListener:
    """Accepts connections; of those that have not begun TLS, the oldest are cut off where there are too many.

    Args:
        listener: listens on TCP.
        make: the protocol of a connection.
        context: of the server.
        handshake_seconds: how long a client may take to begin TLS.
    """

    def __init__(
        self, listener: socket.socket, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext, handshake_seconds: float
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._make = make
        self._context = context
        self._handshake_seconds = handshake_seconds
        self._begun: dict[asyncio.Task[None], socket.socket] = {}
        self._accepting = asyncio.create_task(self._accept(), name="accepting TLS")

    def close(self) -> None:
        """Accept no more, and cut off who has not begun TLS."""
        self._accepting.cancel()
        self._listener.close()
        for sock in self._begun.values():
            _cut(sock)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.error("connections cannot be accepted: %s", error)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            task = asyncio.create_task(self._begin(sock))
            self._begun[task] = sock
            task.add_done_callback(self._over)
            if len(self._begun) > most():
                oldest = next(iter(self._begun))
                _cut(self._begun.pop(oldest))

    async def _begin(self, sock: socket.socket) -> None:
        # Who does not speak TLS, or goes, is no event.
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, sock, ssl=self._context, ssl_handshake_timeout=self._handshake_seconds
            )

    def _over(self, task: asyncio.Task[None]) -> None:
        self._begun.pop(task, None)


def _cut(sock: socket.socket) -> None:
    # Its transport notices, and closes it.
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
