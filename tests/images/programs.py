"""Programs that need nothing of an image, and images of them: aviato-init itself, and busybox."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aviato.server.backends.local import binary
from tests.images.whole_images import Content, make_layout, tar_of

NOTHING: Mapping[str, Any] = {}


def one_program(directory: Path, files: Mapping[str, Content] = NOTHING, config: Mapping[str, Any] = NOTHING) -> str:
    """The reference of an image whose `/program` is aviato-init, which prints what it is with `--version`; no shell.

    Args:
        directory: where its layout is made, which must not be there.
        files: more of them, as `tar_of` takes them.
        config: what it says of its commands.
    """
    program = Path(binary.found()).read_bytes()
    return f"oci:{make_layout(directory, [tar_of({'program': (0o755, 0, 0, program), **files})], config)}"


@cache
def busybox() -> Path:
    """Where the machine has a static one; skips the test where it has none."""
    found = shutil.which("busybox")
    if found is None or b"statically" not in subprocess.run(["file", "-L", found], capture_output=True).stdout:
        pytest.skip("no static busybox to make an image of: apt-get install busybox-static")
    return Path(found)


def tools(*names: str) -> dict[str, Content]:
    """Files of an image that has these of busybox's programs in `/bin`; skips the test where there is no static one."""
    return {"bin/busybox": (0o755, 0, 0, busybox().read_bytes()), **{f"bin/{name}": "busybox" for name in names}}
