"""Images: pull, list, look, remove, prune, pin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from aviato.server.operations.reply import Reply, answer
from aviato.server.operations.table import Operation
from aviato.wire.base import RequestModel
from aviato.wire.images import (
    MAX_PULL_SECONDS,
    ImageInfo,
    ImageList,
    ImageReference,
    PinImage,
    PrunedImages,
    PruneImages,
    PullImage,
    RemovedImage,
    RemoveImage,
)

if TYPE_CHECKING:
    from aviato.server.operations.call import Call


class PullQuery(RequestModel):
    """Query of a pull."""

    timeout_seconds: Annotated[float, Field(ge=0, le=MAX_PULL_SECONDS, allow_inf_nan=False)] = 30.0


class InspectQuery(RequestModel):
    """Query of a look at one image."""

    reference: ImageReference


async def pull(call: Call) -> Reply:
    """Begin or join a pull, and wait for it."""
    query: PullQuery = call.query or PullQuery()
    request: PullImage = call.body
    images = call.service.images
    info = await images.pull(request.reference, call.caller, refresh=request.refresh, timeout_seconds=query.timeout_seconds)
    if request.name is not None and info.status == "here":
        info = await images.name(info, request.name, call.caller)
    return answer(info)


async def list_all(call: Call) -> Reply:
    """Give all."""
    return answer(await call.service.images.list())


async def inspect(call: Call) -> Reply:
    """Give one that is here."""
    query: InspectQuery = call.query
    return answer(await call.service.images.inspect(query.reference))


async def remove(call: Call) -> Reply:
    """Remove a name or an image."""
    request: RemoveImage = call.body
    return answer(await call.service.images.remove(request.reference, call.caller, force=request.force))


async def prune(call: Call) -> Reply:
    """Remove what is unused."""
    request: PruneImages = call.body
    return answer(
        await call.service.images.prune(call.caller, most_bytes=request.most_bytes, unused_seconds=request.unused_seconds)
    )


async def pin(call: Call) -> Reply:
    """Let one stay, or no longer."""
    request: PinImage = call.body
    return answer(await call.service.images.pin(request.reference, call.caller, pinned=request.pinned))


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/images/pull",
        handler=pull,
        summary="Pull an image, or join its pull; answers when it is here or has failed, or how far it is",
        query=PullQuery,
        body=PullImage,
        answers={200: ImageInfo},
        errors=(422,),
    ),
    Operation(
        method="GET",
        path="/v1/images",
        handler=list_all,
        summary="List the images that are here or on their way, the newest first",
        answers={200: ImageList},
        errors=(422,),
    ),
    Operation(
        method="GET",
        path="/v1/images/inspect",
        handler=inspect,
        summary="Look at an image that is here",
        query=InspectQuery,
        answers={200: ImageInfo},
        errors=(422,),
    ),
    Operation(
        method="POST",
        path="/v1/images/remove",
        handler=remove,
        summary="Remove a name of an image, and with its last one the image",
        body=RemoveImage,
        answers={200: RemovedImage},
        errors=(422,),
    ),
    Operation(
        method="POST",
        path="/v1/images/prune",
        handler=prune,
        summary="Remove images that no sandbox has and nobody has pinned",
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
)
