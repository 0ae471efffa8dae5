"""Base roots that the servers of the tests share: with a state directory of its own each would make them anew."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

SHARED = Path(tempfile.gettempdir()) / f"aviato-test-{os.getuid()}" / "skeletons"


def share(directory: Path) -> None:
    """Let what is opened on this state directory find those of before; they are named by their content."""
    SHARED.mkdir(mode=0o711, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (directory / "skeletons").symlink_to(SHARED)
