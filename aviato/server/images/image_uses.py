"""Which sandboxes have which image: `uses/IMAGE_ID/SANDBOX_ID` is a link to a sandbox's place, and counts while that exists.

Each sandbox makes one, and it costs as much as all else that an image adds to a create: a short link lies in its inode.

A place is made after its link, by another process: a link counts for a while without one.

A sandbox that begins writes its link, then looks whether the image is there. Who removes an image takes its record away, then
looks at the links. So one of both sees the other, and neither waits for a lock.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BEGINNING_SECONDS = 120.0
"""So long a sandbox may take to have its place; no start may take longer."""
_SANDBOX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


class ImageUses:
    """The links of one store.

    Args:
        directory: of the store.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "uses"
        self._ways: dict[str, str] = {}
        """From a directory of links to those of places."""

    def add(self, image_id: str, sandbox_id: str, place: str) -> None:
        """Say that a sandbox has an image, whose place is there or about to be."""
        link, target = self._link(image_id, sandbox_id), self._way_to(place)
        while True:
            try:
                os.symlink(target, link)
                return
            except FileNotFoundError:  # The first one, or a removal has just taken the directory away.
                link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except FileExistsError:
                with suppress(FileNotFoundError):
                    if os.readlink(link) == target:
                        return
                link.unlink(missing_ok=True)

    def drop(self, image_id: str, sandbox_id: str) -> None:
        """Say that a sandbox has it no more."""
        self._link(image_id, sandbox_id).unlink(missing_ok=True)

    def used_at(self, image_id: str) -> float | None:
        """When a sandbox last began or ended with it, in seconds since the epoch; None if none has."""
        try:
            return os.stat(self._directory / image_id).st_mtime
        except FileNotFoundError:
            return None

    def alive(self, image_id: str) -> list[str]:
        """The sandboxes that have it."""
        return [name for name, lives in self._seen(image_id) if lives]

    def tidy(self, image_id: str) -> None:
        """Take links away whose sandboxes have gone; `used_at` stays."""
        directory = self._directory / image_id
        with suppress(FileNotFoundError):
            before = os.stat(directory)
            dead = [name for name, lives in self._seen(image_id) if not lives]
            for name in dead:
                (directory / name).unlink(missing_ok=True)
            if dead:
                os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))

    def forget(self, image_id: str) -> None:
        """Take the directory of an image that has gone away, unless a sandbox has just come."""
        self.tidy(image_id)
        with suppress(OSError):
            os.rmdir(self._directory / image_id)

    def _seen(self, image_id: str) -> list[tuple[str, bool]]:
        try:
            names = sorted(os.listdir(self._directory / image_id))
        except FileNotFoundError:
            return []
        return [(name, _lives(self._directory / image_id / name)) for name in names]

    def _way_to(self, place: str) -> str:
        above, name = os.path.split(place)
        way = self._ways.get(above)
        if way is None:
            relative = os.path.relpath(os.path.realpath(above), os.path.realpath(self._directory / "image"))
            way = self._ways[above] = min(relative, above, key=len)
        return f"{way}/{name}"

    def _link(self, image_id: str, sandbox_id: str) -> Path:
        if not _SANDBOX.fullmatch(sandbox_id):
            raise ValueError(f"no id of a sandbox: {sandbox_id!r}")
        return self._directory / image_id / sandbox_id


def _lives(link: Path) -> bool:
    try:
        os.stat(link)
    except (FileNotFoundError, NotADirectoryError):
        try:
            return time.time() - os.lstat(link).st_mtime < BEGINNING_SECONDS
        except FileNotFoundError:
            return False
    except OSError:
        return True  # It cannot be seen, so nobody may say that it has gone.
    return True
