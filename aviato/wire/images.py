"""Images on the wire."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from aviato.wire import bounds
from aviato.wire.base import RequestModel, ResponseModel

ImageReference = Annotated[str, StringConstraints(min_length=1, max_length=bounds.IMAGE_CHARACTERS, pattern=r"^[^\x00]*$")]
LONGEST_POLL_SECONDS = 30.0
BUILT = "aviato.build"
"""In the names of steps of builds, in the place of a registry: they are names nowhere else."""
TAKEN = "host, host:3.N and dir:… mean files of the server's machine, and aviato.build/… steps of builds; take another name"
"""Why those are no names for images."""
_HOST = re.compile(r"host(:3\.\d{1,3})?", re.ASCII)


def is_machines_own(reference: str) -> bool:
    """Whether a reference means files of the server's machine, whatever has been pulled: `host`, `host:3.N` and `dir:…` do."""
    return _HOST.fullmatch(reference) is not None or reference.startswith("dir:")


def is_taken(name: str) -> bool:
    """Whether an image that is given a name cannot be had by it: it means files of the machine, or a step of a build."""
    return is_machines_own(name) or name.partition("/")[0].lower() == BUILT


class ImagePull(ResponseModel):
    """What it took to have the image of a sandbox."""

    seconds: float | None = None
    """How long it took to come; None: it was here when the sandbox was asked for."""
    done_bytes: int = 0
    """That were downloaded for it."""


class ImageInfo(ResponseModel):
    """An image that is here, on its way, or could not be had. Times are seconds since the epoch."""

    reference: str
    """As it was asked for; in a listing its first name, or its id."""
    status: Literal["here", "pulling", "failed"]
    image_id: str | None = None
    """`sha256:…` of its configuration, once it is here."""
    names: list[str] = []
    """References in full that mean it here."""
    message: str | None = None
    """Why it could not be had, for people."""
    reason: str | None = None
    """The same, for programs."""
    retryable: bool = False
    """Whether the failure may pass by itself."""
    pull_seconds: float | None = None
    """How long it took to come; None: it was here when it was asked for."""
    joined: bool = False
    """Whether it came for somebody else, who asked before: of all that are told of one pull, one is not told this."""
    layers: int = 0
    """Different ones."""
    size_bytes: int = 0
    """Of its layers, unpacked."""
    created_at: float | None = None
    """As the image says."""
    pulled_at: float | None = None
    used_at: float | None = None
    """When a sandbox last began or ended with it, or when it was pulled."""
    pinned: bool = False
    """Whether it stays, whatever is pruned."""
    architecture: str | None = None
    working_dir: str | None = None
    user: str | None = None
    entrypoint: list[str] = []
    command: list[str] = []
    environment: dict[str, str] = {}
    labels: dict[str, str] = {}
    shell: list[str] = []
    """Words by which a Dockerfile that begins with it runs a text; none: what it does by itself."""
    done_bytes: int = 0
    """Downloaded, of layers that were not here."""
    total_bytes: int | None = None
    """Of these layers, once that is known."""
    layers_done: int = 0
    layers_total: int = 0


class ImageList(ResponseModel):
    """Answer of `GET /v1/images`: those on their way, and those that are here, the newest pull first."""

    images: list[ImageInfo]


class PullImage(RequestModel):
    """Body of `POST /v1/images/pull`. A repeat joins the pull under way."""

    reference: ImageReference
    refresh: bool = False
    """Ask the registry although the image is here, since a tag may mean another one there."""
    name: ImageReference | None = None
    """What it is called, too, from then on, as images of registries are: `NAME` or `NAME:TAG`."""


class RemoveImage(RequestModel):
    """Body of `POST /v1/images/remove`."""

    reference: ImageReference
    force: bool = False
    """Of an image that sandboxes have, take the names away all the same; it goes with a later prune."""


class RemovedImage(ResponseModel):
    """Answer of `POST /v1/images/remove`."""

    names: list[str]
    """Those that went."""


class PruneImages(RequestModel):
    """Body of `POST /v1/images/prune`."""

    most_bytes: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Leave the others, once all layers have no more than that."""
    unused_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Leave those that were in use so short ago."""


class PrunedImages(ResponseModel):
    """Answer of `POST /v1/images/prune`."""

    freed_bytes: int


class PushImage(RequestModel):
    """Body of `POST /v1/images/push`. A repeat with the same `Idempotency-Key` joins the push that it began."""

    reference: ImageReference
    destination: ImageReference | None = None
    """What it is called in its registry; None: `reference`."""


class PushInfo(ResponseModel):
    """A push that is under way, has ended, or has failed."""

    reference: str
    """Where it goes; in full once that is known."""
    status: Literal["pushing", "done", "failed"]
    message: str | None = None
    """Why it failed, for people."""
    reason: str | None = None
    """The same, for programs."""
    retryable: bool = False
    """Whether the failure may pass by itself."""
    digest: str | None = None
    """Of the manifest, once it is there."""
    layers_done: int = 0
    layers_total: int = 0
    sent_bytes: int = 0
    """Of layers that were not there."""
    layer_done_bytes: int = 0
    """Of the layer that is being sent."""
    layer_total_bytes: int | None = None
    """Of how many; None: none is being sent."""


class PinImage(RequestModel):
    """Body of `POST /v1/images/pin`."""

    reference: ImageReference
    pinned: bool = True
