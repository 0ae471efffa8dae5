"""One pull of one image: from what its reference means to a record in the store."""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aviato.server.images.blobs import read_blob
from aviato.server.images.image_errors import image_error
from aviato.server.images.image_index import ImageRecord, Name
from aviato.server.images.layer_pull import WantedLayer
from aviato.server.images.manifests import Index, read_details, read_manifest
from aviato.server.images.open_source import open_source
from aviato.server.images.platforms import check_platform, choose_manifest
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aviato.server.images.image_index import ImageIndex, RecordedLayer
    from aviato.server.images.image_sources import ImageSource
    from aviato.server.images.layer_leases import LayerLeases
    from aviato.server.images.layer_pull import LayerPulls
    from aviato.server.images.manifests import ImageDetails, Manifest, Platform
    from aviato.server.images.oci_reference import OciReference
    from aviato.server.images.patience import Patience
    from aviato.server.images.pull_progress import PullProgress

AT_ONCE = 4
"""Layers of an image that are downloaded or unpacked at a time."""
DEEPEST_INDEX = 2


@dataclass(frozen=True, kw_only=True)
class PullPlaces:
    """What pulls of one store have in common.

    Attributes:
        directory: of the store.
        index: its images.
        leases: what its pulls need.
        layers: makes them.
        own: what this machine runs.
        mirrors: by registry, the hosts that are asked before it.
        patience: with registries.
        most_bytes: that an archive may be once it is decompressed.
    """

    directory: Path
    index: ImageIndex
    leases: LayerLeases
    layers: LayerPulls
    own: Platform
    mirrors: Mapping[str, tuple[str, ...]]
    patience: Patience
    most_bytes: int


async def pull_image(places: PullPlaces, reference: OciReference, progress: PullProgress) -> ImageRecord:
    """Have an image.

    Raises:
        SandboxImageError: it cannot be had.
        OSError: the disk of the store fails.
    """
    progress.tell()
    source = await open_source(
        reference,
        mirrors=places.mirrors,
        patience=places.patience,
        scratch=places.directory / "blobs",
        most_bytes=places.most_bytes,
    )
    try:
        record = await _unchanged(places, reference, source)
        if record is None:
            record = await _Pull(places, reference, source, progress).run()
    finally:
        await source.close()
    progress.finish()
    return record


async def _unchanged(places: PullPlaces, reference: OciReference, source: ImageSource) -> ImageRecord | None:
    """The image that is here by this name, if the name still means it."""
    known = (await in_thread(places.index.names)).get(reference.name)
    if known is None or await source.digest() != known.digest:
        return None
    return await in_thread(places.index.record, known.image_id)


class _Pull:
    def __init__(self, places: PullPlaces, reference: OciReference, source: ImageSource, progress: PullProgress) -> None:
        self._places = places
        self._reference = reference
        self._what = reference.name
        self._source = source
        self._progress = progress

    async def run(self) -> ImageRecord:
        manifest, digests = await self._manifest()
        config = await read_blob(self._source, manifest.config, self._what, self._places.patience)
        details = read_details(config, manifest, self._what)
        check_platform(details.platform, self._places.own, self._what)
        wanted = _wanted(manifest, details, self._reference.origin)
        keys = {key for one in wanted for key in one.keys}
        lease = self._places.leases.new()
        try:
            await in_thread(lease.take, keys)
            layers = await self._layers(wanted)
            return await in_thread(self._record, manifest.config.digest, digests, details, layers)
        finally:
            await in_thread(lease.end)

    async def _manifest(self) -> tuple[Manifest, tuple[str, ...]]:
        """The manifest for this machine, and the digests on the way to it."""
        raw = await self._source.manifest()
        digests = [raw.digest]
        for _ in range(DEEPEST_INDEX + 1):
            # Nobody has looked at what a source says of itself.
            if f"sha256:{hashlib.sha256(raw.data).hexdigest()}" != raw.digest:
                raise image_error("wrong_digest", f"a manifest of {self._what} has not the digest that its index says")
            found = read_manifest(raw.data, raw.media_type, self._what)
            if not isinstance(found, Index):
                return found, tuple(digests)
            chosen = choose_manifest(found, self._places.own, self._what)
            raw = await self._source.manifest(chosen.digest)
            digests.append(chosen.digest)
        raise image_error("unsupported_manifest", f"{self._what} is an index of indexes of indexes")

    async def _layers(self, wanted: list[WantedLayer]) -> tuple[RecordedLayer, ...]:
        found = await in_thread(lambda: [*map(self._places.layers.find, wanted)])
        missing = {
            one.descriptor.digest: one.descriptor.size_bytes for one, layer in zip(wanted, found, strict=True) if layer is None
        }
        self._progress.begin(sum(missing.values()), sum(layer is not None for layer in found), len(wanted))
        slots = asyncio.Semaphore(AT_ONCE)
        tasks: list[asyncio.Future[RecordedLayer]] = []
        counted: set[str] = set()
        for one, layer in zip(wanted, found, strict=True):
            if layer is not None:
                there: asyncio.Future[RecordedLayer] = asyncio.get_running_loop().create_future()
                there.set_result(layer)
                tasks.append(there)
                continue
            counts = one.descriptor.digest not in counted
            counted.add(one.descriptor.digest)
            tasks.append(asyncio.ensure_future(self._layer(one, [*tasks], slots, counts)))
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _layer(
        self, wanted: WantedLayer, below: list[asyncio.Future[RecordedLayer]], slots: asyncio.Semaphore, counts: bool
    ) -> RecordedLayer:
        on_bytes = self._progress.add_bytes if counts else _say_nothing
        layer = await self._places.layers.make(self._source, wanted, below, slots, self._what, on_bytes)
        self._progress.add_layer()
        return layer

    def _record(
        self, image_id: str, digests: tuple[str, ...], details: ImageDetails, layers: tuple[RecordedLayer, ...]
    ) -> ImageRecord:
        """Write it down."""
        index = self._places.index
        record = ImageRecord(
            image_id=image_id,
            digests=digests,
            layers=layers,
            config=details.config,
            architecture=details.platform.architecture or self._places.own.architecture,
            created_at=details.created_at,
            pulled_at=time.time(),
        )
        with index.alone():
            before = index.record(image_id)
            if before is not None:
                together = tuple(dict.fromkeys((*before.digests, *digests)))
                record = replace(record, digests=together, pinned=before.pinned)
            index.put(record)
            index.name([self._reference.name], Name(image_id=image_id, digest=digests[0]))
        return record


def _wanted(manifest: Manifest, details: ImageDetails, origin: str) -> list[WantedLayer]:
    """The layers of an image, with the ids of their chains as OCI has them."""
    wanted: list[WantedLayer] = []
    chain = ""
    for descriptor, diff_id in zip(manifest.layers, details.diff_ids, strict=True):
        digest = hashlib.sha256(f"sha256:{chain} {diff_id}".encode()).hexdigest()
        chain = digest if chain else diff_id.partition(":")[2]
        wanted.append(WantedLayer(descriptor=descriptor, diff_id=diff_id, chain_id=chain, origin=origin))
    return wanted


def _say_nothing(_: int) -> None:
    """Bytes that are counted elsewhere."""
