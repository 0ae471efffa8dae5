"""Connections that speak HTTP: aiohttp's, which is loaded when the first of them comes."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    from aviato.server.connections.arrival import Arrival
    from aviato.server.connections.open_connections import OpenConnections

log = logging.getLogger(__name__)


class HttpCarrier:
    """Takes them over.

    Args:
        connections: of the server.
        make_runner: makes what has the application, by the function of `http.app` that it is given.
    """

    def __init__(self, connections: OpenConnections, make_runner: Callable[..., web.AppRunner]) -> None:
        self._connections = connections
        self._make_runner = make_runner
        self._runner: web.AppRunner | None = None
        self._loading: asyncio.Task[None] | None = None

    def take(self, arrival: Arrival) -> Awaitable[None] | None:
        """See `connections.arrival.Carrier`."""
        if self._runner is None:
            return self._load_and_take(arrival)
        self._begin(self._runner, arrival)
        return None

    async def close(self) -> None:
        """End what is under way, and all connections."""
        if self._loading is not None:
            self._loading.cancel()
        if self._runner is not None:
            await self._runner.cleanup()

    # -- inside

    async def _load_and_take(self, arrival: Arrival) -> None:
        if self._loading is None:
            self._loading = asyncio.create_task(self._load(), name="load HTTP")
        await asyncio.shield(self._loading)
        if arrival.transport is None:
            return
        if self._runner is None:
            arrival.transport.abort()
            return
        arrival.transport.resume_reading()
        self._begin(self._runner, arrival)

    async def _load(self) -> None:
        try:
            # In a thread: it takes a tenth of a second, in which the loop would serve nobody.
            app = await asyncio.to_thread(importlib.import_module, "aviato.server.http.app")
            runner = self._make_runner(app.make_runner)
            await runner.setup()
        except Exception:
            log.exception("HTTP cannot be spoken")
            self._loading = None  # The next who comes tries again.
            return
        self._runner = runner
        self._connections.of_http = self._transports

    def _begin(self, runner: web.AppRunner, arrival: Arrival) -> None:
        server, transport = runner.server, arrival.transport
        assert server is not None and transport is not None
        protocol = server()
        self._connections.discard(transport)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(arrival.begun)

    def _transports(self) -> list[asyncio.Transport]:
        server = None if self._runner is None else self._runner.server
        return [] if server is None else [one.transport for one in server.connections if one.transport is not None]
