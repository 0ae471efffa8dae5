#!/usr/bin/env python3
"""An image with aviato-init alone, for pods of every architecture that it is given a program of.

    deploy/docker/init_image.py FILE.tar NAME:TAG PROGRAM…

writes an archive (an OCI layout) with an image of each program, and an index that chooses between them. What each is for
stands in the program itself. `skopeo copy --all oci-archive:FILE.tar docker://NAME:TAG` sends all of it to a registry; `ctr
images import` takes it, too. The same programs give the same archive, byte for byte.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

PROGRAM = "usr/local/bin/aviato-init"
ARCHITECTURES = {62: "amd64", 183: "arm64"}
"""By the machine in the head of a program."""
HEAD_BYTES = 20
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Unusable(Exception):
    """A program cannot be put in, and why."""


def architecture_of(program: bytes) -> str:
    """For which machines a program is.

    Raises:
        Unusable: for none that there are images of.
    """
    if program[:6] != b"\x7fELF\x02\x01" or len(program) < HEAD_BYTES:
        raise Unusable("it is no program for 64 bits, little-endian")
    (machine,) = struct.unpack_from("<H", program, HEAD_BYTES - 2)
    if machine not in ARCHITECTURES:
        raise Unusable(f"it is for the machine {machine}; there are images for {', '.join(ARCHITECTURES.values())}")
    return ARCHITECTURES[machine]


def archive(name: str, programs: dict[str, bytes]) -> bytes:
    """The archive.

    Args:
        name: of the image, with its tag.
        programs: by architecture.
    """
    blobs: dict[str, bytes] = {}

    def put(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    found = []
    for architecture, program in sorted(programs.items()):
        platform = {"architecture": architecture, "os": "linux"}
        layer = _tar({PROGRAM: program}, 0o755)
        diff = f"sha256:{hashlib.sha256(layer).hexdigest()}"
        config = {**platform, "config": {"Env": [PATH]}, "rootfs": {"type": "layers", "diff_ids": [diff]}}
        parts = {
            "config": put(CONFIG, json.dumps(config).encode()),
            "layers": [put(LAYER, gzip.compress(layer, mtime=0))],
        }
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, **parts}
        found.append({**put(MANIFEST, json.dumps(manifest).encode()), "platform": platform})
    images = {"schemaVersion": 2, "mediaType": INDEX, "manifests": found}
    # The first name is containerd's and Docker's; the other is what the layout's own format has.
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    top = {"schemaVersion": 2, "manifests": [{**put(INDEX, json.dumps(images).encode()), "annotations": names}]}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(top).encode()}
    return _tar(files | {f"blobs/sha256/{digest}": content for digest, content in sorted(blobs.items())}, 0o644)


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    """Files, and the directories that they are in."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for above in sorted({str(one) for path in files for one in Path(path).parents} - {"."}):
            entry = tarfile.TarInfo(above)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def main(arguments: list[str]) -> None:
    """Write it, or end with a line that says why not."""
    if len(arguments) < 3 or ":" not in arguments[1].rpartition("/")[2]:
        sys.exit("init_image.py FILE.tar NAME:TAG PROGRAM…")
    file, name, *paths = arguments
    programs: dict[str, bytes] = {}
    for path in paths:
        try:
            program = Path(path).read_bytes()
            architecture = architecture_of(program)
        except (OSError, Unusable) as error:
            sys.exit(f"init_image.py: {path}: {error}")
        if architecture in programs:
            sys.exit(f"init_image.py: {path}: there is another one for {architecture}")
        programs[architecture] = program
    Path(file).write_bytes(archive(name, programs))


if __name__ == "__main__":
    main(sys.argv[1:])
