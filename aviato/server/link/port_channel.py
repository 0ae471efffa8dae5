"""What the server's ports and proxy ask of a sandbox, whatever carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import socket

    from aviato.server.link.relayed_listener import RelayedListener
    from aviato.server.link.relayed_port import RelayedPort


class PortChannel(Protocol):
    """Connections into a sandbox, listening sockets of its inside, and safekeeping for those of the server."""

    @property
    def open(self) -> bool:
        """Whether something can be asked still."""

    async def dial(self, port: int) -> socket.socket | RelayedPort:
        """A connection to a port inside, at 127.0.0.1 or ::1. The sandbox is in use until it is told of the end by `release`.

        Raises:
            ConnectionRefusedError: nobody listens.
            TimeoutError: whoever listens does not accept, or the sandbox does not answer.
            OSError: it cannot be reached.
        """

    def release(self) -> None:
        """Say that a connection is over."""

    async def keep(self, port: int, listener: socket.socket) -> None:
        """Leave a listening socket with the sandbox, for the next server, where that can be.

        Raises:
            OSError: it was not kept.
        """

    async def kept(self) -> dict[int, socket.socket]:
        """The listening sockets that an earlier server left, by the port inside.

        Raises:
            OSError: the sandbox does not answer.
        """

    async def listen(self, port: int) -> socket.socket | RelayedListener:
        """A listening socket at 127.0.0.1 inside: a new one, or the one that an earlier server asked for.

        Raises:
            OSError: it cannot be had.
        """

    def close(self) -> None:
        """Let go of it."""
