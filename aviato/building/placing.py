"""Copies and directories of a build on their way into its sandbox, with their owners."""

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
    owner = None if step.owner is None else await _owner(handle, step.owner, "--chown=")
    above, made = await _missing(handle, folder.rstrip("/") or "/")
    entries = [*made, *_below(made[-1].name if made else "", list(together(found, step.mode, name).values()))]
    if owner is not None:
        entries = _given(entries, *owner)
    await _put(handle, entries, above, str(step))


async def make_directory(sandbox: AsyncSandbox, path: str, owner: str | None, said: str) -> None:
    """Have a directory there. What is missing of its path is the owner's.

    Args:
        sandbox: in which it is to be.
        path: absolute.
        owner: `USER[:GROUP]`; None: root.
        said: what asks for it.

    Raises:
        ValueError: there is no such owner.
        SandboxFileError: it does not work inside.
    """
    above, made = await _missing(sandbox._handle, path.rstrip("/") or "/")
    if made and owner is not None:
        made = _given(made, *await _owner(sandbox._handle, owner, "the user "))
    if made:
        await _put(sandbox._handle, made, above, said)


async def _put(handle: SandboxHandle, entries: Sequence[Entry], above: str, said: str) -> None:
    try:
        await transfer.upload_archive(handle, lambda: archive(entries), above, said)
    except SandboxFileError as error:
        if error.reason != "owner":
            raise
        logger.warning("%s: the sandboxes of this server have one user, so all is root's", said)
        roots = _given(entries, 0, 0)
        await transfer.upload_archive(handle, lambda: archive(roots), above, said)


async def _missing(handle: SandboxHandle, folder: str) -> tuple[str, list[Entry]]:
    """The directory above that is there, and those that are to be made below it, each by its path from there."""
    above = folder
    while above != "/" and await _kind(handle, above) is None:
        above = posixpath.dirname(above)
    await files.make_directory(handle, above)  # A link that leads nowhere is told as such.
    names = posixpath.relpath(folder, above).split("/") if folder != above else []
    paths = ("/".join(names[: number + 1]) for number in range(len(names)))
    return above, [Entry(path, tar.DIRECTORY, 0o755, mtime=int(time.time())) for path in paths]


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


async def _owner(handle: SandboxHandle, text: str, asked: str) -> tuple[int, int]:
    """A user and a group by the lists of the image; without a group that of the user, or of a number the same number.

    `asked` is how messages say who it is.
    """
    user, colon, group = text.partition(":")
    if _is_number(user):
        uid, gid = int(user), int(user)
    else:
        fields = await _account(handle, "passwd", user, f"{asked}{text}")
        uid, gid = int(fields[2]), int(fields[3])
    if colon and group:
        gid = int(group) if _is_number(group) else int((await _account(handle, "group", group, f"{asked}{text}"))[2])
    if max(uid, gid) > LARGEST_ID + 1:
        raise ValueError(f"{asked}{text}: sandboxes have the ids from 0 to {LARGEST_ID + 1}")
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
                raise ValueError(f"{owner}: /etc/{kind} of the image is longer than {ACCOUNTS_BYTES} bytes")
    except SandboxFileError as error:
        raise ValueError(f"{owner}: the image has no /etc/{kind}: give numbers ({error})") from None
    for line in content.decode(errors="replace").splitlines():
        fields = line.split(":")
        wanted = (2, 3) if kind == "passwd" else (2,)
        if fields[0] == name and all(len(fields) > at and _is_number(fields[at]) for at in wanted):
            return fields
    raise ValueError(f"{owner}: there is no {name!r} in /etc/{kind} of the image")


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
