"""Copies of a Dockerfile on their way into the sandbox of a build."""

from __future__ import annotations

import posixpath
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from aviato.building.copy_files import LARGEST_ID, Entry, archive, together
from aviato.core import files, transfer
from aviato.exceptions import SandboxFileError
from aviato.log import logger
from aviato.trees import tar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.aio.async_sandbox import AsyncSandbox
    from aviato.building.copy_files import CopyFiles, Found
    from aviato.core.lifecycle import SandboxHandle

ACCOUNTS_BYTES = 4 << 20
"""No list of users or groups is longer."""


async def place(sandbox: AsyncSandbox, step: CopyFiles, found: list[Found]) -> None:
    """Copy files in.

    Args:
        sandbox: that they come into.
        step: how.
        found: what its sources are.

    Raises:
        OSError, TreeError: the caller's files cannot be read.
        ValueError: several have one name to go to, or there is no such owner.
        SandboxFileError: it does not work inside.
    """
    handle = sandbox._handle
    if not found:
        return  # Patterns may match nothing.
    folder, name = step.destination, None
    if not folder.endswith("/") and not found[0].is_directory and not await is_directory(handle, folder):
        if len(found) > 1:
            raise ValueError(f"{step.destination!r} is the name of one file, and there are {len(found)}; put a / behind it")
        folder, name = posixpath.split(folder)
    owner = None if step.owner is None else await _owner(handle, step.owner)
    above, made = await _missing(handle, folder.rstrip("/") or "/")
    entries = [Entry(path, tar.DIRECTORY, 0o755, mtime=int(time.time())) for path in made]
    entries += _below(made[-1] if made else "", list(together(found, step.mode, name).values()))
    if owner is not None:
        entries = _given(entries, *owner)
    try:
        await transfer.upload_archive(handle, lambda: archive(entries), above, str(step))
    except SandboxFileError as error:
        if error.reason != "owner":
            raise
        logger.warning("%s: the sandboxes of this server have one user, so all is root's", step)
        roots = _given(entries, 0, 0)
        await transfer.upload_archive(handle, lambda: archive(roots), above, str(step))


async def _missing(handle: SandboxHandle, folder: str) -> tuple[str, list[str]]:
    """The directory above that is there, and those that are to be made below it, each by its path from there."""
    above = folder
    while above != "/" and await _kind(handle, above) is None:
        above = posixpath.dirname(above)
    await files.make_directory(handle, above)  # A link that leads nowhere is told as such.
    names = posixpath.relpath(folder, above).split("/") if folder != above else []
    return above, ["/".join(names[: number + 1]) for number in range(len(names))]


def _below(top: str, entries: Sequence[Entry]) -> list[Entry]:
    """Entries by their names from a directory further above."""
    if not top:
        return list(entries)
    return [
        replace(entry, name=f"{top}/{entry.name}", target=f"{top}/{entry.target}" if entry.first else entry.target)
        for entry in entries
    ]


def _given(entries: Sequence[Entry], uid: int, gid: int) -> list[Entry]:
    return [replace(entry, uid=uid, gid=gid) for entry in entries]


async def _owner(handle: SandboxHandle, text: str) -> tuple[int, int]:
    """A user and a group by the lists of the image; without a group that of the user, or of a number the same number."""
    user, colon, group = text.partition(":")
    if _is_number(user):
        uid, gid = int(user), int(user)
    else:
        fields = await _account(handle, "passwd", user, text)
        uid, gid = int(fields[2]), int(fields[3])
    if colon and group:
        gid = int(group) if _is_number(group) else int((await _account(handle, "group", group, text))[2])
    if max(uid, gid) > LARGEST_ID + 1:
        raise ValueError(f"--chown={text}: sandboxes have the ids from 0 to {LARGEST_ID + 1}")
    return uid, gid


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


async def _account(handle: SandboxHandle, kind: str, name: str, owner: str) -> list[str]:
    """The line of a user or group."""
    content = b""
    try:
        async for piece in files.read_chunks(handle, f"/etc/{kind}", lambda _: None):
            content += piece
            if len(content) > ACCOUNTS_BYTES:
                raise ValueError(f"--chown={owner}: /etc/{kind} of the image is longer than {ACCOUNTS_BYTES} bytes")
    except SandboxFileError as error:
        raise ValueError(f"--chown={owner}: the image has no /etc/{kind}: give numbers ({error})") from None
    for line in content.decode(errors="replace").splitlines():
        fields = line.split(":")
        wanted = (2, 3) if kind == "passwd" else (2,)
        if fields[0] == name and all(len(fields) > at and _is_number(fields[at]) for at in wanted):
            return fields
    raise ValueError(f"--chown={owner}: there is no {name!r} in /etc/{kind} of the image")


async def is_directory(handle: SandboxHandle, path: str) -> bool:
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
