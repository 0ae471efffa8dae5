"""What the policy changed of a directory, found by comparing it with a new sandbox: the policy has no say in that.

The policy owns its `.git`, with settings, attributes and hooks that git obeys, so no git runs in its sandbox. What the
directory was before is what a new sandbox of the same image has there, at a commit that the caller names; git runs in that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aviato.exceptions import SandboxExecutionError, SandboxFileError
from aviato.grading.gathering import RESULT_FILES, Results, is_left_out, no_result, take, walk
from aviato.grading.judging import run_command
from aviato.grading.new_sandboxes import nobody_there
from aviato.values.text import encode, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aviato.core.lifecycle import SandboxHandle
    from aviato.grading.arguments import GradeRequest
    from aviato.results import FileInfo

GIT_SECONDS = 300.0
GIT_OUTPUT_BYTES = 64 << 20
_SUBMODULE = b"160000 "
"""The mode of its entry in git's index."""


class Changes(NamedTuple):
    """Where the policy worked.

    Attributes:
        directory: of the sandbox.
        commit: that it was at; None: as the image has it.
        files: path → content that the caller had put there beside the image.
    """

    directory: str
    commit: str | None
    files: Mapping[str, bytes]


async def prepare(place: SandboxHandle, changes: Changes) -> None:
    """Make a new sandbox what the policy's was before.

    Raises:
        SandboxExecutionError: git has no such commit there: `grader_failed`.
    """
    from aviato.core import files

    with nobody_there():
        for path, content in changes.files.items():
            await files.write_file(place, path, content, mode=None)
        if changes.commit is None:
            return
        await _git(place, changes, ["checkout", "--quiet", "--force", "--detach", changes.commit])
        for path, content in changes.files.items():
            if ".git" not in path.split("/"):
                await files.write_file(place, path, content, mode=None)


async def changed_results(
    handle: SandboxHandle, place: SandboxHandle, request: GradeRequest, changes: Changes, results: Results
) -> None:
    """Add what differs to the results.

    Args:
        handle: the policy's sandbox.
        place: a new one, prepared.
        request: what was asked for.
        changes: where to look.
        results: that are there already.

    Raises:
        SandboxFileError: something that changed is no regular file, or there is too much.
    """
    with nobody_there():
        before = await walk(place, changes.directory)
    after = await walk(handle, changes.directory)
    tracked, submodules = (None, frozenset[str]()) if changes.commit is None else await _tracked(place, changes)
    packages = frozenset(path.rsplit("/", 1)[0] for path in before if path.endswith("/__init__.py"))
    packages -= {changes.directory}
    given = {*request.files, *results.contents}
    new = [path for path, info in after.items() if info.type != "directory" and path not in before and path not in given]
    for path in new:
        _check_way(handle, path, before)
    ignored = await _ignored(place, changes, new) if new and tracked is not None else frozenset()

    def stays(path: str) -> bool:
        return is_left_out(path, request, packages) or any(above in submodules for above in _above(path))

    _check_number(handle, changes, sum(path not in ignored and not stays(path) for path in new))
    for path, info in after.items():
        if info.type == "directory" or path in given or path in ignored:
            continue
        if await _is_same(handle, place, path, before.get(path), info):
            continue
        if tracked is not None and path in before and path not in tracked and path not in changes.files:
            continue  # Built, and not the repository's.
        if stays(path):
            results.left_out.append(path)
            continue
        _check_way(handle, path, before)
        if path in before and before[path].type == "directory":
            results.removed.append(path)
        await take(handle, results, path, info)
        if path not in before:
            results.open.add(path)
    _note_removed(request, results, before, after, tracked, given, packages)


def _note_removed(
    request: GradeRequest,
    results: Results,
    before: Mapping[str, FileInfo],
    after: Mapping[str, FileInfo],
    tracked: frozenset[str] | None,
    given: Iterable[str],
    packages: frozenset[str],
) -> None:
    for path, info in before.items():
        if info.type == "directory" or path in given or (path in after and after[path].type != "directory"):
            continue
        if tracked is not None and path not in tracked:
            continue
        if is_left_out(path, request, packages):
            results.left_out.append(path)
        else:
            results.removed.append(path)


