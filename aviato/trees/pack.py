"""A directory tree as an archive, in bounded steps, while others may change it. Standard library only."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from aviato.trees import tar
from aviato.trees.errors import TreeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE_BYTES = 256 << 10
LARGEST_PENDING_BYTES = 32 << 20
"""Names of directories that are still to be visited: more of them would not fit memory."""

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a FIFO, a device or a file with a lease on it must wait for nobody.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_SWAPPED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""Errors of an entry that has gone, or has become something else since it was looked at."""


BLOCK_BYTES = 512
"""What `st_blocks` counts."""


class Surplus:
    """How much longer the copy of a tree may be than what it takes on disk: holes are copied, and a file for each of its names.

    Args:
        most_bytes: of all files together.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._bytes = 0

    def take(self, found: os.stat_result, below: bytes) -> None:
        """Count a file.

        Raises:
            TreeError: it is one too many.
        """
        own = min(found.st_size, found.st_blocks * BLOCK_BYTES) // max(1, found.st_nlink)
        self._bytes += found.st_size - own
        if self._bytes > self._most:
            why = f"is one file too many: holes and hard links would make the copy over {self._most >> 30} GiB longer"
            raise TreeError(below, "too_large", why)


class _Below(bytes):
    """A name that counts from the top of a tree."""


def open_below(top: int, path: bytes) -> int:
    """A descriptor of a directory, each name on the way opened by itself and no link followed.

    Args:
        top: descriptor of the directory from which the path counts.
        path: names with slashes between; empty for the top.
    """
    current = os.open(".", DIRECTORY_FLAGS, dir_fd=top)
    for name in path.split(b"/") if path else ():
        try:
            inner = os.open(name, DIRECTORY_FLAGS, dir_fd=current)
        finally:
            os.close(current)
        current = inner
    return current


def pack(
    top: int,
    skipped: list[bytes] | None = None,
    foreign: Callable[[int], bool] = lambda folder: False,
    surplus: Surplus | None = None,
) -> Iterator[bytes]:
    """The archive of what is in a directory. What disappears meanwhile is left out; links are not followed.

    Args:
        top: a descriptor of it.
        skipped: gets the names of FIFOs, sockets and devices, which are left out then; without it they are announced without
            contents, for the other side to leave out.
        foreign: asked with a descriptor of each directory below, whether nothing in it belongs to the tree.
        surplus: what holes and hard links may add; None: anything.

    Raises:
        TreeError: a file that shrank while it was read, a tree with too many directories, or with more than `surplus`.
        OSError: with the entry's name below the top as its `filename`.
    """
    found = os.fstat(top)
    yield tar.header(_member(b".", tar.DIRECTORY, found))
    pending = [b""]
    size = 0
    while pending:
        path = pending.pop()
        size -= len(path)
        try:
            folder = open_below(top, path)
        except OSError as error:
            if error.errno not in _SWAPPED:
                raise named(error, path) from None
            yield b""
            continue
        try:
            if path and foreign(folder):
                continue
            for name in _names(folder, path):
                below = path + b"/" + name if path else name
                for piece in _entry(folder, name, below, skipped, surplus):
                    if piece is None:
                        pending.append(below)
                        size += len(below)
                        if size > LARGEST_PENDING_BYTES:
                            raise TreeError(below, "too_large", "is one directory too many to copy")
                    else:
                        yield piece
        finally:
            os.close(folder)
    yield tar.END


def _names(folder: int, path: bytes) -> Iterator[bytes]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield os.fsencode(entry.name)
    except OSError as error:
        raise named(error, path) from None


def _entry(
    folder: int, name: bytes, below: bytes, skipped: list[bytes] | None, surplus: Surplus | None
) -> Iterator[bytes | None]:
    """The archive of one entry; None for a directory, which the caller visits later."""
    if len(below) >= tar.LONGEST_NAME_BYTES:
        raise TreeError(
            below, "too_large", f"has a path of more than {tar.LONGEST_NAME_BYTES} bytes, the most that can be copied"
        )
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            yield tar.header(_member(below, tar.DIRECTORY, found))
            yield None
        elif stat.S_ISLNK(found.st_mode):
            yield tar.header(_member(below, tar.LINK, found, os.readlink(name, dir_fd=folder)))
        elif stat.S_ISREG(found.st_mode):
            yield from _file(folder, name, below, surplus)
        elif skipped is None:
            yield tar.header(_member(below, tar.OTHER, found))
        else:
            skipped.append(below)
            yield b""
    except OSError as error:
        if error.errno not in _SWAPPED:
            raise named(error, below) from None
        yield b""


def _file(folder: int, name: bytes, below: bytes, surplus: Surplus | None) -> Iterator[bytes]:
    fd = os.open(name, _FILE_FLAGS, dir_fd=folder)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return  # Somebody has put something else in its place.
        if surplus is not None:
            surplus.take(found, below)
        yield tar.header(_member(below, tar.FILE, found))
        left = found.st_size
        while left:
            piece = os.read(fd, min(PIECE_BYTES, left))
            if not piece:
                raise TreeError(below, "file", "became shorter while it was read")
            left -= len(piece)
            yield piece
        yield tar.padding(found.st_size)
    finally:
        os.close(fd)


def _member(name: bytes, kind: bytes, found: os.stat_result, target: str | bytes = b"") -> tar.Member:
    size = found.st_size if kind == tar.FILE else 0
    return tar.Member(name, kind, stat.S_IMODE(found.st_mode) & 0o777, size, int(found.st_mtime), os.fsencode(target))


def named(error: OSError, path: bytes) -> OSError:
    """The error with the entry's name below the top, unless it has one."""
    if isinstance(error.filename, _Below):
        return error
    return OSError(error.errno, os.strerror(error.errno or 0), _Below(path))


def gathered(pieces: Iterator[bytes], size: int, steps: int) -> Iterator[bytes]:
    """The same bytes in pieces of about `size`, or of what so many steps give; a large piece is passed on as it is."""
    held: list[bytes] = []
    length = count = 0
    for piece in pieces:
        held.append(piece)
        length += len(piece)
        count += 1
        if length >= size or count >= steps:
            yield held[0] if count == 1 else b"".join(held)
            held.clear()
            length = count = 0
    if length:
        yield b"".join(held)
