"""Files of the sandbox, seen from inside it: plain paths, plain system calls, bounded steps. Standard library only."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor.errors import file_error, os_file_error
from aviato.server.supervisor.paths import DIRECTORY, make_directories, open_path
from aviato.trees.removal import remove_tree
from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aviato.server.supervisor.connection import Connection

LARGEST_LISTING = 100_000
LARGEST_LISTING_BYTES = 32 << 20
ENTRIES_A_TURN = 256
PIECE_BYTES = 64 << 10
SLOW_READER_SECONDS = 0.005


def readable(name: str) -> str:
    """A name as text that every layer can carry: bytes that are no UTF-8, which only code inside makes, become U+FFFD."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def describe(path: str, found: os.stat_result, link: str | None = None) -> dict[str, Any]:
    """A `wire.files.FileStat`."""
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    return {
        "path": readable(path),
        "size_bytes": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "mtime": found.st_mtime,
        "type": kinds.get(stat.S_IFMT(found.st_mode), "other"),
        "link_target": None if link is None else readable(link),
    }


def stat_path(path: str) -> dict[str, Any]:
    """What is at a path; a link at its end is not followed."""
    folder, name = os.path.split(path)
    whole = name in ("", ".", "..")
    try:
        fd = open_path(path if whole else folder, DIRECTORY, kernel=whole)
        try:
            return describe(path, os.fstat(fd)) if whole else _describe_entry(fd, name, path)
        finally:
            os.close(fd)
    except OSError as error:
        raise os_file_error(path, error) from None


def _describe_entry(folder: int, name: str, path: str) -> dict[str, Any]:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return describe(path, found, os.readlink(name, dir_fd=folder) if stat.S_ISLNK(found.st_mode) else None)


def list_directory(path: str, connection: Connection, channel: int) -> Iterator[float]:
    """A job that sends the entries of a directory, sorted by name, as one JSON array in pieces.

    What code inside can make long, names and targets of links, is bounded: every piece fits a frame, the whole fits memory.
    """
    entries: list[tuple[str, str]] = []
    size = 0
    shown = os.path.dirname(path) if os.path.basename(path) == "." else path
    folder = -1
    try:
        folder = open_path(path, os.O_RDONLY | os.O_DIRECTORY)
        with os.scandir(folder) as found:
            for count, entry in enumerate(found, 1):
                if count > LARGEST_LISTING:
                    raise file_error(path, "too_large", f"the directory has more than {LARGEST_LISTING} entries")
                try:
                    described = _describe_entry(folder, entry.name, os.path.join(shown, entry.name))
                except OSError:
                    continue  # Gone meanwhile.
                text = json.dumps(described, separators=(",", ":"))
                entries.append((entry.name, text))
                size += len(text)
                if size > LARGEST_LISTING_BYTES:
                    raise file_error(path, "too_large", f"the listing has more than {LARGEST_LISTING_BYTES} bytes")
                if count % ENTRIES_A_TURN == 0:
                    yield True
    except OSError as error:
        raise os_file_error(path, error) from None
    finally:
        if folder >= 0:
            os.close(folder)
    entries.sort()
    piece = "["
    for number, (_, text) in enumerate(entries):
        piece += f",{text}" if number else text
        if len(piece) >= PIECE_BYTES:
            connection.send(FrameType.DATA, piece.encode(), channel=channel)
            piece = ""
            yield True
            while connection.full:
                yield SLOW_READER_SECONDS
    connection.send(FrameType.DATA, f"{piece}]".encode(), channel=channel)
    connection.send(FrameType.END, channel=channel)


def make_directory(path: str, mode: int) -> None:
    """Make a directory and its parents; fine if it is there."""
    try:
        try:
            fd, made = make_directories(path)
        except NotADirectoryError:
            # Itself, or something above it?
            os.close(open_path(path.rstrip("/"), os.O_PATH | os.O_NOFOLLOW))
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
        try:
            if made and mode != 0o755:
                os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            os.close(fd)
    except OSError as error:
        raise os_file_error(path, error) from None


def remove(path: str, recursive: bool) -> Iterator[bool]:
    """A job that removes a file, an empty directory, or a tree; never the root."""
    name = os.path.basename(path.rstrip("/"))
    try:
        if name in ("", ".", ".."):
            raise file_error(path, "permission_denied", "the root, '.' and '..' cannot be removed")
        parent = open_path(os.path.dirname(path.rstrip("/")) or "/", DIRECTORY)
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=parent)
            elif recursive:
                yield from remove_tree(parent, name)
            else:
                os.rmdir(name, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as error:
        raise os_file_error(path, error) from None
