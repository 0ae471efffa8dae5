"""The images that the tests need on the nodes of a cluster, as files that `ctr images import` takes.

`python -m tests.kubernetes.pods.images DIRECTORY` writes them, and prints a line for each: the file, and the variable that
names it to the tests. Where none can be made it says why, with 77.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from aviato.server.backends.local import binary
from tests.docker.engines import debian_root
from tests.images import debian

INIT, PYTHON = "registry.local/aviato/init", "registry.local/aviato/test-python"
OF_THE_GUIDES = "docker.io/library/python:3.11"
"""What their blocks ask for: on these nodes it is the same as `PYTHON`."""
ARM64 = "AVIATO_TEST_ARM64_INIT"
TOOL = Path(__file__).parents[3] / "deploy" / "docker" / "init_image.py"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_init(path: Path) -> str:
    """Write the image with aviato-init alone, as it is deployed; for arm64, too, where a variable names the program.

    Returns:
        Its whole name; the tag says what is in it.
    """
    program = binary.found()
    whole = f"{INIT}:{hashlib.sha256(Path(program).read_bytes()).hexdigest()[:12]}"
    others = [os.environ[ARM64]] if os.environ.get(ARM64) else []
    subprocess.run([sys.executable, TOOL, path, whole, program, *others], check=True)
    return whole


def write(path: Path, name: str, root: bytes, *others: str) -> str:
    """Write an archive with one image of one layer.

    Args:
        path: of the archive.
        name: of the image, without a tag.
        root: its layer.
        others: whole names that it has, too.

    Returns:
        Its whole name; the tag says what is in it.
    """
    layer = hashlib.sha256(root).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": [PATH, "OF=the-image"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        }
    ).encode()
    of_config = f"{hashlib.sha256(config).hexdigest()}.json"
    whole = f"{name}:{layer[:12]}"
    manifest = [{"Config": of_config, "RepoTags": [whole, *others], "Layers": [f"{layer}/layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        files = ((of_config, config), (f"{layer}/layer.tar", root), ("manifest.json", json.dumps(manifest).encode()))
        for name_in, content in files:
            entry = tarfile.TarInfo(name_in)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return whole


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    binary.renew()
    try:
        python_root = gzip.decompress(root) if (root := debian_root())[:2] == b"\x1f\x8b" else root
    except debian.NoImageError as error:
        print(error)
        sys.exit(debian.CANNOT)
    print(folder / "init.tar", f"AVIATO_TEST_KUBERNETES_INIT_IMAGE={write_init(folder / 'init.tar')}")
    whole = write(folder / "python.tar", PYTHON, python_root, OF_THE_GUIDES)
    print(folder / "python.tar", f"AVIATO_TEST_KUBERNETES_IMAGE={whole}")
