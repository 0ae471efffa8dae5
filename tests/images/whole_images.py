"""OCI layouts made by hand: a list of layers, each files or a tar, and a configuration."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


Content: TypeAlias = bytes | str | tuple[int, int, int, bytes]


def tar_of(files: Mapping[str, Content]) -> bytes:
    """A layer: paths with what is in them; text is the target of a link, a path that ends with / a directory.

    A tuple is mode, uid, gid and content.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, what in files.items():
            member = tarfile.TarInfo(path.rstrip("/"))
            member.mode, content = 0o755, b""
            if isinstance(what, str):
                member.type, member.linkname = tarfile.SYMTYPE, what
            elif isinstance(what, tuple):
                member.mode, member.uid, member.gid, content = what
            else:
                content = what
            if path.endswith("/"):
                member.type = tarfile.DIRTYPE
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def make_layout(directory: Path, layers: Sequence[bytes | Path], config: Mapping[str, Any], tag: str = "latest") -> Path:
    """A layout with one image of these layers, each a tar or the path of one."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    described, diff_ids = [], []
    for layer in layers:
        tar = layer.read_bytes() if isinstance(layer, Path) else layer
        diff_ids.append(f"sha256:{hashlib.sha256(tar).hexdigest()}")
        described.append({"mediaType": LAYER, **put(gzip.compress(tar, 1, mtime=0))})
    said = {
        "architecture": ARCHITECTURE,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    described_config = {"mediaType": CONFIG, **put(json.dumps(said).encode())}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described_config, "layers": described}
    named = {"mediaType": MANIFEST, **put(json.dumps(manifest).encode())}
    named["annotations"] = {"org.opencontainers.image.ref.name": tag}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return directory
