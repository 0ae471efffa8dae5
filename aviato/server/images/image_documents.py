"""What OCI has said of an image: configuration, manifest, and the index of a layout; of the same image always the same."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aviato.server.images.manifests import OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, Descriptor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aviato.server.images.image_config import ImageConfig
    from aviato.server.images.image_index import ImageRecord

LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
TAG_NAME = "org.opencontainers.image.ref.name"
FULL_NAME = "io.containerd.image.name"
"""Where Docker and containerd look for the whole of a name."""


def describe(data: bytes, media_type: str) -> Descriptor:
    """What a manifest says of a document."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return Descriptor(digest=digest, size_bytes=len(data), media_type=media_type)


def configuration(record: ImageRecord, diff_ids: Sequence[str]) -> bytes:
    """The configuration of an image with these layers, the lowest first."""
    created = _moment(record.created_at)
    step = {"created_by": "aviato", **created}
    return _json(
        {
            **created,
            "architecture": record.architecture,
            "os": "linux",
            "config": _config(record.config),
            "rootfs": {"type": "layers", "diff_ids": [*diff_ids]},
            "history": [step for _ in diff_ids],
        }
    )


def manifest(config: bytes, layers: Iterable[Descriptor]) -> bytes:
    """The manifest of an image with these layers, the lowest first."""
    described = _entry(describe(config, OCI_CONFIG))
    return _json({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described, "layers": [*map(_entry, layers)]})


def index(manifest: bytes, tag: str, name: str | None) -> bytes:
    """The index of a layout that has one image, of this tag and, in full, this name."""
    annotations = {TAG_NAME: tag, **({} if name is None else {FULL_NAME: name})}
    entry = {**_entry(describe(manifest, OCI_MANIFEST)), "annotations": annotations}
    return _json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]})


def docker_manifest(config: Descriptor, layers: Iterable[Descriptor], name: str | None) -> bytes:
    """The manifest.json by which `docker load` finds an image in an archive."""
    names = [] if name is None else [name]
    return _json([{"Config": blob_path(config), "RepoTags": names, "Layers": [*map(blob_path, layers)]}])


def blob_path(descriptor: Descriptor) -> str:
    """Where something lies in a layout."""
    return f"blobs/sha256/{descriptor.hex}"


def _config(config: ImageConfig) -> dict[str, Any]:
    said = {
        "Env": [f"{name}={value}" for name, value in config.environment],
        "WorkingDir": config.working_dir,
        "User": config.user,
        "Entrypoint": [*config.entrypoint],
        "Cmd": [*config.command],
        "Labels": dict(config.labels),
        "Shell": [*config.shell],
    }
    return {key: value for key, value in said.items() if value}


def _moment(seconds: float | None) -> dict[str, str]:
    try:
        return {} if seconds is None else {"created": f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"}
    except (ValueError, OverflowError, OSError):
        return {}


def _entry(descriptor: Descriptor) -> dict[str, Any]:
    return {"mediaType": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size_bytes}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
