"""The directories that lie below the writable layers of `host` sandboxes, made once for all of them.

Every name in a sandbox's root that is its own costs the disk's file system as much as several system calls, and again when it
is removed. These names are every sandbox's, so they lie in one directory that nobody writes to.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from aviato.server.backends.local.host_tree import Skeleton


class Skeletons:
    """One directory of them; the name of each is that of its content.

    Args:
        directory: made if it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[str, int] = {}

    def path(self, skeleton: Skeleton) -> str:
        """Where it is, or would be."""
        return f"{self._directory}/{hashlib.sha256(repr(skeleton).encode()).hexdigest()[:16]}"

    def has(self, path: str) -> bool:
        """Whether this process holds it."""
        return path in self._held

    def make(self, path: str, skeleton: Skeleton) -> None:
        """Make it, or what is missing of it, and hold it; for a worker thread.

        Raises:
            OSError: it cannot be made.
        """
        self._directory.mkdir(exist_ok=True)
        self._directory.chmod(0o700)  # No sandbox comes here by its path, and nobody else is to take the lock.
        _fill(path, skeleton)
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # What cleans /var/tmp of old things leaves alone what lies below a locked directory.
        with contextlib.suppress(BlockingIOError):  # It is at it just now: what it takes is made again by the next server.
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        other = self._held.setdefault(path, held)
        if other != held:
            os.close(held)

    def close(self) -> None:
        """Hold none any more."""
        while self._held:
            os.close(self._held.popitem()[1])


def _fill(directory: str, skeleton: Skeleton) -> None:
    """All of it that is missing: servers that share the directory may do so at the same time."""
    for path, mode in (("", 0o755), *skeleton.directories):
        os.makedirs(directory + path, exist_ok=True)
        os.chmod(directory + path, mode)
    for path, target in skeleton.links:
        with contextlib.suppress(FileExistsError):
            os.symlink(target, directory + path)
