"""Leases: hold, renew, give back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.operations.reply import Reply, answer
from aviato.server.operations.table import Operation
from aviato.wire.ids import LEASE_ID
from aviato.wire.sandboxes import LeaseInfo

if TYPE_CHECKING:
    from aviato.server.operations.call import Call


async def renew(call: Call) -> Reply:
    """Make or renew a lease."""
    lease = call.service.leases.renew(_lease_id(call), call.asker, call.caller)
    return answer(call.service.leases.info(lease))


async def close(call: Call) -> Reply:
    """Take a lease back."""
    call.service.leases.close(_lease_id(call), call.caller)
    return Reply()


def _lease_id(call: Call) -> str:
    return call.path_id("lease_id", LEASE_ID, "a lease")


OPERATIONS = (
    Operation(
        method="PUT",
        path="/v1/leases/{lease_id}",
        handler=renew,
        summary="Make a lease or renew it",
        answers={200: LeaseInfo},
        errors=(409,),
    ),
    Operation(
        method="DELETE",
        path="/v1/leases/{lease_id}",
        handler=close,
        summary="Give a lease back: its sandboxes are told to stop",
        answers={200: None},
    ),
)
