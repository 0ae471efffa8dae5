"""Files of a sandbox, through its supervisor."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxFileError
from aviato.server.service.registry import error_of_gone, running
from aviato.server.supervisor.subscription import SandboxGone
from aviato.wire.files import FileList, FileStat

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.service.registry import Registry
    from aviato.server.supervisor.link import SupervisorLink

ANSWER_SECONDS = 60.0
"""A supervisor that does not answer a file call in this time is held up by the file system inside."""


class Files:
    """File calls. All raise `SandboxFileError` for what is wrong inside, and the error of the ending of an ended sandbox."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def stat(self, sandbox_id: str, path: str) -> FileStat:
        """What is at a path."""
        async with self._link(sandbox_id, path) as link, _in_time(path):
            return FileStat.model_validate(await link.stat(path))

    async def list(self, sandbox_id: str, path: str) -> FileList:
        """The entries of a directory."""
        async with self._link(sandbox_id, path) as link, _in_time(path):
            return FileList(files=[FileStat.model_validate(item) for item in await link.list_files(path)])

    async def make_directory(self, sandbox_id: str, path: str) -> None:
        """Make a directory and its parents."""
        async with self._link(sandbox_id, path) as link, _in_time(path):
            await link.make_directory(path)

    async def remove(self, sandbox_id: str, path: str, recursive: bool) -> None:
        """Remove a file, an empty directory, or a tree."""
        async with self._link(sandbox_id, path) as link, _in_time(path):
            await link.remove(path, recursive)

    @asynccontextmanager
    async def read(self, sandbox_id: str, path: str) -> AsyncIterator[tuple[dict[str, Any], AsyncIterator[bytes]]]:
        """An open file: what `stat` says of it, and its pieces."""
        async with self._link(sandbox_id, path) as link:
            reader = link.read_file(path)
            try:
                async with _in_time(path):
                    stat = await reader.opened()
                yield stat, reader
            finally:
                await reader.aclose()

    async def write(
        self, sandbox_id: str, path: str, chunks: AsyncIterator[bytes], *, mode: int | None, size_bytes: int | None
    ) -> None:
        """Write a file whole or not at all."""
        async with self._link(sandbox_id, path) as link:
            await link.write_file(path, chunks, mode=mode, size_bytes=size_bytes)

    @asynccontextmanager
    async def _link(self, sandbox_id: str, path: str) -> AsyncIterator[SupervisorLink]:
        if not path:
            raise SandboxFileError("path is empty", filepath=path, reason="no_such_file", sandbox_id=sandbox_id)
        box = self._registry.find(sandbox_id)
        with self._registry.call(box):
            link = await running(box)
            try:
                yield link
            except SandboxGone as gone:
                raise await error_of_gone(box, gone) from None


@asynccontextmanager
async def _in_time(path: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            yield
    except TimeoutError:
        message = f"{path!r}: no answer in {ANSWER_SECONDS:g} s; the file system inside is held up"
        raise SandboxFileError(message, filepath=path, reason="timeout") from None
