"""A connection until its first request says what it speaks: a session's frames, or HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from aviato.wire.session import PATH

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aviato.server.connections.open_connections import OpenConnections

LARGEST_HEAD_BYTES = 16 << 10
"""Of the request that opens a session."""
_OPENING = f"GET {PATH} HTTP/1.1\r\n".encode()
_END = b"\r\n\r\n"


class Carrier(Protocol):
    """What takes a connection over once it is known what it speaks."""

    def take(self, arrival: Arrival) -> Awaitable[None] | None:
        """Take a connection over, at once or by what is given back."""


class Arrival(asyncio.Protocol):
    """The protocol of a connection that has said nothing yet.

    aiohttp is not looked for before somebody asks by HTTP: what a client on this machine waits for at first is a server.

    Args:
        connections: of the server.
        sessions: take over who asks for a session.
        http: takes over anybody else.

    Attributes:
        transport: of the connection; None once it is gone.
        begun: what was read of it.
    """

    def __init__(self, connections: OpenConnections, sessions: Carrier, http: Carrier) -> None:
        self._connections = connections
        self._sessions = sessions
        self._http = http
        self.transport: asyncio.Transport | None = None
        self.begun = b""
        self._waiting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of asyncio's
        self._connections.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and nobody has taken it."""
        transport, self.transport = self.transport, None
        if transport is not None:
            self._connections.discard(transport)
        if self._waiting is not None:
            self._waiting.cancel()

    def data_received(self, data: bytes) -> None:
        """What it begins with."""
        self.begun += data
        if self.transport is None or self._waiting is not None:
            return
        if not self.begun.startswith(_OPENING[: len(self.begun)]) or len(self.begun) > LARGEST_HEAD_BYTES:
            carrier = self._http
        elif _END in self.begun:
            carrier = self._sessions
        else:
            return
        if (taking := carrier.take(self)) is not None:
            self.transport.pause_reading()
            self._waiting = asyncio.ensure_future(taking)
