"""Errors of the supervisor, in the form of `wire.errors.ErrorBody`. Standard library only."""

from __future__ import annotations

import errno
import os
from typing import Any

from aviato.trees.errors import TreeError, shown

FILE_REASONS = {
    errno.ENOENT: "no_such_file",
    errno.EISDIR: "is_a_directory",
    errno.ENOTDIR: "not_a_directory",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EEXIST: "file_exists",
    errno.ENOTEMPTY: "directory_not_empty",
    errno.EFBIG: "too_large",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EROFS: "read_only",
    errno.ENXIO: "not_a_regular_file",
    errno.EAGAIN: "timeout",
}
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The kernel has nothing left to open a file by."""


class Refused(Exception):
    """What a request gets instead of a reply."""

    def __init__(self, code: str, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.body: dict[str, Any] = {"code": code, "message": message, **fields}


OF_THE_KERNEL = "the kernel's, and no file of the sandbox: a command can read it, if anybody may"


class OfTheKernel(OSError):
    """What is at a path is the kernel's, or seen by way of what process 1 has, and no file of the sandbox."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ENXIO, OF_THE_KERNEL, path)


def file_error(path: str, reason: str, message: str) -> Refused:
    """A `SandboxFileError`."""
    return Refused("FILE", f"{path!r}: {message}", reason=reason, filepath=path)


def os_file_error(path: str, error: OSError) -> Refused:
    """The `SandboxFileError` of an operating system error."""
    number = error.errno or 0
    if isinstance(error, OfTheKernel):
        return file_error(path, FILE_REASONS[number], OF_THE_KERNEL)
    return file_error(path, FILE_REASONS.get(number, "file"), os.strerror(number) if number else str(error))


def entry_error(path: str, error: OSError | TreeError | Refused) -> Refused:
    """The `SandboxFileError` of what went wrong with an entry of a tree, or with the whole."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, TreeError):
        return file_error(path, error.reason, str(error))
    refused = os_file_error(path, error)
    if isinstance(error.filename, bytes) and error.filename:
        return file_error(path, refused.body["reason"], f"{shown(error.filename)}: {os.strerror(error.errno or 0)}")
    return refused


def invalid(message: str) -> Refused:
    """An `AviatoValidationError`."""
    return Refused("VALIDATION", message, reason="invalid")


def unknown_exec(exec_id: str) -> Refused:
    """An `ExecNotFoundError`."""
    return Refused("EXEC_NOT_FOUND", f"the sandbox knows no command {exec_id!r}", reason="exec_not_found")
