"""Files on the wire. Contents travel as `application/octet-stream`, trees as archives; this is the rest."""

from __future__ import annotations

from typing import Literal, NamedTuple

from aviato.wire.base import ResponseModel

ARCHIVE = "application/x-tar"
FILE_MODE_HEADER = "Aviato-File-Mode"
"""Permission bits of a file that is read, octal."""


FILE_VERSION_HEADER = "Aviato-File-Version"
"""Of a file that is read: given back with an offset, it makes sure that the rest is of the same content."""
LOG_OFFSET_HEADER = "Aviato-Log-Offset"
"""Where in the main command's output an answer begins."""


class FilePart(NamedTuple):
    """A part of a file that is written, by the key of the whole."""

    key: str
    offset: int = 0
    last: bool = True


class FileStat(ResponseModel):
    """One file of a sandbox."""

    path: str
    size_bytes: int
    mode: int
    mtime: float
    type: Literal["file", "directory", "symlink", "other"]
    link_target: str | None = None


class FileList(ResponseModel):
    """Answer of `GET …/files/list`: the entries of a directory, sorted by name."""

    files: list[FileStat]
