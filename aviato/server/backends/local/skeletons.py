"""The directories that lie below the writable layers of `host` sandboxes, made once for all of them.

Every name in a sandbox's root that is its own costs the disk's file system as much as several system calls, and again when it
is removed. These names are every sandbox's, so they lie in one directory that nobody writes to.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from aviato.server.backends.local.plan import Skeleton


class Skeletons:
    """One directory of them. A skeleton is whole or not there; its name is that of its content.

    Args:
        directory: made if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: set[str] = set()

    def path(self, skeleton: Skeleton) -> str:
        """Where it is, or would be."""
        return f"{self._directory}/{hashlib.sha256(repr(skeleton).encode()).hexdigest()[:16]}"

    def has(self, path: str) -> bool:
        """Whether this process has made it or seen it."""
        return path in self._made

    def make(self, path: str, skeleton: Skeleton) -> None:
        """Make it if it is missing; for a worker thread.

        Raises:
            OSError: it cannot be made.
        """
        if not os.path.isdir(path):
            self._directory.mkdir(mode=0o711, exist_ok=True)
            made = tempfile.mkdtemp(prefix=".making-", dir=self._directory)
            try:
                _fill(made, skeleton)
                os.rename(made, path)
            except OSError:
                shutil.rmtree(made, ignore_errors=True)
                if not os.path.isdir(path):  # Else another server was faster.
                    raise
        self._made.add(path)


def _fill(directory: str, skeleton: Skeleton) -> None:
    os.chmod(directory, 0o755)
    for path, mode in skeleton.directories:
        os.mkdir(directory + path)
        os.chmod(directory + path, mode)
    for path, target in skeleton.links:
        os.symlink(target, directory + path)
