"""The front of a server: every connection comes here, is counted, and speaks frames or HTTP to the service behind it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.server.connections.arrival import Arrival
from aviato.server.connections.connection_limit import ConnectionLimit
from aviato.server.connections.listening import accept
from aviato.server.connections.open_connections import OpenConnections
from aviato.server.connections.unauthenticated import Unauthenticated
from aviato.server.http.carrier import HttpCarrier
from aviato.server.operations import OPERATIONS
from aviato.server.operations.bodies import Bodies
from aviato.server.operations.routes import Routes
from aviato.server.reaper import Reaper
from aviato.server.session.sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from aiohttp import web

    from aviato.server.connections.guard import Guard
    from aviato.server.connections.handshakes import TlsListener
    from aviato.server.connections.listening import Listeners
    from aviato.server.service import Service

CONNECTION_SECONDS = 0.5
"""How long a handler may take to end itself when the server goes."""


class Front:
    """What a server is to those who connect.

    Args:
        service: does the work; opened and closed with it.
        guard: lets clients in.

    Attributes:
        connections: all of them.
        connection_limit: which have something under way.
        unauthenticated: those over TCP that have brought no key.
        sessions: those that speak frames.
    """

    def __init__(self, service: Service, guard: Guard) -> None:
        self._service = service
        self._guard = guard
        self._bodies = Bodies()
        self.connections = OpenConnections()
        self.connection_limit = ConnectionLimit(self.connections)
        self.unauthenticated = Unauthenticated(self.connections, guard.let_in)
        self.sessions = Sessions(service, Routes(OPERATIONS), self._bodies, guard, self.connections, self.connection_limit)
        self._http = HttpCarrier(self.connections, self._runner)
        self._listening: list[asyncio.AbstractServer | TlsListener] = []
        self._beside: list[asyncio.Task[Any]] = []

    async def open(self, listeners: Listeners) -> None:
        """Begin to serve who comes there."""
        self._service.open()
        self._run(Reaper(self._service).run(), "reaper")
        self._run(self.connection_limit.keep_few(), "connection_limit")
        if listeners.has_tcp:
            self._run(self.unauthenticated.keep_few(), "unauthenticated")
        if listeners.tls is not None:
            self._run(listeners.tls.keep_fresh(self._guard.set_certificate_names), "certificate")
        self._listening = await accept(self._make, listeners)

    def close_listeners(self) -> None:
        """Let nobody else come."""
        listening, self._listening = self._listening, []
        for server in listening:
            server.close()

    async def close(self) -> None:
        """End everything that is under way, and the service with it."""
        self.close_listeners()
        self._service.stop_waiting()
        for task in self._beside:
            task.cancel()
        await self.sessions.close(CONNECTION_SECONDS)
        await self._http.close()
        for transport in self.connections.all():
            transport.abort()
        for task in self._beside:
            with suppress(asyncio.CancelledError, Exception):
                await task
        await self._service.close()

    # -- inside

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._beside.append(asyncio.create_task(work, name=name))

    def _make(self) -> asyncio.Protocol:
        self.connection_limit.make_room()
        return Arrival(self.connections, self.sessions, self._http)

    def _runner(self, make: Callable[..., web.AppRunner]) -> web.AppRunner:
        return make(self._service, OPERATIONS, self._bodies, self._guard, self.connection_limit, CONNECTION_SECONDS)
