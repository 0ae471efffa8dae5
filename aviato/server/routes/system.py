"""Health."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.routes.table import Call, Route, answer
from aviato.wire.sandboxes import Health

if TYPE_CHECKING:
    from aiohttp import web


async def health(call: Call) -> web.Response:
    """Say that the server is there."""
    return answer(call.service.health())


ROUTES = (
    Route(method="GET", path="/v1/health", handler=health, summary="How the server is", answers={200: Health}, waits=False),
)
