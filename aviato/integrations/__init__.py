"""Other tools that aviato speaks to; each module needs the package that it is named after only when it is used.

A module whose classes derive from a framework's is for that framework's users to import; it names the extra that brings it.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato.exceptions import AviatoError, SandboxFileError

T = TypeVar("T")

_MISSING = frozenset({"no_such_file", "not_a_directory"})
_REFUSED = frozenset({"permission_denied", "read_only", "not_a_regular_file"})


def missing(package: str, extra: str, error: ImportError) -> ImportError:
    """What to raise where a framework cannot be imported.

    Args:
        package: as it is imported.
        extra: of aviato, that installs it.
        error: why it could not.
    """
    from aviato.installation import extra_command

    return ImportError(f"{package} cannot be imported ({error}); install it with: {extra_command(extra)}", name=error.name)


def os_error(error: SandboxFileError, name: str) -> OSError:
    """The builtin error that frameworks expect of a file.

    Args:
        error: what is wrong with the file.
        name: the path as its caller gave it.
    """
    if error.reason in _MISSING:
        return FileNotFoundError(errno.ENOENT, "No such file or directory", name)
    if error.reason == "is_a_directory":
        return IsADirectoryError(errno.EISDIR, "Is a directory", name)
    if error.reason in _REFUSED:
        return PermissionError(errno.EACCES, str(error), name)
    if error.reason == "timeout":
        return TimeoutError(errno.ETIMEDOUT, str(error), name)
    return OSError(errno.ENOSPC if error.reason == "disk_full" else errno.EIO, str(error), name)


async def settled(work: Awaitable[T], name: str, translated: Callable[[AviatoError, str], Exception]) -> T:
    """Wait for an operation; what went wrong is raised as a framework knows it.

    Args:
        work: the operation.
        name: the path that its caller gave, if there is one.
        translated: the framework's error for ours and that path.
    """
    from aviato.exceptions import AviatoError

    try:
        return await work
    except AviatoError as error:
        raise translated(error, name) from error
