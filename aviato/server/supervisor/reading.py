"""Files and trees on their way out. Standard library only."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from aviato.server.supervisor import lent
from aviato.server.supervisor.errors import Refused, file_error, os_file_error
from aviato.server.supervisor.files import describe
from aviato.server.supervisor.paths import is_of_the_kernel, open_path
from aviato.server.supervisor.transfers import Outgoing
from aviato.trees.pack import Surplus, gathered, pack
from aviato.wire.frames import FrameType
from aviato.wire.memory import LEAST_BYTES, MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aviato.server.supervisor.connection import Connection

PIECE_BYTES = 256 << 10
ENTRIES_A_PIECE = 64
LARGEST_BYTES = 4 << 30
"""What no file that was made inside can pass; one of an image may."""


def read_file(
    path: str,
    max_bytes: int | None,
    window: int,
    connection: Connection,
    channel: int,
    offset: int = 0,
    version: str | None = None,
) -> Outgoing:
    """A regular file, from an offset on; with a `version`, only if it is still as it was then."""
    fd, found = _open(path, max_bytes)
    try:
        _check_version(path, found, version)
    except Refused:
        os.close(fd)
        raise
    if offset:
        os.lseek(fd, offset, os.SEEK_SET)
    connection.send_json(FrameType.REPLY, {**describe(path, found), "version": version_of(found)}, channel=channel)
    most = max(found.st_size, LARGEST_BYTES) if max_bytes is None else max_bytes
    return Outgoing(_contents(fd, path, offset, most), path, window, connection, channel)


def read_into(memory: int, path: str, connection: Connection, channel: int, offset: int, version: str | None) -> bool:
    """A regular file, to memory that came for it; False where it is so small or so large that it goes by the connection."""
    fd, found = _open(path, None)
    try:
        _check_version(path, found, version)
        if not LEAST_BYTES <= found.st_size - offset <= MOST_BYTES:
            return False
        os.lseek(fd, offset, os.SEEK_SET)
        size = lent.fill(memory, fd, MOST_BYTES)
    except OSError as error:
        raise os_file_error(path, error) from None
    finally:
        os.close(fd)
    if size is None:
        return False
    said = {**describe(path, found), "version": version_of(found), "memory_bytes": size}
    connection.send_json(FrameType.REPLY, said, channel=channel)
    connection.send(FrameType.END, channel=channel, offset=0)
    return True


def read_tree(path: str, window: int, connection: Connection, channel: int) -> Outgoing:
    """A directory, as an archive."""
    try:
        top = open_path(path, os.O_RDONLY | os.O_DIRECTORY)
        found = os.fstat(top)
    except OSError as error:
        raise os_file_error(path, error) from None
    connection.send_json(FrameType.REPLY, describe(path, found), channel=channel)
    return Outgoing(_packed(top), path, window, connection, channel)


def _check_version(path: str, found: os.stat_result, version: str | None) -> None:
    if version is not None and version != version_of(found):
        raise file_error(path, "changed", "it was changed while it was read, and its connection was cut; read it again")


def version_of(found: os.stat_result) -> str:
    """What another content of a file, or another file of its name, would change."""
    return f"{found.st_dev:x}.{found.st_ino:x}.{found.st_size:x}.{found.st_mtime_ns:x}.{found.st_ctime_ns:x}"


def _contents(fd: int, path: str, offset: int, most_bytes: int) -> Iterator[bytes]:
    """The rest of a file, which code inside may write to as fast as it is read."""
    try:
        while data := os.read(fd, PIECE_BYTES):
            offset += len(data)
            if offset > most_bytes:
                raise _too_large(path, most_bytes)
            yield data
    finally:
        os.close(fd)


def _packed(top: int) -> Iterator[bytes]:
    try:
        pieces = pack(top, foreign=is_of_the_kernel, surplus=Surplus(LARGEST_BYTES))
        yield from gathered(pieces, PIECE_BYTES, ENTRIES_A_PIECE)
    finally:
        os.close(top)


def _open(path: str, max_bytes: int | None) -> tuple[int, os.stat_result]:
    try:
        # Looked at before it is opened: opening a FIFO or a device does something to whoever is at its other end.
        handle = open_path(path, os.O_PATH)
        try:
            found = os.fstat(handle)
            if stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, "")
            if not stat.S_ISREG(found.st_mode):
                raise file_error(path, "not_a_regular_file", "Not a regular file")
            if max_bytes is not None and found.st_size > max_bytes:
                raise _too_large(path, max_bytes)
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{handle}", flags), found
        finally:
            os.close(handle)
    except OSError as error:
        raise os_file_error(path, error) from None


def _too_large(path: str, max_bytes: int) -> Refused:
    return file_error(path, "too_large", f"larger than {max_bytes} bytes")
