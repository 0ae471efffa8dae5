"""The HTTP application: operations as routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from aviato.server.http import log as http_log
from aviato.server.http.adapter import BODIES, SERVICE, route
from aviato.server.http.middlewares import add_headers, make_middleware
from aviato.server.operations.bodies import LARGEST_BODY_BYTES, Bodies
from aviato.server.operations.execs import EXECS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aviato.server.connections.connection_limit import ConnectionLimit
    from aviato.server.connections.guard import Guard
    from aviato.server.operations import Operation
    from aviato.server.service import Service

KEEPALIVE_SECONDS = 3600.0
"""Idle connections are kept: a client's open connection is how it notices that its server is gone."""


def make_runner(
    service: Service,
    operations: Iterable[Operation],
    bodies: Bodies,
    guard: Guard,
    connection_limit: ConnectionLimit,
    shutdown_seconds: float,
) -> web.AppRunner:
    """What makes protocols of the connections of an application.

    Args:
        service: does the work.
        operations: all that can be asked.
        bodies: how much of those may be read at a time.
        guard: lets requests in.
        connection_limit: counts those that are under way.
        shutdown_seconds: how long a handler may take to end itself when the server goes.
    """
    app = web.Application(middlewares=[make_middleware(guard, connection_limit)], client_max_size=LARGEST_BODY_BYTES)
    app[SERVICE] = service
    app[BODIES] = bodies
    # aiohttp looks through those of one prefix in order, and nearly all requests are for this one.
    for operation in sorted(operations, key=lambda operation: operation.path != EXECS):
        app.router.add_route(operation.method, operation.path, route(operation))
    app.on_response_prepare.append(add_headers)
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=shutdown_seconds,
        keepalive_timeout=KEEPALIVE_SECONDS,
        auto_decompress=False,
        logger=http_log.log,
    )
