"""Pools of sandboxes that are ready: make, look, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.operations.reply import Reply, answer
from aviato.server.operations.table import Operation
from aviato.wire.ids import POOL_ID
from aviato.wire.pools import MakePool, PoolInfo

if TYPE_CHECKING:
    from aviato.server.operations.call import Call


async def make(call: Call) -> Reply:
    """Have one, or for longer."""
    service, request, pool_id = call.service, call.body, _id(call)
    service.check_able()
    sandbox = await service.sandboxes.check_pool(request.sandbox, call.caller)
    return answer(service.warm_pools.make(pool_id, request.model_copy(update={"sandbox": sandbox}), call.caller))


async def remove(call: Call) -> Reply:
    """Take one away."""
    call.service.warm_pools.remove(_id(call), call.caller)
    return Reply(status=204)


def _id(call: Call) -> str:
    return call.path_id("pool_id", POOL_ID, "a pool")


OPERATIONS = (
    Operation(
        method="PUT",
        path="/v1/pools/{pool_id}",
        handler=make,
        summary="Keep sandboxes of one kind ready; repeated as long as they are needed",
        body=MakePool,
        answers={200: PoolInfo},
        errors=(409, 422, 429),
    ),
    Operation(
        method="DELETE",
        path="/v1/pools/{pool_id}",
        handler=remove,
        summary="Keep them no longer; what was handed out goes on",
        answers={204: None},
    ),
)
