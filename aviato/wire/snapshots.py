"""Snapshots on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aviato.wire.base import RequestModel, ResponseModel, empty
from aviato.wire.images import ImageReference
from aviato.wire.sandboxes import EnvironmentName, Text


class TakeSnapshot(RequestModel):
    """Body of `PUT /v1/sandboxes/{sandbox_id}/snapshots/{snapshot_id}`. A repeat joins the first."""

    name: ImageReference | None = None
    """What its image is called, too, as images of registries are: `NAME` or `NAME:TAG`."""
    expires_after_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """When it is removed; None: when somebody does it."""
    kind: Literal["snapshot", "fork", "build"] = "snapshot"
    """A `fork` is what children begin with: once it is deleted it can be named as long as one of them lives. A `build` is a
    step of one: it is an image that may be pruned. Neither is in the list of snapshots."""
    environment: dict[EnvironmentName, Text] = empty(dict)
    """What its commands have, beside what the image below says."""
    working_dir: Text | None = None
    """Where its commands start; None: as the image below says."""
    user: Text | None = None
    """Who its commands are; None: as the image below says."""
    entrypoint: list[Text] | None = None
    """Words that come before a command; None: as the image below says."""
    command: list[Text] | None = None
    """The words of the main command; None: as the image below says."""
    labels: dict[EnvironmentName, Text] = empty(dict)
    """What it has beside those of the image below."""
    shell: list[Text] | None = None
    """Words by which a Dockerfile that begins with it runs a text; None: as the image below says."""


class SnapshotInfo(ResponseModel):
    """A snapshot. Times are seconds since the epoch."""

    snapshot_id: str
    """An image, too."""
    name: str | None
    sandbox_id: str
    """Whose files it has."""
    image: str
    """That the sandbox was made of."""
    image_id: str
    """`sha256:…` of the snapshot as an image."""
    size_bytes: int | None
    """Of its own layer and those below that are the store's, unpacked; null where nobody has counted the files yet: the list of
    snapshots does."""
    created_at: float
    expires_at: float | None


class SnapshotList(ResponseModel):
    """Answer of `GET /v1/snapshots`: the newest first."""

    snapshots: list[SnapshotInfo]
