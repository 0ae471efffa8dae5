"""Reading files that somebody else has laid out: no link is followed below their directory, and only regular files are read."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from aviato.server.images.image_errors import image_error, quoted
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PIECE_BYTES = 1 << 20


def open_file(directory: int | None, path: str, what: str) -> int:
    """A descriptor of a regular file.

    Args:
        directory: below which it is; None takes the path as its user wrote it, links and all.
        path: of it.
        what: whose file it is, for the message.

    Raises:
        SandboxImageError: there is none, or something else.
    """
    folders, fd = [] if directory is None else path.split("/")[:-1], -1
    opened: list[int] = []
    try:
        for folder in folders:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            directory = os.open(folder, flags, dir_fd=directory)
            opened.append(directory)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if directory is None else os.O_NOFOLLOW)
        fd = os.open(path if directory is None else path.split("/")[-1], flags, dir_fd=directory)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise image_error("damaged_layout", f"{what}: {quoted(path)} is no regular file")
    except FileNotFoundError:
        raise image_error("no_such_file", f"{what}: there is no {quoted(path)}") from None
    except OSError as error:
        raise image_error("damaged_layout", f"{what}: {quoted(path)} cannot be read: {error.strerror}") from error
    finally:
        for one in opened:
            os.close(one)
    return fd


def read_small(fd: int, size: int, offset: int, most_bytes: int, what: str) -> bytes:
    """A whole small file, or a part of one.

    Raises:
        SandboxImageError: it is too large, or shorter than it should be.
    """
    if size > most_bytes:
        raise image_error("manifest_too_large", f"{what} is larger than {most_bytes >> 20} MiB")
    data = os.pread(fd, size, offset)
    if len(data) < size:
        raise image_error("damaged_layout", f"{what} is cut off")
    return data


async def pieces_of(fd: int, offset: int, end: int, what: str) -> AsyncIterator[bytes]:
    """What lies in a file from one byte to another, read in threads."""
    while offset < end:
        try:
            piece = await in_thread(os.pread, fd, min(PIECE_BYTES, end - offset), offset)
        except OSError as error:
            raise image_error("damaged_layout", f"{what} cannot be read: {error.strerror}") from error
        if not piece:
            return
        offset += len(piece)
        yield piece
