"""Memory that clients on this machine lend."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Annotated

from aiohttp import web
from pydantic import Field

from aviato.server.lending import Lender, Lenders, refused
from aviato.server.routes.table import Call, Route
from aviato.wire.memory import NAME_HEADER, UPGRADE

if TYPE_CHECKING:
    from aviato.server.lending import Memory

LentName = Annotated[str, Field(max_length=64)]
"""See `wire.memory`."""
LENDERS = web.AppKey("lenders", Lenders)


def memory_of(call: Call, name: str | None) -> Memory | None:
    """What a request's query names; None where it names nothing.

    Raises:
        AviatoValidationError: it is not there.
    """
    if name is None:
        return None
    return call.request.app[LENDERS].memory(name, call.path("sandbox_id"), call.caller)


async def lend(call: Call) -> web.StreamResponse:
    """Take descriptors of memory over this connection, until its other end closes it."""
    request = call.request
    transport = request.transport
    connection = None if transport is None else transport.get_extra_info("socket")
    if transport is None or connection is None or connection.family != socket.AF_UNIX:
        raise refused("memory is lent over a Unix socket")
    if request.headers.get("Upgrade") != UPGRADE:
        raise refused(f"this needs the header Upgrade: {UPGRADE}")
    # Its descriptors would be lost to whoever reads nothing but bytes.
    transport.pause_reading()
    lender = Lender(socket.socket(fileno=os.dup(connection.fileno())), call.caller)
    lenders = request.app[LENDERS]
    lenders.add(lender)
    try:
        response = web.StreamResponse(
            status=101, headers={"Upgrade": UPGRADE, "Connection": "Upgrade", NAME_HEADER: lender.name}
        )
        await response.prepare(request)
        await response.write_eof()
        await lender.over
    finally:
        lenders.remove(lender)
        transport.abort()
    return response


ROUTES = (
    Route(
        method="POST",
        path="/v1/memory",
        handler=lend,
        summary="Over a Unix socket: lend memory for the contents of files",
        answers={101: None},
        errors=(),
    ),
)
