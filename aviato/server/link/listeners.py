"""Listening sockets of the inside, as the server's proxy has them, whatever carries them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


class Listener(Protocol):
    """One listening socket."""

    def watch(self, ready: Callable[[], None]) -> None:
        """Have this called, on the loop, for as long as somebody waits to be accepted."""

    def unwatch(self) -> None:
        """Have nothing called any more."""

    def accept(self) -> socket.socket:
        """The next who has connected; the socket does not block, and goes back by `finish`.

        Raises:
            BlockingIOError: nobody waits.
            ConnectionAbortedError: who has waited is gone.
            OSError: there is no room for another one.
        """

    def finish(self, sock: socket.socket) -> None:
        """Close one that was accepted. What was written to it still arrives."""

    def close(self) -> None:
        """Let go of it: who connects waits for another server. `watch` does nothing then."""


class SocketListener:
    """Of a socket that is here.

    Args:
        sock: listens; it is owned.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._is_watched = False

    def watch(self, ready: Callable[[], None]) -> None:
        """See `Listener`."""
        if not self._is_watched and self._sock.fileno() >= 0:
            self._is_watched = True
            asyncio.get_running_loop().add_reader(self._sock.fileno(), ready)

    def unwatch(self) -> None:
        """See `Listener`."""
        if self._is_watched:
            self._is_watched = False
            asyncio.get_running_loop().remove_reader(self._sock.fileno())

    def accept(self) -> socket.socket:
        """See `Listener`."""
        sock, _ = self._sock.accept()
        sock.setblocking(False)
        return sock

    def finish(self, sock: socket.socket) -> None:
        """See `Listener`."""
        sock.close()

    def close(self) -> None:
        """See `Listener`."""
        self.unwatch()
        self._sock.close()
