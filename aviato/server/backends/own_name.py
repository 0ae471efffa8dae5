"""What a server calls itself towards an engine that others use as well."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def own_name(path: Path) -> str:
    """A name that nobody else has, the same each time. Blocks for the file system.

    Args:
        path: the file that keeps it, in a directory that is there.

    Raises:
        OSError: it cannot be kept.
    """
    try:
        if name := path.read_text().strip():
            return name
    except FileNotFoundError:
        pass
    name, new = uuid.uuid4().hex, path.with_name(f"{path.name}.new")
    new.write_text(name)  # Beside it: a disk that is full leaves half a file, or an empty one.
    os.replace(new, path)
    return name
