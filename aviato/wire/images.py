"""Images on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from aviato.wire import bounds
from aviato.wire.base import RequestModel, ResponseModel

ImageReference = Annotated[str, StringConstraints(min_length=1, max_length=bounds.IMAGE_CHARACTERS, pattern=r"^[^\x00]*$")]
"""As users write it: of a registry, `oci:PATH[:TAG]`, `docker-archive:PATH`, an image id or the beginning of one."""
MAX_PULL_SECONDS = 3600.0


class PullImage(RequestModel):
    """Body of `POST /v1/images/pull`. Repeating is harmless: it joins the pull that is under way."""

    reference: ImageReference
    refresh: bool = False
    """Ask the registry although an image of that name is here: it may mean another one there."""
    name: ImageReference | None = None
    """One more name for it, such as `NAME:TAG` for one that was read from a file."""


class RemoveImage(RequestModel):
    """Body of `POST /v1/images/remove`."""

    reference: ImageReference
    force: bool = False
    """Of an image that sandboxes have, take the names away; the image goes with a later prune."""


class PruneImages(RequestModel):
    """Body of `POST /v1/images/prune`: images go that no sandbox has and nobody has pinned, the longest unused first."""

    most_bytes: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Leave the others, once all together have no more than that."""
    unused_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Leave those that were used so short ago."""


class PinImage(RequestModel):
    """Body of `POST /v1/images/pin`."""

    reference: ImageReference
    pinned: bool = True
    """Whether it stays, whatever is pruned."""


class ImageInfo(ResponseModel):
    """An image that is here, on its way here, or could not be had. Times are seconds since the epoch."""

    reference: str
    """As it was asked for; in a listing its first name, or its id."""
    status: Literal["here", "pulling", "failed"]
    message: str | None = None
    """Why it failed, for people."""
    reason: str | None = None
    """Why it failed, as `SandboxImageError.reason`."""
    is_infrastructure: bool = False
    """Whether the failure counts as one of infrastructure."""
    retryable: bool = False
    """Whether the failure may pass by itself."""
    image_id: str | None = None
    names: list[str] = []
    layers: int = 0
    size_bytes: int = 0
    """Of all its layers, unpacked."""
    created_at: float | None = None
    """As the image says."""
    pulled_at: float | None = None
    used_at: float | None = None
    pinned: bool = False
    architecture: str | None = None
    environment: dict[str, str] = {}
    working_dir: str | None = None
    user: str | None = None
    entrypoint: list[str] = []
    command: list[str] = []
    labels: dict[str, str] = {}
    pull_seconds: float | None = None
    """How long it took to come, of one that was not here when it was asked for."""
    phase: Literal["resolving", "pulling", "unpacking", "done"] | None = None
    """What a pull is at."""
    done_bytes: int = 0
    total_bytes: int | None = None
    """To be downloaded; None until that is known."""
    layers_done: int = 0


class ImageList(ResponseModel):
    """Answer of `GET /v1/images`: those on their way first, then the newest pull first."""

    images: list[ImageInfo]


class RemovedImage(ResponseModel):
    """Answer of `POST /v1/images/remove`: the names that went."""

    names: list[str]


class PrunedImages(ResponseModel):
    """Answer of `POST /v1/images/prune`."""

    freed_bytes: int
