"""What a store removes: it leaves its place by a rename, and goes for good from the trash."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.system.threads import in_thread
from aviato.trees.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

log = logging.getLogger(__name__)

RECORD = ".json"


class ImageTrash:
    """The trash of one store.

    Args:
        directory: of the store.
        remove: takes a tree away; one whose files have other owners may need a way of its own.
    """

    def __init__(self, directory: Path, remove: Callable[[Path], Awaitable[None]]) -> None:
        self._directory = directory / "trash"
        self._remove = remove

    def take(self, path: Path) -> Path | None:
        """Take a directory or a file out of its place; None if it was not there."""
        taken = self._directory / os.urandom(8).hex()
        try:
            os.rename(path, taken)
        except FileNotFoundError:
            return None
        return taken

    def take_record(self, path: Path) -> Path | None:
        """Take a record away in a way that `records` finds it by, should this process end before it is decided."""
        taken = self._directory / f"{os.urandom(8).hex()}-{path.name}"
        try:
            os.rename(path, taken)
        except FileNotFoundError:
            return None
        return taken

    def records(self) -> list[tuple[Path, str]]:
        """Records that were taken away, with the ids of their images."""
        names = (name for name in os.listdir(self._directory) if name.endswith(RECORD))
        return [(self._directory / name, name.partition("-")[2][: -len(RECORD)]) for name in names]

    async def empty(self) -> None:
        """Remove everything in it but records; what cannot be removed stays for the next time."""
        for name in await in_thread(os.listdir, self._directory):
            if name.endswith(RECORD):
                continue
            try:
                await self._remove(self._directory / name)
            except OSError as error:
                log.warning("the image store cannot remove %r: %s", str(self._directory / name), error)


async def remove_as_oneself(path: Path) -> None:
    """Remove a tree or a file whose owner this process is, or may act for."""
    await in_thread(_remove, path)


def _remove(path: Path) -> None:
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                for _ in remove_tree(parent, path.name):
                    pass
            else:
                os.unlink(path.name, dir_fd=parent)
    finally:
        os.close(parent)
