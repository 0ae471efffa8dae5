"""Images made by hand: layers, layouts and what unpacks them, by Python's own tarfile."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

from aviato.server.images.image_errors import image_error
from aviato.server.images.layer_pull import WantedLayer
from aviato.server.images.manifests import Descriptor
from aviato.server.images.oci_reference import parse_oci_reference
from aviato.server.images.platforms import this_platform
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacked_layer import UnpackedLayer
from aviato.system.threads import in_thread

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"

TRUSTED = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
"""Of Python 3.11.4 and newer."""


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tar_of(files: dict[str, bytes], *, leave_out: tuple[str, ...] = ()) -> bytes:
    """A tar of files and the directories above them, but for some."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        above = {str(one) for name in files for one in Path(name).parents if str(one) != "."}
        for folder in sorted(above - set(leave_out)):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class Image:
    """An image in memory.

    Attributes:
        blobs: all that its manifest names, and itself, by digest.
        manifest: its digest.
    """

    def __init__(
        self,
        *tars: bytes,
        compress: Any = lambda tar: gzip.compress(tar, 1, mtime=0),
        kind: str = "+gzip",
        platform: dict[str, str] | None = None,
        config: dict[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        own = this_platform()
        self.blobs: dict[str, bytes] = {}
        self.layers = [compress(tar) for tar in tars]
        self.document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.add(
                json.dumps(
                    {
                        **(platform or {"os": own.os, "architecture": own.architecture, "variant": own.variant}),
                        "created": "2024-02-03T04:05:06.123456789Z",
                        "config": {"Cmd": ["sh"], "Env": ["PATH=/bin"]} if config is None else config,
                        "rootfs": {"type": "layers", "diff_ids": [digest_of(tar) for tar in tars]},
                    }
                ).encode(),
                CONFIG,
            ),
            "layers": [self.add(layer, LAYER + kind) for layer in self.layers],
            **changes,
        }
        self.raw = json.dumps(self.document).encode()
        self.manifest = digest_of(self.raw)
        self.blobs[self.manifest] = self.raw

    @property
    def image_id(self) -> str:
        return str(self.document["config"]["digest"])

    def add(self, data: bytes, kind: str) -> dict[str, Any]:
        self.blobs[digest_of(data)] = data
        return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}

    def entry(self, **more: Any) -> dict[str, Any]:
        """What an index says of it."""
        return {"mediaType": MANIFEST, "digest": self.manifest, "size": len(self.raw), **more}


def write_layout(path: Path, images: dict[str | None, Image]) -> Path:
    """A layout directory with images by their tags."""
    (path / "blobs/sha256").mkdir(parents=True)
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entries = []
    for tag, image in images.items():
        for digest, data in image.blobs.items():
            (path / "blobs" / digest.replace(":", "/")).write_bytes(data)
        entries.append(image.entry(**({"annotations": {"org.opencontainers.image.ref.name": tag}} if tag else {})))
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    return path


def part_of(store: ImageStore, reference: str, digest: str) -> Path:
    """Where what was downloaded of a blob lies."""
    described = Descriptor(digest=digest, size_bytes=0, media_type=LAYER)
    origin = parse_oci_reference(reference).origin
    return store._directory / "blobs" / WantedLayer(descriptor=described, diff_id="", chain_id="", origin=origin).part


async def unpack_by_tarfile(pieces, into, below, limits) -> UnpackedLayer:
    """As `Unpack`: directories that are left out are made like those below."""
    data = b"".join([piece async for piece in pieces])
    try:
        return await in_thread(_unpack, data, into, below, limits)
    except tarfile.TarError as error:
        raise image_error("damaged_layer", f"a layer is no tar: {error}") from error


def _unpack(data, into, below, limits) -> UnpackedLayer:
    size = files = implied = 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            size += member.size
            files += 1
            if size > limits.most_bytes or files > limits.most_files:
                raise image_error("too_large", "a layer becomes too large")
            for parent in reversed([*Path(member.name).parents][:-1]):
                if not (into / parent).exists():
                    implied += 1
                    (into / parent).mkdir()
                    like = next((root / parent for root in below if (root / parent).is_dir()), None)
                    (into / parent).chmod(0o755 if like is None else os.stat(like).st_mode & 0o7777)
            tar.extract(member, into, **TRUSTED)
    return UnpackedLayer(size_bytes=size, files=files, implied=implied, left_out=0)
