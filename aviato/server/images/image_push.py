"""One push of one image: what the registry does not have, and last what makes an image of it."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aviato.server.images.registry_uploads import RegistryUploads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aviato.server.images.manifests import Descriptor
    from aviato.server.images.oci_reference import OciReference
    from aviato.server.images.packed_image import PackedImage
    from aviato.server.images.patience import Patience


@dataclass(frozen=True, kw_only=True)
class PushProgress:
    """How far a push is.

    Attributes:
        reference: where it goes, in full.
        layers_total: different layers of the image.
        layers_done: those that are there.
        sent_bytes: of layers that were not there, so far.
        layer_done_bytes: of the layer that is being sent.
        layer_total_bytes: of how many, packed; None: none is being sent.
        digest: of the manifest, once all is there.
    """

    reference: str
    layers_total: int
    layers_done: int = 0
    sent_bytes: int = 0
    layer_done_bytes: int = 0
    layer_total_bytes: int | None = None
    digest: str | None = None


async def push_image(
    image: PackedImage, destination: OciReference, patience: Patience, on_progress: Callable[[PushProgress], None]
) -> PushProgress:
    """Put an image into a registry; a tag that means another one there means this one at the end, and not before.

    Args:
        image: that goes out.
        destination: where.
        patience: with the registry.
        on_progress: called in the loop, now and then.

    Returns:
        What was done.

    Raises:
        SandboxImageError: the registry does not take it, or a layer cannot be packed.
        OSError: the disk fails.
    """
    push = _Push(PushProgress(reference=destination.name, layers_total=image.layers_total), on_progress)
    uploads = RegistryUploads(destination, patience)
    try:
        async with aclosing(image.layers()) as layers:
            async for layer in layers:
                await push.blob(uploads, layer.descriptor, layer.pieces)
                push.tell(layers_done=push.done.layers_done + 1, layer_done_bytes=0, layer_total_bytes=None)
        config, manifest = image.documents()
        if not await uploads.has(config.descriptor):
            await uploads.put_blob(config.descriptor, config.pieces)
        await uploads.put_manifest(manifest.descriptor, manifest.data)
    finally:
        await uploads.close()
    push.tell(digest=manifest.descriptor.digest)
    return push.done


class _Push:
    def __init__(self, done: PushProgress, on_progress: Callable[[PushProgress], None]) -> None:
        self.done = done
        self._on_progress = on_progress
        self.tell()

    def tell(self, **changes: object) -> None:
        self.done = replace(self.done, **changes)  # type: ignore[arg-type]
        self._on_progress(self.done)

    async def blob(self, uploads: RegistryUploads, descriptor: Descriptor, pieces: Callable[[], AsyncIterator[bytes]]) -> None:
        if await uploads.has(descriptor):
            return
        before = self.done.sent_bytes

        async def counted() -> AsyncIterator[bytes]:
            # What was cut counts no more.
            self.tell(sent_bytes=before, layer_done_bytes=0, layer_total_bytes=descriptor.size_bytes)
            async for piece in pieces():
                count = self.done.layer_done_bytes + len(piece)
                self.tell(sent_bytes=before + count, layer_done_bytes=count)
                yield piece

        await uploads.put_blob(descriptor, counted)
