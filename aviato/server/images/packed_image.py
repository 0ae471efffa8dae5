"""An image on its way out: its layers packed again, one after another, and what OCI has said of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aviato.server.images import image_documents
from aviato.server.images.layers import ROOT
from aviato.server.images.manifests import OCI_CONFIG, OCI_MANIFEST
from aviato.server.images.packed_layer import pack_layer
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from aviato.server.images.image_index import ImageRecord
    from aviato.server.images.manifests import Descriptor
    from aviato.server.images.packed_layer import PackedLayer
    from aviato.server.images.packing import Pack


@dataclass(frozen=True)
class Document:
    """A small part of an image.

    Attributes:
        descriptor: of it.
        data: its bytes.
    """

    descriptor: Descriptor
    data: bytes

    @classmethod
    def of(cls, data: bytes, media_type: str) -> Document:
        """One of these bytes."""
        return cls(image_documents.describe(data, media_type), data)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its bytes, as of a layer's blob."""
        yield self.data


class PackedImage:
    """An image on its way out. Ask for its layers first, then for what says which they are.

    Args:
        record: of the image.
        pack: makes tars.
        directory: of the store.
    """

    def __init__(self, record: ImageRecord, pack: Pack, directory: Path) -> None:
        self._record = record
        self._pack = pack
        self._directory = directory
        self._layers: dict[str, tuple[Descriptor, str]] = {}

    @property
    def layers_total(self) -> int:
        """How many different layers it has."""
        return len({layer.key for layer in self._record.layers})

    async def layers(self) -> AsyncGenerator[PackedLayer, None]:
        """Each different layer, the lowest first; one is gone when the next one is asked for.

        Raises:
            SandboxImageError: one cannot be packed.
            OSError: the disk fails.
        """
        for key in dict.fromkeys(layer.key for layer in self._record.layers):
            layer = await pack_layer(self._pack, self._directory / "layers" / key / ROOT, self._directory / "blobs")
            try:
                self._layers[key] = layer.descriptor, layer.diff_id
                yield layer
            finally:
                await in_thread(layer.close)

    def descriptors(self) -> list[Descriptor]:
        """Of all its layers, the lowest first, once they were packed."""
        return [self._layers[layer.key][0] for layer in self._record.layers]

    def documents(self) -> tuple[Document, Document]:
        """Its configuration and its manifest, once its layers were packed."""
        diff_ids = [self._layers[layer.key][1] for layer in self._record.layers]
        config = Document.of(image_documents.configuration(self._record, diff_ids), OCI_CONFIG)
        return config, Document.of(image_documents.manifest(config.data, self.descriptors()), OCI_MANIFEST)
