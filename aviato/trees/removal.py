"""Removing a directory tree that someone hostile may have made: any depth and mode, no link followed. Standard library only."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS_A_TURN = 256
DEPTH = 48
"""Deeper directories are moved up to the top first: neither the stack of descriptors nor recursion bounds the depth."""
RESCANS = 1000
"""How often a directory may have got new entries meanwhile before that is an error."""


class _Folder:
    def __init__(self, parent: int, name: str) -> None:
        self.parent = parent
        self.name = name
        self.rescans = 0
        self.fd = open_directory(parent, name)


def open_directory(parent: int, name: str) -> int:
    """A descriptor of a directory, made readable, writable and searchable for its owner if need be."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=parent)
    except PermissionError:
        path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{path}", 0o700)
        finally:
            os.close(path)
        return os.open(name, flags, dir_fd=parent)
    if os.fstat(fd).st_mode & 0o700 != 0o700:
        try:
            os.fchmod(fd, 0o700)
        except OSError:
            os.close(fd)
            raise
    return fd


def remove_tree(parent: int, name: str) -> Iterator[bool]:
    """A job that removes a directory and all that is in it, in bounded steps.

    Args:
        parent: descriptor of the directory that holds it.
        name: its name there.

    Raises:
        OSError: something cannot be removed.
    """
    stack = [_Folder(parent, name)]
    try:
        while stack:
            folder = stack[-1]
            inner: str | None = None
            for count, entry in enumerate(_entries(folder.fd), 1):
                if not _remove_entry(folder.fd, entry):
                    if len(stack) < DEPTH:
                        inner = entry.name
                        break
                    # Its `..` changes, so it has to be writable; and no name that someone else could have taken.
                    os.close(open_directory(folder.fd, entry.name))
                    os.rename(entry.name, f".aviato-{os.urandom(8).hex()}", src_dir_fd=folder.fd, dst_dir_fd=stack[0].fd)
                if count % STEPS_A_TURN == 0:
                    yield True
            if inner is not None:
                stack.append(_Folder(folder.fd, inner))
                continue
            _leave(stack)
            yield True
    finally:
        for folder in stack:
            os.close(folder.fd)


def _leave(stack: list[_Folder]) -> None:
    folder = stack[-1]
    try:
        os.rmdir(folder.name, dir_fd=folder.parent)
    except OSError as error:
        folder.rescans += 1
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or folder.rescans > RESCANS:
            raise
        return
    stack.pop()
    os.close(folder.fd)


def _entries(fd: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(fd) as found:
        yield from found


def _remove_entry(folder: int, entry: os.DirEntry[str]) -> bool:
    """Remove one entry; False if it is a directory with something in it."""
    try:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=folder)
        else:
            os.rmdir(entry.name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True
