"""The HTTP application: routes over a service."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

from aviato import __version__
from aviato.server.connection_limit import ConnectionLimit
from aviato.server.middlewares import add_headers, make_middleware
from aviato.server.openapi import document
from aviato.server.reaper import Reaper
from aviato.server.routes import ROUTES
from aviato.server.routes.bodies import BODIES, LARGEST_BODY_BYTES, Bodies
from aviato.server.routes.execs import EXECS
from aviato.server.routes.streaming import BEGUN
from aviato.server.routes.table import SERVICE, Call, Route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.guard import Guard
    from aviato.server.service import Service


def make_app(service: Service, guard: Guard, connection_limit: ConnectionLimit | None = None) -> web.Application:
    """The application of a service.

    Args:
        service: does the work; opened and closed with the application.
        guard: lets requests in.
        connection_limit: counts those that are under way; None makes one.
    """
    app = web.Application(
        middlewares=[make_middleware(guard, connection_limit or ConnectionLimit())], client_max_size=LARGEST_BODY_BYTES
    )
    app[SERVICE] = service
    app[BODIES] = Bodies()
    app[BEGUN] = {}
    description: list[bytes] = []

    async def describe(call: Call) -> web.Response:
        if not description:
            import json

            description.append(json.dumps(document(routes, __version__)).encode())
        return web.Response(body=description[0], content_type="application/json")

    routes = [
        *ROUTES,
        Route(
            method="GET",
            path="/v1/openapi.json",
            handler=describe,
            summary="This description",
            answers={200: "application/json"},
            waits=False,
        ),
    ]
    # aiohttp looks through those of one prefix in order, and nearly all requests are for this one.
    for route in sorted(routes, key=lambda route: route.path != EXECS):
        app.router.add_route(route.method, route.path, route.__call__)
    app.on_response_prepare.append(add_headers)
    app.cleanup_ctx.append(_running)
    return app


async def _running(app: web.Application) -> AsyncIterator[None]:
    service = app[SERVICE]
    service.open()
    reaper = asyncio.create_task(Reaper(service).run(), name="reaper")
    yield
    reaper.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await reaper
    await service.close()
