"""Which sandboxes have which image: `uses/IMAGE_ID/SANDBOX_ID@SECONDS`, which counts while that sandbox's place exists.

Each is one more name of a link to the directory of its server's places. A name costs a create next to nothing, and a file of
its own as much as all else that an image adds to it.

A place is made after its use, by another process: from its seconds on, a use counts for a while without one.

A sandbox that begins writes its use, then looks whether the image is there. Who removes an image takes its record away, then
looks at the uses. So one of both sees the other, and neither waits for a lock.
"""

from __future__ import annotations

import hashlib
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
    """The uses of one store.

    Args:
        directory: of the store.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "uses"
        self._links = directory / "places"
        self._link_to: dict[str, str] = {}
        """From a directory of places to the link that is there for it."""
        self._names: dict[tuple[str, str], str] = {}
        """Of the uses that were added here, by image and sandbox."""

    def add(self, image_id: str, sandbox_id: str, places: str) -> None:
        """Say that a sandbox has an image, whose place, of its name, is in this directory or about to be."""
        if not _SANDBOX.fullmatch(sandbox_id):
            raise ValueError(f"no id of a sandbox: {sandbox_id!r}")
        name, earlier = f"{sandbox_id}@{int(time.time())}", self._names.get((image_id, sandbox_id))
        while True:
            try:
                _name(self._link(places), f"{self._directory}/{image_id}/{name}")
            except FileNotFoundError:  # The first one, or somebody has just taken away what was there.
                (self._directory / image_id).mkdir(mode=0o700, parents=True, exist_ok=True)
                self._link_to.pop(places, None)
                continue
            self._names[image_id, sandbox_id] = name
            if earlier is not None and earlier != name:
                self._unlink(image_id, earlier)
            return

    def drop(self, image_id: str, sandbox_id: str) -> None:
        """Say that a sandbox has it no more."""
        name = self._names.pop((image_id, sandbox_id), None)
        if name is not None:
            self._unlink(image_id, name)

    def used_at(self, image_id: str) -> float | None:
        """When a sandbox last began or ended with it, in seconds since the epoch; None if none has."""
        try:
            return os.stat(self._directory / image_id).st_mtime
        except FileNotFoundError:
            return None

    def alive(self, image_id: str) -> list[str]:
        """The sandboxes that have it."""
        return sorted({_sandbox_of(name) for name in self._seen(image_id) if self._lives(image_id, name)})

    def tidy(self, image_id: str) -> None:
        """Take uses away whose sandboxes have gone; `used_at` stays."""
        directory = self._directory / image_id
        with suppress(FileNotFoundError):
            before = os.stat(directory)
            dead = [name for name in self._seen(image_id) if not self._lives(image_id, name)]
            for name in dead:
                self._unlink(image_id, name)
            if dead:
                os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))

    def forget(self, image_id: str) -> None:
        """Take the directory of an image that has gone away, unless a sandbox has just come."""
        self.tidy(image_id)
        with suppress(OSError):
            os.rmdir(self._directory / image_id)

    def _seen(self, image_id: str) -> list[str]:
        try:
            return os.listdir(self._directory / image_id)
        except FileNotFoundError:
            return []

    def _unlink(self, image_id: str, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._directory}/{image_id}/{name}")

    def _lives(self, image_id: str, name: str) -> bool:
        use = f"{self._directory}/{image_id}/{name}"
        sandbox_id, _, seconds = name.partition("@")
        try:
            # One of an earlier version, without seconds, is a link to the place itself.
            os.stat(f"{use}/{sandbox_id}" if seconds else use)
        except (FileNotFoundError, NotADirectoryError):
            try:
                return time.time() - (float(seconds) if seconds else os.lstat(use).st_mtime) < BEGINNING_SECONDS
            except (FileNotFoundError, ValueError):
                return False
        except OSError:
            return True  # It cannot be seen, so nobody may say that it has gone.
        return True

    def _link(self, places: str) -> str:
        """The link whose names uses are. It leads there from a directory of uses."""
        found = self._link_to.get(places)
        if found is None:
            from_uses = os.path.join(os.path.realpath(self._directory), "image")
            relative = os.path.relpath(os.path.realpath(places), from_uses)
            found = f"{self._links}/{hashlib.sha256(relative.encode()).hexdigest()[:32]}"
            self._links.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in os.listdir(self._links):
                with suppress(OSError):
                    if not os.path.exists(os.path.normpath(os.path.join(from_uses, os.readlink(self._links / name)))):
                        os.unlink(self._links / name)
            with suppress(FileExistsError):
                os.symlink(relative, found)
            self._link_to[places] = found
        return found


def _name(link: str, use: str) -> None:
    """One more name of a link; a link of its own where the disk knows no such names, or it has all that it can have."""
    try:
        os.link(link, use, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        with suppress(FileExistsError):
            os.symlink(os.readlink(link), use)


def _sandbox_of(name: str) -> str:
    return name.partition("@")[0]
