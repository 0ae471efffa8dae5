"""Images: pull, look, list, remove, prune, pin, export, push."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from aviato.server.operations.reply import Reply, answer, archived
from aviato.server.operations.table import Operation
from aviato.wire.base import RequestModel
from aviato.wire.files import ARCHIVE
from aviato.wire.images import (
    LONGEST_POLL_SECONDS,
    ImageInfo,
    ImageList,
    ImageReference,
    PinImage,
    PrunedImages,
    PruneImages,
    PullImage,
    PushImage,
    PushInfo,
    RemovedImage,
    RemoveImage,
)

if TYPE_CHECKING:
    from aviato.server.operations.call import Call


class PullQuery(RequestModel):
    """Query of a pull."""

    timeout_seconds: Annotated[float, Field(ge=0, le=LONGEST_POLL_SECONDS, allow_inf_nan=False)] = LONGEST_POLL_SECONDS


class InspectQuery(RequestModel):
    """Query of a look at one image."""

    reference: ImageReference


class ExportQuery(InspectQuery):
    """Query of an export."""

    form: Literal["layout", "archive"] = "archive"
    """What the tar has: a layout of OCI, or also what `docker load` looks for."""


async def pull(call: Call) -> Reply:
    """Begin or join a pull, and say how far it is once it has ended or the time is over."""
    query: PullQuery = call.query or PullQuery()
    request: PullImage = call.body
    images = call.service.images
    if request.name is not None:
        images.check_name(request.name)
    info = await images.pull(request.reference, request.refresh, query.timeout_seconds, call.caller)
    if request.name is not None and info.status == "here":
        info = await images.name(info, request.name, call.caller)
    return answer(info)


async def list_all(call: Call) -> Reply:
    """List what is here and on its way."""
    return answer(await call.service.images.list(call.caller))


async def inspect(call: Call) -> Reply:
    """Give one image."""
    return answer(await call.service.images.inspect(call.query.reference, call.caller))


async def remove(call: Call) -> Reply:
    """Remove a name, or an image."""
    request: RemoveImage = call.body
    return answer(await call.service.images.remove(request.reference, request.force, call.caller))


async def prune(call: Call) -> Reply:
    """Remove what nobody uses."""
    request: PruneImages = call.body
    return answer(await call.service.images.prune(request.most_bytes, request.unused_seconds, call.caller))


async def pin(call: Call) -> Reply:
    """Let an image stay, or no longer."""
    request: PinImage = call.body
    return answer(await call.service.images.pin(request.reference, request.pinned, call.caller))


async def export(call: Call) -> Reply:
    """Send an image."""
    query: ExportQuery = call.query
    async with AsyncExitStack() as stack:
        pieces = await stack.enter_async_context(call.service.image_exports.archive(query.reference, query.form, call.caller))
        return await archived(pieces, stack)


async def push(call: Call) -> Reply:
    """Begin or join a push, and say how far it is once it has ended or the time is over."""
    query: PullQuery = call.query or PullQuery()
    return answer(await call.service.image_exports.push(call.body, call.key, query.timeout_seconds, call.caller))


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/images/pull",
        handler=pull,
        summary="Pull an image, or join its pull; answers when that has ended, or how far it is when the time is over",
        query=PullQuery,
        body=PullImage,
        answers={200: ImageInfo},
        errors=(422,),
    ),
    Operation(
        method="GET",
        path="/v1/images",
        handler=list_all,
        summary="List the images that are here or on their way",
        answers={200: ImageList},
        errors=(422,),
    ),
    Operation(
        method="GET",
        path="/v1/images/inspect",
        handler=inspect,
        summary="Look at an image, by name, id or digest",
        query=InspectQuery,
        answers={200: ImageInfo},
        errors=(422,),
    ),
    Operation(
        method="POST",
        path="/v1/images/remove",
        handler=remove,
        summary="Remove a name of an image, and with its last name, or by its id, the image",
        body=RemoveImage,
        answers={200: RemovedImage},
        errors=(422,),
    ),
    Operation(
        method="POST",
        path="/v1/images/prune",
        handler=prune,
        summary="Remove images that no sandbox has and nobody has pinned, the longest unused first",
        body=PruneImages,
        answers={200: PrunedImages},
        errors=(422,),
    ),
    Operation(
        method="POST",
        path="/v1/images/pin",
        handler=pin,
        summary="Let an image stay whatever is pruned, or no longer",
        body=PinImage,
        answers={200: ImageInfo},
        errors=(422,),
    ),
    Operation(
        method="GET",
        path="/v1/images/export",
        handler=export,
        summary="Read an image as an archive that has a layout of OCI",
        query=ExportQuery,
        answers={200: ARCHIVE},
        errors=(422,),
    ),
    Operation(
        method="POST",
        path="/v1/images/push",
        handler=push,
        summary="Push an image into a registry, or join its push; answers when that has ended, or how far it is",
        query=PullQuery,
        body=PushImage,
        answers={200: PushInfo},
        errors=(422,),
    ),
)
