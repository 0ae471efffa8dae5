"""Sandboxes: create, look, wait, list, stop, logs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from aviato.options import SandboxStatus
from aviato.server.operations.reply import OCTETS, Reply, answer
from aviato.server.operations.table import Operation
from aviato.wire.base import RequestModel
from aviato.wire.files import LOG_OFFSET_HEADER
from aviato.wire.sandboxes import CreateSandbox, LeaseId, ResetSandbox, SandboxInfo, SandboxPage, StopSandbox, Tag

if TYPE_CHECKING:
    from aviato.server.operations.call import Call

DELETE_GRACE_SECONDS = 10.0


class ListQuery(RequestModel):
    """Query of a listing."""

    tag: list[Tag] = Field(default_factory=list)
    status: list[SandboxStatus] = Field(default_factory=list)
    include_stopped: bool = False
    lease_id: LeaseId | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Annotated[str, Field(pattern=r"^[0-9]{1,18}$")] | None = None


class WaitQuery(RequestModel):
    """Query of a look at one sandbox."""

    wait: Literal["running", "ended"] | None = None
    timeout_seconds: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 30.0


class LogsQuery(RequestModel):
    """Query of the logs."""

    follow: bool = False
    tail_lines: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    offset: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """For one who comes back: where in all of the output to go on, in place of `tail_lines`."""


async def create(call: Call) -> Reply:
    """Accept a sandbox."""
    service = call.service
    service.check_able()
    if service.is_one_of_several:
        await service.locate(call.body.sandbox_id, call.caller)  # The create may be a repeat of what another server took.
    accepted = await service.sandboxes.accept(call.body, call.asker, call.caller)
    # Its start goes on in another process while this one writes the answer.
    await asyncio.sleep(0)
    return answer(service.sandboxes.info(accepted), 201 if accepted.is_new else 200)


async def list_all(call: Call) -> Reply:
    """Give one page."""
    query: ListQuery = call.query or ListQuery()
    page = await call.service.sandboxes.list(
        tags=query.tag,
        statuses=query.status,
        include_stopped=query.include_stopped,
        lease_id=query.lease_id,
        owners=call.caller.owners,
        limit=query.limit,
        cursor=query.cursor,
    )
    return answer(page)


async def get(call: Call) -> Reply:
    """Give one sandbox, maybe after a wait."""
    query: WaitQuery = call.query or WaitQuery()
    return answer(await call.service.sandboxes.get(call.variables["sandbox_id"], query.wait, query.timeout_seconds))


async def stop(call: Call) -> Reply:
    """End a sandbox, once it is known what of its commands has arrived."""
    service, sandbox_id = call.service, call.variables["sandbox_id"]
    request: StopSandbox = call.body
    if request.release:
        return answer(await service.sandboxes.release(sandbox_id))
    service.execs.received(sandbox_id, request.received, call.caller)
    return answer(await service.sandboxes.stop(sandbox_id, request.graceful_shutdown_seconds))


async def delete(call: Call) -> Reply:
    """End a sandbox with the usual grace."""
    return answer(await call.service.sandboxes.stop(call.variables["sandbox_id"], DELETE_GRACE_SECONDS))


async def logs(call: Call) -> Reply:
    """Stream the main command's output."""
    query: LogsQuery = call.query or LogsQuery()
    begin, pieces = await call.service.logs.open(
        call.variables["sandbox_id"], follow=query.follow, tail_lines=query.tail_lines, offset=query.offset
    )
    return Reply(content_type=OCTETS, headers={LOG_OFFSET_HEADER: str(begin)}, pieces=pieces)


async def reset(call: Call) -> Reply:
    """Let one begin anew, once it is known what of its commands has arrived."""
    service, sandbox_id = call.service, call.variables["sandbox_id"]
    request: ResetSandbox = call.body
    service.execs.received(sandbox_id, request.received, call.caller)
    await service.resets.reset(sandbox_id, call.variables["reset_id"], request, call.caller)
    return answer(await service.sandboxes.get(sandbox_id))


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/sandboxes",
        handler=create,
        summary="Accept a sandbox, or join the create with the same id",
        body=CreateSandbox,
        answers={201: SandboxInfo, 200: SandboxInfo},
        errors=(409, 422, 429),
    ),
    Operation(
        method="GET",
        path="/v1/sandboxes",
        handler=list_all,
        summary="List sandboxes, oldest first",
        query=ListQuery,
        answers={200: SandboxPage},
    ),
    Operation(
        method="GET",
        path="/v1/sandboxes/{sandbox_id}",
        handler=get,
        summary="Look at a sandbox, or wait for it to run or to end",
        query=WaitQuery,
        answers={200: SandboxInfo},
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/v1/sandboxes/{sandbox_id}/stop",
        handler=stop,
        summary="End a sandbox; answers when it has ended",
        body=StopSandbox,
        answers={200: SandboxInfo},
        errors=(404,),
    ),
    Operation(
        method="PUT",
        path="/v1/sandboxes/{sandbox_id}/resets/{reset_id}",
        handler=reset,
        summary="Let a sandbox begin anew, as just after its start or as a snapshot has it; answers when it runs",
        body=ResetSandbox,
        answers={200: SandboxInfo},
        errors=(404, 422),
    ),
    Operation(
        method="DELETE",
        path="/v1/sandboxes/{sandbox_id}",
        handler=delete,
        summary="End a sandbox with a grace of 10 s",
        answers={200: SandboxInfo},
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/sandboxes/{sandbox_id}/logs",
        handler=logs,
        summary="The main command's output, the last 16 MiB",
        query=LogsQuery,
        answers={200: OCTETS},
        errors=(404,),
    ),
)
