"""Snapshots on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from aviato.wire.base import RequestModel, ResponseModel
from aviato.wire.ids import ID_PATTERN
from aviato.wire.images import ImageReference

SnapshotId = Annotated[str, StringConstraints(pattern=f"^sn-{ID_PATTERN}$")]


class TakeSnapshot(RequestModel):
    """Body of `PUT /v1/sandboxes/{sandbox_id}/snapshots/{snapshot_id}`. A repeat joins the first."""

    name: ImageReference | None = None
    """What its image is called, too, as images of registries are: `NAME` or `NAME:TAG`."""
    expires_after_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """When it is removed; None: when somebody does it."""
    for_fork: bool = False
    """It is what children begin with: in no list. Once it is deleted it can be named as long as one of them lives."""


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
    size_bytes: int
    """Of its own layer and those below that are the store's, unpacked."""
    created_at: float
    expires_at: float | None


class SnapshotList(ResponseModel):
    """Answer of `GET /v1/snapshots`: the newest first."""

    snapshots: list[SnapshotInfo]
