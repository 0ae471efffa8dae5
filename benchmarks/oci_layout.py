"""Images that benchmarks make: as an OCI layout, and as the archive that `docker load` takes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def tar_of(files: dict[str, bytes]) -> bytes:
    """A layer."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def layout(directory: Path, layers: Sequence[bytes]) -> Path:
    """An image of these layers, as an OCI layout."""
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(kind: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    config = put("config.v1+json", _config(layers))
    described = [put("layer.v1.tar+gzip", gzip.compress(layer, 6, mtime=0)) for layer in layers]
    manifest = {"schemaVersion": 2, "config": config, "layers": described}
    named = put("manifest.v1+json", json.dumps(manifest | {"mediaType": "application/vnd.oci.image.manifest.v1+json"}).encode())
    named["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [named]}))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return directory


def archive(file: Path, layers: Sequence[bytes], name: str) -> Path:
    """An image of these layers with a name, as `docker save` writes it."""
    config = _config(layers)
    listed = {f"{number}.tar": layer for number, layer in enumerate(layers)}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": list(listed)}]
    file.write_bytes(tar_of({**listed, "config.json": config, "manifest.json": json.dumps(manifest).encode()}))
    return file


def _config(layers: Sequence[bytes]) -> bytes:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    said = {"architecture": machine, "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    return json.dumps(said).encode()
