"""Which files can be mounted into a sandbox, as both sides see it. Without pydantic: the facade checks by it at the call."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_FILES = 64
MOST_BYTES = 8 << 20
"""Of all files of a sandbox together: they travel with the create and stay on record while it lives."""
MOST_PATH_BYTES = 1024
KEPT = ("proc", "dev", "sys", ".aviato")
"""Directories in / that are ours to fill."""


def check_mounts(mounts: Sequence[tuple[str, int]]) -> None:
    """See whether files of these paths and sizes in bytes can be mounted together.

    Raises:
        AviatoValidationError: they cannot; the message names the path.
    """
    if len(mounts) > MOST_FILES:
        raise _wrong(f"has {len(mounts)} files; at most {MOST_FILES} can be mounted, upload() takes whole directories")
    paths = set()
    for path, _ in mounts:
        problem = _problem(path)
        if problem is not None:
            raise _wrong(f"mount_path {path[:100]!r} {problem}")
        if path in paths:
            raise _wrong(f"mount_path {path!r} is given twice")
        paths.add(path)
    for path in paths:
        above = posixpath.dirname(path)
        while above != "/":
            if above in paths:
                raise _wrong(f"mount_path {path!r} lies below {above!r}, which is a file")
            above = posixpath.dirname(above)
    total = sum(size for _, size in mounts)
    if total > MOST_BYTES:
        raise _wrong(f"holds {total} bytes; at most {MOST_BYTES} can be mounted, write_file() takes any size")


def _problem(path: str) -> str | None:
    if not path.startswith("/"):
        return "must be an absolute path"
    if path == "/":
        return "must name a file, not the root"
    if "\0" in path or posixpath.normpath(path) != path or path.startswith("//"):
        return "must be normalised: no '..', '.', double or trailing slashes"
    parts = path.encode(errors="surrogatepass").split(b"/")
    if len(b"/".join(parts)) > MOST_PATH_BYTES or max(map(len, parts)) > 255:
        return f"is too long: at most {MOST_PATH_BYTES} bytes, and 255 between two slashes"
    if path.split("/")[1] in KEPT:
        return f"lies in a directory of the system's own ({', '.join(f'/{name}' for name in KEPT)})"
    return None


def _wrong(problem: str) -> AviatoValidationError:
    return AviatoValidationError(f"mounted_files: {problem}", field_violations={"mounted_files": problem})
