"""What the policy made, copied out of its sandbox: files that are named, and those that a pattern finds."""

from __future__ import annotations

import asyncio
import fnmatch
import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxFileError
from aviato.grading.startup import LOADED_CODE, is_loaded_by_itself, is_of_the_system

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aviato.core.lifecycle import SandboxHandle
    from aviato.grading.arguments import GradeRequest
    from aviato.results import FileInfo

RESULT_BYTES = 256 << 20
"""All results of one grade together."""
RESULT_FILES = 10_000
WALKED_ENTRIES = 200_000
"""Of directories, so many are looked at."""
AT_ONCE = 8
"""Requests of one walk."""
NEVER = frozenset((".git", "__pycache__"))
"""Directories that are no results: a policy's `.git` has hooks and filters that git runs, and a cache stands for sources."""


@dataclass
class Results:
    """What is taken over.

    Attributes:
        contents: path → content and permission bits.
        removed: paths of files that the policy has deleted.
        left_out: paths that a pattern found and that are no results, since a grader's tools would load them by themselves.
        open: those of the contents that are there by the policy's own choice.
    """

    contents: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    size_bytes: int = 0


async def named_results(handle: SandboxHandle, request: GradeRequest) -> Results:
    """The files that paths and patterns say.

    Raises:
        SandboxFileError: one is missing, no regular file, or too much.
    """
    from aviato.core import files

    results = Results()
    for path in request.result_paths:
        await take(handle, results, path, await files.stat(handle, path))
    for pattern in request.patterns:
        matched = False
        async for path, info in _matches(handle, pattern):
            matched = True
            if path in request.files or path in results.contents:
                continue
            if is_left_out(path, request):
                results.left_out.append(path)
            else:
                await take(handle, results, path, info)
                results.open.add(path)
        if not matched:
            raise no_result(handle, pattern, f"{pattern!r} matches no file", "no_such_file")
    return results


def leave_out_of_the_system(results: Results, directory: str) -> None:
    """Take out what a pattern found where the sandbox's own programs and settings, or the grader's, lie.

    Args:
        results: of which those that are `open` are looked at.
        directory: in which their relative paths begin.
    """
    for path in sorted(results.open):
        if is_of_the_system(posixpath.normpath(posixpath.join(directory, path))):
            del results.contents[path]
            results.open.discard(path)
            results.left_out.append(path)


async def leave_out_through_links(place: SandboxHandle, results: Results) -> None:
    """Take out what a pattern found and what would be written through a link there: it would be another file.

    Args:
        place: a new sandbox, where none of the results is yet.
        results: of which those that are `open` are looked at.
    """
    from aviato.core import files

    turn = asyncio.Semaphore(AT_ONCE)

    async def kind(path: str) -> str | None:
        async with turn:
            try:
                return (await files.stat(place, path)).type
            except SandboxFileError as error:
                if error.reason == "timeout":
                    raise
                return None

    left, depth = set(results.open), 1
    while left:
        ways = {path: "/".join(path.split("/")[:depth]) or "/" for path in left}
        looked = [*set(ways.values())]
        kinds = dict(zip(looked, await asyncio.gather(*map(kind, looked)), strict=True))
        for path in sorted(path for path in left if kinds[ways[path]] == "symlink"):
            del results.contents[path]
            results.open.discard(path)
            results.left_out.append(path)
        # Where there is no directory there is nothing in it.
        left = {path for path in left if kinds[ways[path]] == "directory" and ways[path] != path}
        depth += 1


def is_left_out(path: str, request: GradeRequest, packages: Sequence[str] | frozenset[str] = ()) -> bool:
    """Whether a file that was not named by itself is none that a grader should find."""
    if is_of_the_system(path) or path.endswith((".pyc", ".pyo")) or (request.mode == "separate" and path.endswith(LOADED_CODE)):
        return True
    return not request.allow_startup_files and is_loaded_by_itself(path, packages)


