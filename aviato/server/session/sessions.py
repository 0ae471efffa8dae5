"""All sessions of a server: how they are opened, what they have in common, and their end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoAuthenticationError, AviatoValidationError
from aviato.server.operations.failures import failed
from aviato.server.peers import peer_uid
from aviato.server.session.memory_connection import MemoryConnection
from aviato.server.session.opening import encode_answer, encode_refusal, parse_opening
from aviato.server.session.session import Session
from aviato.wire.session import PATH, UPGRADE
from aviato.wire.shared_memory import UPGRADE as MEMORY_UPGRADE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.server.callers import Caller
    from aviato.server.connections.arrival import Arrival
    from aviato.server.connections.connection_limit import ConnectionLimit
    from aviato.server.connections.guard import Guard
    from aviato.server.connections.open_connections import OpenConnections
    from aviato.server.operations.bodies import Bodies
    from aviato.server.operations.routes import Routes
    from aviato.server.service import Service


class Sessions:
    """Those that are open.

    Args:
        service, routes, bodies: see `Session`.
        guard: lets clients in, and each of their requests.
        connections: of the server.
        connection_limit: looks which of them have something under way.
    """

    def __init__(
        self,
        service: Service,
        routes: Routes,
        bodies: Bodies,
        guard: Guard,
        connections: OpenConnections,
        connection_limit: ConnectionLimit,
    ) -> None:
        self._service = service
        self._routes = routes
        self._bodies = bodies
        self._guard = guard
        self._connections = connections
        self._connection_limit = connection_limit
        self._open: set[Session] = set()
        self._memory: set[MemoryConnection] = set()
        self._under_way: Counter[str | None] = Counter()

    async def take(self, arrival: Arrival) -> None:
        """Let a client in who asks for a session, or say why not."""
        transport = arrival.transport
        assert transport is not None
        head, _, more = arrival.begun.partition(b"\r\n\r\n")
        try:
            headers = parse_opening(head)
            spoken = headers.get("Upgrade", "").lower()
            if spoken not in (UPGRADE, MEMORY_UPGRADE):
                raise AviatoValidationError(f"a session is asked for with the header Upgrade: {UPGRADE}", reason="http")
            caller = await self._guard.check(transport, headers, PATH)
            self._connection_limit.begin(transport, "GET", PATH, caller)
            self._connection_limit.end(transport)
            if spoken == MEMORY_UPGRADE and peer_uid(transport) is None:
                raise AviatoValidationError("memory is shared by a Unix socket", reason="transport")
        except Exception as error:
            self._refuse(transport, error)
            return
        if spoken == MEMORY_UPGRADE:
            self._begin_memory(transport)
        else:
            self._begin(transport, headers, caller, more)

    async def close(self, seconds: float) -> None:
        """End them all, once what is under way was answered; within so many seconds."""
        answering = {task for session in self._open for task in session.answering}
        if answering:
            await asyncio.wait(answering, timeout=seconds)
        for session in list(self._open):
            session.close()
        for connection in list(self._memory):
            connection.close()

    # -- inside

    def _begin(self, transport: asyncio.Transport, headers: Mapping[str, str], caller: Caller, more: bytes) -> None:
        def on_lost() -> None:
            self._open.discard(session)
            self._connections.discard(transport)
            self._connection_limit.forget(transport)

        session = Session(
            self._service,
            self._routes,
            self._bodies,
            self._guard,
            self._under_way,
            caller,
            headers,
            on_lost,
        )
        self._open.add(session)
        self._connection_limit.watch(transport, session.answering, caller.tenant)
        transport.write(encode_answer(UPGRADE))
        transport.set_protocol(session)
        session.connection_made(transport)
        transport.resume_reading()
        if more:
            session.data_received(more)

    def _begin_memory(self, transport: asyncio.Transport) -> None:
        """The socket is taken out of the loop's hands: descriptors come by it."""
        sock = transport.get_extra_info("socket")
        sock = socket.socket(fileno=os.dup(sock.fileno()))
        try:
            sock.send(encode_answer(MEMORY_UPGRADE))
        except OSError:
            sock.close()
        else:
            self._memory.add(MemoryConnection(sock, self._service.shared_memories, self._memory.discard))
        transport.abort()

    def _refuse(self, transport: asyncio.Transport, error: Exception) -> None:
        reply = failed(error, f"GET {PATH}")
        if isinstance(error, AviatoAuthenticationError):
            reply.headers = {**reply.headers, "WWW-Authenticate": self._guard.challenge}
        transport.write(encode_refusal(reply))
        transport.close()
