"""Leases: hold, renew, give back."""

from __future__ import annotations

from aiohttp import web

from aviato.exceptions import AviatoValidationError
from aviato.server.peers import Asker
from aviato.server.routes.table import Call, Route, answer
from aviato.wire.ids import LEASE_ID
from aviato.wire.sandboxes import LeaseInfo


async def renew(call: Call) -> web.Response:
    """Make or renew a lease."""
    lease = call.service.leases.renew(_lease_id(call), Asker(call.request.transport), call.caller)
    return answer(call.service.leases.info(lease))


async def close(call: Call) -> web.Response:
    """Take a lease back."""
    call.service.leases.close(_lease_id(call), call.caller)
    return web.Response()


def _lease_id(call: Call) -> str:
    lease_id = call.path("lease_id")
    if not LEASE_ID.fullmatch(lease_id):
        problem = "must be ls- and 26 characters of base32"
        raise AviatoValidationError(f"lease_id {problem}, got {lease_id!r}", field_violations={"lease_id": problem})
    return lease_id


ROUTES = (
    Route(
        method="PUT",
        path="/v1/leases/{lease_id}",
        handler=renew,
        summary="Make a lease or renew it",
        answers={200: LeaseInfo},
        errors=(409,),
    ),
    Route(
        method="DELETE",
        path="/v1/leases/{lease_id}",
        handler=close,
        summary="Give a lease back: its sandboxes are told to stop",
        answers={200: None},
    ),
)