async def take(handle: SandboxHandle, results: Results, path: str, info: FileInfo) -> None:
    """Copy one file.

    Raises:
        SandboxFileError: it is no regular file, or there is too much.
    """
    from aviato.core import files

    if info.type != "file":
        why = {"directory": "is a directory", "symlink": "is a link"}.get(info.type, "is no regular file")
        hint = f"; write {path + '/'!r} for all that is in it" if info.type == "directory" else ""
        raise no_result(handle, path, f"{path!r} {why}; a result is a regular file{hint}", "not_a_regular_file")
    if len(results.contents) >= RESULT_FILES:
        raise no_result(handle, path, f"there are more than {RESULT_FILES} results; {path!r} is one too many", "too_large")
    _check_size(handle, results, path, info.size_bytes)
    content = await files.read_file(handle, path)
    _check_size(handle, results, path, len(content))
    results.size_bytes += len(content)
    results.contents[path] = (content, info.mode & 0o777)


def _check_size(handle: SandboxHandle, results: Results, path: str, size: int) -> None:
    if size > RESULT_BYTES - results.size_bytes:
        message = f"{path!r} has {size} bytes; the results of one grade may have {RESULT_BYTES >> 20} MiB together"
        raise no_result(handle, path, message, "too_large")


def no_result(handle: SandboxHandle, path: str, message: str, reason: str) -> SandboxFileError:
    """What the policy left is none: a matter of the task."""
    return SandboxFileError(message, filepath=path, sandbox_id=handle.sandbox_id, reason=reason)


async def _matches(handle: SandboxHandle, pattern: str) -> AsyncIterator[tuple[str, FileInfo]]:
    """Entries that a pattern names, in order; of a pattern that ends with `**` all but directories."""
    parts = pattern.split("/")
    plain = next(at for at, part in enumerate(parts) if is_pattern(part))
    start = "/".join(parts[:plain]) or ("/" if pattern.startswith("/") else ".")
    wanted = parts[plain:]
    for path, info in (await walk(handle, start)).items():
        inner = path[len(start) :].lstrip("/") if start not in (".", "/") else path.lstrip("/")
        if info.type != "directory" and fits(inner.split("/"), wanted):
            yield path, info


async def walk(handle: SandboxHandle, start: str) -> dict[str, FileInfo]:
    """All entries below a directory, by path, without following links.

    Args:
        handle: of the sandbox.
        start: the directory, absolute or relative; the paths begin with it, unless it is `.`.

    Raises:
        SandboxFileError: it is no directory, or has too many entries.
    """
    from aviato.core import files

    info = await files.stat(handle, start)
    if info.type != "directory":
        raise no_result(handle, start, f"{start!r} is no directory", "not_a_directory")
    found: dict[str, FileInfo] = {}
    level = [start]
    turn = asyncio.Semaphore(AT_ONCE)

    async def entries(path: str) -> list[FileInfo]:
        async with turn:
            return await files.list_files(handle, path)

    while level:
        listed = await asyncio.gather(*map(entries, level))
        below = []
        for path, infos in zip(level, listed, strict=True):
            for each in infos:
                name = each.path.rsplit("/", 1)[-1]
                if name in NEVER:
                    continue
                inner = name if path == "." else f"{path.rstrip('/')}/{name}"
                found[inner] = each
                if each.type == "directory":
                    below.append(inner)
        if len(found) > WALKED_ENTRIES:
            message = f"{start!r} has more than {WALKED_ENTRIES} files and directories"
            raise no_result(handle, start, message, "too_large")
        level = below
    return dict(sorted(found.items()))


def is_pattern(text: str) -> bool:
    """Whether a path leaves it open which file is meant. Brackets alone do not: files have them in their names."""
    return "*" in text or "?" in text


def fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a path is what a pattern says; `**` is any number of directories, and at its end all that is below."""
    if not wanted:
        return not parts
    if wanted[0] == "**":
        if len(wanted) == 1:
            return bool(parts)
        return any(fits(parts[at:], wanted[1:]) for at in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], wanted[0]) and fits(parts[1:], wanted[1:])
