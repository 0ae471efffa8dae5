"""Files on the wire. Contents travel as `application/octet-stream`, trees as archives; this is the rest."""

from __future__ import annotations

from typing import Literal

from aviato.wire.base import ResponseModel

ARCHIVE = "application/x-tar"
FILE_MODE_HEADER = "Aviato-File-Mode"
"""Permission bits of a file that is read, octal."""


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
