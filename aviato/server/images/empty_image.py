"""The image `scratch`, which nobody has and every builder knows: its files are none."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from aviato.server.images.image_sources import RawManifest
from aviato.server.images.manifests import OCI_CONFIG, OCI_LAYER, OCI_MANIFEST
from aviato.server.images.platforms import this_platform

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.images.manifests import Descriptor

_LAYER = bytes(1024)
"""A tar of nothing: an image of no layers at all is none that a sandbox could lie on."""


class EmptyImage:
    """The source of `scratch`."""

    def __init__(self) -> None:
        own = this_platform()
        said = {"os": own.os, "architecture": own.architecture, **({"variant": own.variant} if own.variant else {})}
        config = json.dumps({**said, "config": {}, "rootfs": {"type": "layers", "diff_ids": [_digest(_LAYER)]}}).encode()
        self._blobs = {_digest(one): one for one in (_LAYER, config)}
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"mediaType": OCI_CONFIG, "digest": _digest(config), "size": len(config)},
            "layers": [{"mediaType": OCI_LAYER, "digest": _digest(_LAYER), "size": len(_LAYER)}],
        }
        data = json.dumps(manifest).encode()
        self._manifest = RawManifest(data=data, digest=_digest(data), media_type=OCI_MANIFEST)

    async def digest(self) -> str | None:
        """See `ImageSource`."""
        return self._manifest.digest

    async def manifest(self, digest: str | None = None) -> RawManifest:
        """See `ImageSource`."""
        return self._manifest

    async def blob(self, descriptor: Descriptor, offset: int = 0) -> AsyncIterator[bytes]:
        """See `ImageSource`."""
        yield self._blobs[descriptor.digest][offset:]

    async def close(self) -> None:
        """See `ImageSource`."""


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
