"""Copies of a Dockerfile on their way into the sandbox of a build."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING

from aviato.building.copy_files import archive, together, whole
from aviato.building.path_patterns import WILD, compiled
from aviato.core import files, transfer
from aviato.exceptions import SandboxFileError
from aviato.log import logger
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from aviato.aio.async_sandbox import AsyncSandbox
    from aviato.building.copy_files import CopyFiles, Found
    from aviato.core.lifecycle import SandboxHandle

NAMES_AT_ONCE = 500
"""Of what one command gives to another owner."""


async def place(sandbox: AsyncSandbox, step: CopyFiles, found: list[Found]) -> None:
    """Copy files in.

    Args:
        sandbox: that they come into.
        step: how.
        found: what its sources are.

    Raises:
        OSError, TreeError: the caller's files cannot be read.
        ValueError: several have one name to go to.
        SandboxFileError, SandboxExecutionError: it does not work inside.
    """
    handle = sandbox._handle
    if not found:
        return  # Patterns may match nothing.
    folder, name = step.destination, None
    made: list[str] = []
    if not folder.endswith("/") and not found[0].is_directory and not await _is_directory(handle, folder):
        if len(found) > 1:
            raise ValueError(f"{step.destination!r} is the name of one file, and there are {len(found)}; put a / behind it")
        folder, name = posixpath.split(folder)
    folder = folder.rstrip("/") or "/"
    above = folder
    while above != "/" and await _kind(handle, above) is None:
        made.append(above)
        above = posixpath.dirname(above)
    await files.make_directory(handle, folder)
    entries = together(found, step.mode, name)
    await transfer.upload_archive(handle, lambda: archive([*entries.values()]), folder, str(step))
    if step.owner is not None:
        await _give(sandbox, step, [*made, *(posixpath.join(folder, name) for name in entries)])


async def _give(sandbox: AsyncSandbox, step: CopyFiles, names: list[str]) -> None:
    """Have files be its owner's, where sandboxes have users; elsewhere all of an image's files are root's, too."""
    users = await sandbox.exec(["cat", "/proc/self/uid_map"], user="0:0", cwd="/")
    if users.stdout.split()[2:] == ["1"]:
        logger.warning("%s: the sandboxes of this server have one user, so it stays root's", step)
        return
    for number in range(0, len(names), NAMES_AT_ONCE):
        some = names[number : number + NAMES_AT_ONCE]
        await sandbox.exec(["chown", "-h", _owner(str(step.owner)), "--", *some], user="0:0", cwd="/", check=True)


def _owner(text: str) -> str:
    """As `chown` takes it: without a group that of the user, or of a number the same number."""
    if ":" in text:
        return text
    return f"{text}:{text}" if text.isdigit() else f"{text}:"


async def _is_directory(handle: SandboxHandle, path: str) -> bool:
    """Whether a path leads to a directory, by whatever links."""
    kind = await _kind(handle, path)
    if kind == "symlink":
        try:
            await files.list_files(handle, path)
        except SandboxFileError:
            return False
        return True
    return kind == "directory"


async def _kind(handle: SandboxHandle, path: str) -> str | None:
    try:
        return (await files.stat(handle, path)).type
    except SandboxFileError as error:
        if error.reason != "no_such_file":
            raise
        return None


async def fetched(origin: AsyncSandbox, sources: tuple[str, ...], folder: str) -> list[Found]:
    """What sources are in a sandbox.

    Args:
        origin: the sandbox.
        sources: patterns, from its `/`.
        folder: an empty directory of the caller's, which has them afterwards.

    Raises:
        SandboxFileError: there is none, or it cannot be read.
        OSError: the directory cannot be written.
    """
    handle = origin._handle
    found: list[Found] = []
    for source in sources:
        for path in await _matches(handle, source):
            copy = os.path.join(folder, str(len(found)))
            # Links stay as they are, wherever they lead: nothing here follows them.
            await transfer.download(handle, path, copy, outside_links="keep", umask=0)
            found.append(await in_thread(whole, copy, posixpath.basename(path)))
    return found


async def _matches(handle: SandboxHandle, source: str) -> list[str]:
    found = ["/"]
    for name in posixpath.normpath(f"/{source}").strip("/").split("/"):
        if not WILD & set(name):
            found = [posixpath.join(path, name) for path in found]
            continue
        expression = compiled(name)
        inner: list[str] = []
        for path in found:
            if await _is_directory(handle, path):
                entries = [posixpath.basename(entry.path) for entry in await files.list_files(handle, path)]
                inner += [posixpath.join(path, entry) for entry in entries if expression.fullmatch(entry)]
        found = inner
    return sorted(found)
