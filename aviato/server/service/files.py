"""Files of a sandbox, through its process 1."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from aviato.exceptions import AviatoValidationError, SandboxFileError, SandboxUnavailableError
from aviato.server.link.ended import SandboxGone
from aviato.server.link.file_calls import InTime
from aviato.server.service.registry import error_of_gone, running
from aviato.server.states import error_of_reset
from aviato.wire.files import FileList, FileStat
from aviato.wire.shared_memory import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from aviato.server.link.channels import ReadChannel
    from aviato.server.link.link import Process1Link
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.registry import Registry
    from aviato.server.service.slots import Slots
    from aviato.server.shared_memory import Memory
    from aviato.wire.files import FilePart

PARTS_SECONDS = 120.0
"""So long a process 1 keeps a file of which parts are to come."""


class Opened(NamedTuple):
    """An open file or tree: what `stat` says of it, and its pieces."""

    stat: dict[str, Any]
    pieces: AsyncIterator[bytes]


class Files:
    """File calls. All raise `SandboxFileError` for what is wrong inside, and the error of the ending of an ended sandbox."""

    def __init__(self, registry: Registry, slots: Slots) -> None:
        self._registry = registry
        self._slots = slots

    async def stat(self, sandbox_id: str, path: str) -> FileStat:
        """What is at a path."""
        async with self._link(sandbox_id, path) as link, InTime(path):
            return FileStat.model_validate(await link.stat(path))

    async def list(self, sandbox_id: str, path: str) -> FileList:
        """The entries of a directory."""
        async with self._link(sandbox_id, path) as link, InTime(path):
            return FileList(files=[FileStat.model_validate(item) for item in await link.list_files(path)])

    async def make_directory(self, sandbox_id: str, path: str) -> None:
        """Make a directory and its parents."""
        async with self._link(sandbox_id, path) as link, InTime(path):
            await link.make_directory(path)

    async def remove(self, sandbox_id: str, path: str, recursive: bool, key: str | None = None) -> None:
        """Remove a file, an empty directory, or a tree."""
        async with self._link(sandbox_id, path) as link, InTime(path):
            await link.remove(path, recursive, key)

    def read(
        self, sandbox_id: str, path: str, *, offset: int = 0, version: str | None = None, memory: Memory | None = None
    ) -> AbstractAsyncContextManager[Opened]:
        """An open file from an offset on: what `stat` says of it, and its pieces; refused if its `version` is another.

        With `memory` it may be there instead: then `stat` has `memory_bytes`, and there are no pieces.
        """
        return self._open(sandbox_id, path, lambda link: link.read_file(path, offset=offset, version=version, memory=memory))

    async def read_whole(self, sandbox_id: str, path: str, limit_bytes: int) -> bytes | None:
        """A file as it is; None if it is larger than the limit."""
        content = bytearray()
        async with self.read(sandbox_id, path) as opened:
            async for piece in opened.pieces:
                content += piece
                if len(content) > limit_bytes:
                    return None
        return bytes(content)

    def read_tree(self, sandbox_id: str, path: str, exact: bool = False) -> AbstractAsyncContextManager[Opened]:
        """An open directory, or, if it is to be exact, file: what `stat` says of it, and the pieces of its archive."""
        return self._open(sandbox_id, path, lambda link: link.read_tree(path, exact))

    async def write(
        self,
        sandbox_id: str,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        mode: int | None,
        size_bytes: int | None,
        part: FilePart | None = None,
        memory: Memory | None = None,
    ) -> None:
        """Write a file whole or not at all; or a part of it. Its bytes may lie in `memory`, too."""
        async with self._link(sandbox_id, path) as link:
            if part is not None and (part.offset or not part.last) and not link.knows_again:
                message = f"{sandbox_id} was made by a version that takes no files in parts"
                raise AviatoValidationError(message, field_violations={"offset": "not available"})
            try:
                await link.write_file(path, chunks, mode=mode, size_bytes=size_bytes, part=part, memory=memory)
            except SandboxUnavailableError as error:
                if error.reason == "upload_lost" and self._was_reset(sandbox_id):
                    raise error_of_reset(sandbox_id, started=True) from None
                raise

    def _was_reset(self, sandbox_id: str) -> bool:
        """Whether parts of a file that a process 1 would yet have were another's."""
        reset_at = self._registry.find(sandbox_id).reset_at
        return reset_at is not None and time.monotonic() - reset_at < PARTS_SECONDS

    async def write_tree(
        self, sandbox_id: str, path: str, chunks: AsyncIterator[bytes], key: str | None = None, exact: bool = False
    ) -> None:
        """Put a tree in its place, or merge it into what is there, once all of its archive has come."""
        async with self._link(sandbox_id, path) as link:
            await link.write_tree(path, chunks, key, exact)

    @asynccontextmanager
    async def _open(self, sandbox_id: str, path: str, read: Callable[[Process1Link], ReadChannel]) -> AsyncIterator[Opened]:
        async with self._link(sandbox_id, path) as link:
            reader = read(link)
            try:
                async with InTime(path):
                    stat = await reader.opened()
                    size = stat.get("memory_bytes", 0)
                    if type(size) is not int or not 0 <= size <= MOST_BYTES:
                        raise SandboxFileError("the sandbox says that it has written more than it can", filepath=path)
                yield Opened(stat, self._pieces(self._registry.find(sandbox_id), path, reader))
            finally:
                await reader.aclose()

    async def _pieces(self, sandbox: LiveSandbox, path: str, reader: ReadChannel) -> AsyncIterator[bytes]:
        # Its errors are for whoever iterates, who may have begun an answer, and not for the context around.
        try:
            while True:
                async with InTime(path):
                    piece = await anext(reader, None)
                if piece is None:
                    return
                yield piece
        except SandboxFileError as error:
            error.filepath = path
            raise
        except SandboxGone as gone:
            raise await error_of_gone(sandbox, gone) from None

    def _link(self, sandbox_id: str, path: str) -> _Call:
        return _Call(self._registry, self._slots, sandbox_id, path)


class _Call:
    """Context of one call: the link of a sandbox that runs, which is in use meanwhile. What goes wrong is told as of this call.

    A class, since each call has one: what is made of a generator takes several times as long.
    """

    def __init__(self, registry: Registry, slots: Slots, sandbox_id: str, path: str) -> None:
        if not path:
            raise SandboxFileError("path is empty", filepath=path, reason="no_such_file", sandbox_id=sandbox_id)
        self._path = path
        self._box = registry.find(sandbox_id)
        self._use = slots.use(self._box)

    async def __aenter__(self) -> Process1Link:
        self._use.__enter__()
        try:
            return await running(self._box)
        except BaseException as error:
            self._use.__exit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, SandboxFileError):
                # As it was given: process 1 says where that is, in the message.
                error.filepath = self._path
            elif isinstance(error, SandboxGone):
                raise await error_of_gone(self._box, error) from None
        finally:
            self._use.__exit__(None, None, None)
