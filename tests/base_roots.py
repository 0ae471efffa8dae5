"""What the servers of the tests share: with a state directory of its own each would make or unpack it anew."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from tests.default_image import IMAGE

SHARED = Path(tempfile.gettempdir()) / f"aviato-test-{os.getuid()}"
NAMES = ("skeletons", "images") if IMAGE else ("skeletons",)
"""Of parts of a state directory."""


def share(directory: Path) -> None:
    """Let what is opened on this state directory find what there was before; it is named by its content."""
    for name in NAMES:
        (SHARED / name).mkdir(mode=0o711, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (directory / name).symlink_to(SHARED / name)
