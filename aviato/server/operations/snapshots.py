"""Snapshots: take, list, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.operations.reply import Reply, answer
from aviato.server.operations.table import Operation
from aviato.wire.snapshots import SnapshotInfo, SnapshotList, TakeSnapshot

if TYPE_CHECKING:
    from aviato.server.operations.call import Call


async def take(call: Call) -> Reply:
    """Take one, or join who does."""
    sandbox_id, snapshot_id = call.variables["sandbox_id"], call.variables["snapshot_id"]
    return answer(await call.service.snapshots.take(sandbox_id, snapshot_id, call.body, call.caller))


async def list_all(call: Call) -> Reply:
    """Give those that the caller sees."""
    return answer(await call.service.snapshots.list(call.caller))


async def remove(call: Call) -> Reply:
    """Remove one."""
    await call.service.snapshots.remove(call.variables["snapshot_id"], call.caller)
    return Reply(status=204)


OPERATIONS = (
    Operation(
        method="PUT",
        path="/v1/sandboxes/{sandbox_id}/snapshots/{snapshot_id}",
        handler=take,
        summary="Make an image of what a sandbox has written; its commands stand still meanwhile",
        body=TakeSnapshot,
        answers={200: SnapshotInfo},
        errors=(404, 409, 422),
    ),
    Operation(
        method="GET",
        path="/v1/snapshots",
        handler=list_all,
        summary="List snapshots, the newest first",
        answers={200: SnapshotList},
    ),
    Operation(
        method="DELETE",
        path="/v1/snapshots/{snapshot_id}",
        handler=remove,
        summary="Remove a snapshot; sandboxes that were made of it go on",
        answers={204: None},
        errors=(422,),
    ),
)
