"""Read-only files of the caller's in a sandbox: written outside its root, mounted into it. Standard library only.

The directories above such a file are mounted onto themselves: whoever renames one of them gets EBUSY, and so cannot put a
file of his own under the same path.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DIRECTORY = "mounted"
"""As `plan.MOUNTED_DIRECTORY`, which this program does not load."""


class Unfit(Exception):
    """A file cannot be mounted where the caller wants it; the message says why."""


def write(content: int, sizes: Iterable[int]) -> list[str]:
    """Cut the content, one file behind the other, into files of the sandbox's place; returns their paths."""
    os.chmod(DIRECTORY, 0o700)
    offset, paths = 0, []
    for number, size in enumerate(sizes):
        path = f"{DIRECTORY}/{number}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        end = offset + size
        while offset < end:
            offset += os.sendfile(fd, content, offset, end - offset) or end
        os.fchmod(fd, 0o444)
        os.close(fd)
        paths.append(path)
    return paths


def make_targets(paths: Iterable[str], pin: Callable[[str], None]) -> None:
    """Make something to mount each file on, and pin the directories above it.

    Raises:
        Unfit: what is there already is in the way.
    """
    pinned: set[str] = set()
    for path in paths:
        try:
            _pin_way(path, pinned, pin)
            if _kind(path) is None:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
            elif _kind(path) != stat.S_IFREG:
                raise Unfit(f"{path!r} cannot be mounted: something that is no regular file is there already")
        except OSError as error:
            raise Unfit(f"{path!r} cannot be mounted: {error.filename}: {error.strerror}") from error


def _pin_way(path: str, pinned: set[str], pin: Callable[[str], None]) -> None:
    above = "/"
    for name in path.split("/")[1:-1]:
        at = os.path.join(above, name)
        if _kind(at) is None:
            os.mkdir(at, 0o755)
        elif _kind(at) == stat.S_IFLNK:
            raise Unfit(f"{path!r} cannot be mounted: {at!r} is a link to {os.readlink(at)!r}; give the path behind it")
        elif _kind(at) != stat.S_IFDIR:
            raise Unfit(f"{path!r} cannot be mounted: {at!r} is no directory")
        # Another device is a mount already.
        if at not in pinned and os.lstat(at).st_dev == os.lstat(above).st_dev:
            pin(at)
        pinned.add(at)
        above = at


def _kind(path: str) -> int | None:
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except FileNotFoundError:
        return None
