"""Files out of an image, from a sandbox of it: as they are, with owners, all bits of modes and hard links."""

from __future__ import annotations

import io
import os
import posixpath
from functools import partial
from typing import TYPE_CHECKING

from aviato.building.copy_files import Entry, Found, second_name
from aviato.building.path_patterns import WILD, compiled
from aviato.building.placing import is_directory
from aviato.core import files
from aviato.core.transfer import CHUNK_BYTES, write_all
from aviato.log import logger
from aviato.system.threads import in_thread
from aviato.trees import tar
from aviato.trees.errors import SenderFailed, hostile
from aviato.wire.errors import ErrorBody, from_wire

if TYPE_CHECKING:
    from typing import IO

    from aviato.aio.async_sandbox import AsyncSandbox
    from aviato.core.lifecycle import SandboxHandle

NOBODY = 65534
"""Whose files are that belong to a user of the machine who is none of the sandbox."""


async def fetched(origin: AsyncSandbox, sources: tuple[str, ...], folder: str, *, of_machine: bool) -> list[Found]:
    """What sources are in a sandbox.

    Args:
        origin: the sandbox.
        sources: patterns, from its `/`.
        folder: an empty directory of the caller's, which has their contents afterwards, and none of their names.
        of_machine: whether its files are this machine's own: their users are none of sandboxes, and copies root's.

    Raises:
        SandboxFileError: there is none, or it cannot be read.
        TreeError: what comes is no archive.
        OSError: the directory cannot be written.
    """
    handle = origin._handle
    found: list[Found] = []
    for source in sources:
        for path in await _matches(handle, source):
            copy = os.path.join(folder, str(len(found)))
            found.append(await handle.client.repeat(partial(_fetch, handle, path, copy, of_machine), f"download {path!r}"))
    return found


async def _fetch(handle: SandboxHandle, path: str, copy: str, of_machine: bool) -> Found:
    arrival = await in_thread(_Arrival, path, copy, of_machine)
    batches = files.gathered_chunks(files.read_tree(handle, path, exact=True), CHUNK_BYTES)
    try:
        async for batch in batches:
            await in_thread(arrival.feed, b"".join(batch))
        return await in_thread(arrival.found)
    except SenderFailed as failed:
        raise from_wire(ErrorBody.model_validate_json(failed.body)) from None
    finally:
        await in_thread(arrival.close)
        await batches.aclose()


class _Arrival:
    """An archive that comes: the contents of all its files, one behind the other, and where each is. Blocks."""

    def __init__(self, path: str, copy: str, of_machine: bool) -> None:
        self._path = path
        self._of_machine = of_machine
        self._copy = copy
        self._file = open(copy, "wb", buffering=0)  # noqa: SIM115
        self._reader = tar.Reader(owners=True)
        self._entries: dict[str, Entry] = {}
        self._is_directory = False
        self._position = 0
        self._left_out = 0

    def feed(self, data: bytes) -> None:
        for item in self._reader.feed(data):
            if isinstance(item, tar.Member):
                self._take(item)
                continue
            write_all(self._file.fileno(), [bytes(item)])
            self._position += len(item)

    def found(self) -> Found:
        self._reader.finish()
        self._file.truncate(self._position)
        if self._left_out:
            logger.warning("%r: left out %d that are neither file, directory nor link", self._path, self._left_out)
        return Found(posixpath.basename(self._path), list(self._entries.values()), is_directory=self._is_directory)

    def close(self) -> None:
        self._file.close()

    def _take(self, member: tar.Member) -> None:
        if member.kind == tar.DIRECTORY and member.name.rstrip(b"/") == b".":
            self._is_directory = True
            return
        name = os.fsdecode(member.name.rstrip(b"/")) if self._is_directory else posixpath.basename(self._path)
        if member.kind == tar.OTHER:
            self._left_out += 1
        elif member.kind == tar.HARD_LINK:
            same = self._entries.get(os.fsdecode(member.target))
            if same is None:
                raise hostile(member.name, "is another name of what did not come before")
            self._entries[name] = second_name(name, same)
        else:
            self._entries[name] = Entry(
                name,
                member.kind,
                member.mode,
                member.size_bytes,
                member.mtime,
                os.fsdecode(member.target),
                self._owner(member.uid),
                self._owner(member.gid),
                open=partial(_part, self._copy, self._position, member.size_bytes) if member.kind == tar.FILE else None,
            )

    def _owner(self, number: int) -> int:
        return 0 if self._of_machine and number == NOBODY else number


def _part(path: str, begin: int, size: int) -> IO[bytes]:
    return io.BufferedReader(_Part(path, begin, size))


class _Part(io.RawIOBase):
    """Some bytes within a file."""

    def __init__(self, path: str, begin: int, size: int) -> None:
        super().__init__()
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        self._file.seek(begin)
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._file.readinto(buffer[: self._left]) or 0
        self._left -= count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


async def _matches(handle: SandboxHandle, source: str) -> list[str]:
    found = ["/"]
    for name in posixpath.normpath(f"/{source}").strip("/").split("/"):
        if not WILD & set(name):
            found = [posixpath.join(path, name) for path in found]
            continue
        expression = compiled(name)
        inner: list[str] = []
        for path in found:
            if await is_directory(handle, path):
                entries = [posixpath.basename(entry.path) for entry in await files.list_files(handle, path)]
                inner += [posixpath.join(path, entry) for entry in entries if expression.fullmatch(entry)]
        found = inner
    return sorted(found)
