"""Snapshots: images whose uppermost layer was a sandbox's own."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aviato.server.images.image_config import ImageConfig, ImageSettings
from aviato.server.images.image_errors import image_error
from aviato.server.images.image_index import ImageRecord, Name
from aviato.server.images.oci_reference import parse_oci_reference
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Sequence
    from pathlib import Path

    from aviato.server.images.image_index import ImageIndex, RecordedLayer, RecordedSnapshot
    from aviato.server.images.image_removal import ImageRemoval
    from aviato.server.images.image_uses import ImageUses
    from aviato.server.images.layer_leases import LayerLeases, Lease
    from aviato.server.images.layer_pull import LayerPulls
    from aviato.server.images.starting_layers import StartingLayers


@dataclass(frozen=True, kw_only=True)
class NewSnapshot:
    """A snapshot that is to be.

    Attributes:
        recorded: what is written down of it.
        image_id: of the store's image that the sandbox was made of; None: of what is this machine's own.
        names: that it has, its id among them.
        architecture: of this machine.
        expires_after_seconds: how long it stays once it is there; None: until somebody removes it.
        settings: what its commands have beside what the image below says.
    """

    recorded: RecordedSnapshot
    image_id: str | None
    names: tuple[str, ...]
    architecture: str
    expires_after_seconds: float | None = None
    settings: ImageSettings = field(default_factory=ImageSettings)


class ImageSnapshots:
    """The snapshots of one store.

    Args:
        index: its images and names.
        uses: its sandboxes.
        leases: what its layers are kept by.
        layers: puts them in.
        removal: takes images away.
        starting: those with which sandboxes of its images begin.
    """

    def __init__(
        self,
        index: ImageIndex,
        uses: ImageUses,
        leases: LayerLeases,
        layers: LayerPulls,
        removal: ImageRemoval,
        starting: StartingLayers,
    ) -> None:
        self._index = index
        self._uses = uses
        self._leases = leases
        self._layers = layers
        self._removal = removal
        self._starting = starting

    async def take(self, pieces: AsyncIterator[bytes], new: NewSnapshot, most_layers: int) -> ImageRecord:
        """Put a sandbox's layer over those that it lies on.

        Args:
            pieces: of the layer's tar.
            new: what comes of it.
            most_layers: that a sandbox can be made of.

        Raises:
            SandboxImageError: the image below has gone or has as many layers as can be, or the tar is none.
            OSError: the disk fails.
        """
        base, below, lease = await in_thread(self._begin, new, most_layers - 1)
        try:
            return await self._layers.unpack(pieces, lambda put, diff_id: self._write(put, diff_id, base, below, new))
        finally:
            await in_thread(lease.end)

    def put(self, left: Path | None, new: NewSnapshot, most_layers: int) -> ImageRecord:
        """The same of a layer that is moved here. Blocks for moments.

        Args:
            left: where a dead sandbox has left it; None: nothing is in it, and the image below is all there is.
            new: what comes of it.
            most_layers: that a sandbox can be made of.

        Raises:
            SandboxImageError, OSError: as of `take`.
        """
        base, below, lease = self._begin(new, most_layers - (left is not None))
        try:
            if left is None:
                return self._write(None, None, base, below, new)
            key = hashlib.sha256(new.recorded.snapshot_id.encode()).hexdigest()
            # None that an image could name: whoever knew the snapshot's id would have its files by it.
            diff_id = f"snapshot:{key}"
            return self._layers.move_in(left, key, diff_id, lambda put, diff_id: self._write(put, diff_id, base, below, new))
        finally:
            lease.end()

    def valid(self) -> list[ImageRecord]:
        """Those that somebody may name, the newest first."""
        found = [record for record in self._index.records() if record.snapshot is not None and not is_gone(record)]
        return sorted(found, key=lambda record: -record.pulled_at)

    def let_go(self, record: ImageRecord) -> None:
        """Have one go once no sandbox has it; by then it means nothing any more. Only within `ImageIndex.alone`."""
        assert record.snapshot is not None
        if record.snapshot.kind != "fork":
            names = [name for name, meant in self._index.names(anew=True).items() if meant.image_id == record.image_id]
            self._index.drop_names(names)
        self._index.put(replace(record, snapshot=replace(record.snapshot, expires_at=0.0)))

    def remove_expired(self, in_use: Collection[str]) -> bool:
        """Take away those that are over and that no sandbox has; whether there was one. Only within `ImageIndex.alone`.

        Args:
            in_use: images that sandboxes will have that have no place yet.
        """
        gone = False
        for record in self._index.records():
            if not is_over(record) or record.image_id in in_use:
                continue
            self._uses.tidy(record.image_id)
            gone |= not self._uses.alive(record.image_id) and not self._removal.remove(record.image_id)
        return gone

    def _base(self, new: NewSnapshot) -> ImageRecord | None:
        if new.image_id is None:
            return None
        record = self._index.record(new.image_id)
        if record is None:
            raise image_error("image_gone", f"the image {new.image_id} that the sandbox was made of has been removed")
        return record

    def _begin(self, new: NewSnapshot, most_below: int) -> tuple[ImageRecord | None, Sequence[RecordedLayer], Lease]:
        """What lies below, and what keeps it there."""
        base = self._base(new)
        below: Sequence[RecordedLayer] = ()
        if base is not None:
            starting = self._starting.find(base)
            below = base.layers if starting is None else (*base.layers, starting)
        if len(below) > most_below:
            raise image_error("layers", f"the image below has {len(below)} layers, and no more can lie over one another")
        lease = self._leases.new()
        lease.take({layer.key for layer in below})
        return base, below, lease

    def _write(
        self,
        put: Callable[[], RecordedLayer] | None,
        diff_id: str | None,
        base: ImageRecord | None,
        below: Sequence[RecordedLayer],
        new: NewSnapshot,
    ) -> ImageRecord:
        """Put the layer, if there is one, into its place and write the image down, while nobody removes layers."""
        text = json.dumps([new.recorded.snapshot_id, new.image_id, diff_id])
        image_id = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        recorded = new.recorded
        if base is not None and base.snapshot is not None:
            recorded = replace(recorded, base=base.snapshot.base, interpreter=base.snapshot.interpreter)
        now = time.time()
        if new.expires_after_seconds is not None:
            recorded = replace(recorded, expires_at=now + new.expires_after_seconds)
        with self._index.alone():
            record = ImageRecord(
                image_id=image_id,
                digests=(image_id,),
                layers=(*below, *([] if put is None else [put()])),
                config=(ImageConfig() if base is None else base.config).but(new.settings),
                architecture=new.architecture if base is None else base.architecture,
                created_at=now,
                pulled_at=now,
                pinned=recorded.kind != "build",
                snapshot=recorded,
            )
            self._index.put(record, waits=False)
            names = [parse_oci_reference(name).name for name in new.names]
            self._index.name(names, Name(image_id=image_id, digest=image_id), waits=False)
        return record


def is_gone(record: ImageRecord) -> bool:
    """Whether it is a snapshot that nobody may name any more."""
    return is_over(record) and record.snapshot is not None and record.snapshot.kind != "fork"


def is_over(record: ImageRecord) -> bool:
    """Whether it is a snapshot that goes once no sandbox has it."""
    expires_at = None if record.snapshot is None else record.snapshot.expires_at
    return expires_at is not None and time.time() >= expires_at