async def _is_same(handle: SandboxHandle, place: SandboxHandle, path: str, old: FileInfo | None, new: FileInfo) -> bool:
    """Whether a file is as it was. Whoever sets its time back only hides a change of his own."""
    from aviato.core import files

    if old is None or old.type != new.type or old.size_bytes != new.size_bytes:
        return False
    if old.type != "file":
        return old.link_target == new.link_target
    if old.mode & 0o777 != new.mode & 0o777:
        return False
    return old.mtime == new.mtime or await files.read_file(handle, path) == await files.read_file(place, path)


def _check_number(handle: SandboxHandle, changes: Changes, count: int) -> None:
    """Refuse too many files before any of them is read."""
    if count > RESULT_FILES:
        message = f"{changes.directory!r} has {count} new files, and there may be {RESULT_FILES} results"
        raise no_result(handle, changes.directory, message, "too_large")


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:at]) for at in range(1, len(parts))]


def _check_way(handle: SandboxHandle, path: str, before: Mapping[str, FileInfo]) -> None:
    """Refuse what would be written through a link: there it would be another file."""
    for each in (*_above(path), path):
        old = before.get(each)
        if old is not None and old.type not in ("file", "directory"):
            raise no_result(
                handle, path, f"{path!r} is in the place of a link; a result is a regular file", "not_a_regular_file"
            )


async def apply(place: SandboxHandle, results: Results) -> None:
    """Delete what the policy deleted."""
    from aviato.core import files

    for path in results.removed:
        try:
            with nobody_there():
                await files.remove(place, path, recursive=True)
        except SandboxFileError as error:
            if error.reason not in ("no_such_file", "not_a_directory"):
                raise


async def _tracked(place: SandboxHandle, changes: Changes) -> tuple[frozenset[str], frozenset[str]]:
    """The repository's own files and links at the commit, and the directories of its submodules, whose files are theirs."""
    out = await _git(place, changes, ["ls-files", "--stage", "-z"])
    entries = [entry.split(b"\t", 1) for entry in out.split(b"\0") if entry]
    names = [
        _within(changes, b"\0".join(name for about, name in entries if about.startswith(_SUBMODULE) is is_one))
        for is_one in (False, True)
    ]
    return frozenset(names[0]) | set(changes.files), frozenset(names[1])


async def _ignored(place: SandboxHandle, changes: Changes, paths: list[str]) -> frozenset[str]:
    """Those that the repository, as it was, says are none of its files."""
    # With a dot in front a name is a name: git takes `:!x` for more than that, and would fail.
    inner = ["./" + path[len(changes.directory) :].lstrip("/") for path in paths]
    given = encode("\0".join(inner))
    out = await _git(place, changes, ["check-ignore", "-z", "--stdin", "--no-index"], given, fine=(0, 1))
    return frozenset(_within(changes, out))


def _within(changes: Changes, output: bytes) -> list[str]:
    names = output.decode(errors="replace").split("\0")
    return [f"{changes.directory.rstrip('/')}/{name.removeprefix('./')}" for name in names if name]


async def _git(
    place: SandboxHandle, changes: Changes, arguments: list[str], given: bytes | None = None, fine: tuple[int, ...] = (0,)
) -> bytes:
    """Run git in a new sandbox, which no policy has touched."""
    settings = ["safe.directory=*", "core.quotePath=false", "core.hooksPath=/dev/null", "core.fsmonitor=false"]
    command = [
        "git",
        "-C",
        changes.directory,
        *[part for each in settings for part in ("-c", each)],
        *arguments,
    ]
    result = await run_command(place, command, given, {}, GIT_SECONDS, GIT_OUTPUT_BYTES)
    if result.returncode not in fine or result.timed_out:
        said = shown((result.stderr.strip().splitlines() or [f"returncode {result.returncode}"])[-1])
        raise SandboxExecutionError(
            f"git {arguments[0]} failed in {changes.directory!r} of a new sandbox: {said}. base_commit needs git in the image, "
            "and the repository with that commit in the image or in base_files",
            sandbox_id=place.sandbox_id,
            started=True,
            exec_result=result,
            reason="grader_failed",
            is_infrastructure=True,
            retryable=False,
        )
    return result.stdout_bytes
