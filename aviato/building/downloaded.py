"""What copies of one build take from the web: each URL is fetched once, into a folder that goes with the build."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from typing import TYPE_CHECKING, Self

from aviato.building.copy_files import Entry, Found, opened
from aviato.building.dockerfile_stage import name_of
from aviato.system.threads import in_thread
from aviato.trees import tar

if TYPE_CHECKING:
    from types import TracebackType

    from aviato.building.copy_files import CopyFiles
    from aviato.transport.downloads import Download

_MODE = 0o600


class Downloads:
    """The files of one build."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._there: dict[str, tuple[str, Download]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if (folder := self._folder) is not None:
            await in_thread(lambda: shutil.rmtree(folder, ignore_errors=True))

    async def inputs(self, step: CopyFiles) -> list[str]:
        """What a copy depends on: names and contents, and not where they are. What has a checksum is not fetched for that.

        Raises:
            DownloadError: one cannot be had.
            OSError: the disk fails.
        """
        if step.checksum is not None:
            return [f"{name_of(step.urls[0])} {step.checksum}"]
        return [f"{name_of(url)} {(await self._fetched(step, url))[1].digest}" for url in step.urls]

    async def found(self, step: CopyFiles) -> list[Found]:
        """What a copy takes.

        Raises:
            DownloadError: one cannot be had, or is not what its checksum says.
            OSError: the disk fails.
        """
        found = []
        for url in step.urls:
            path, there = await self._fetched(step, url)
            name = name_of(url) or "file"
            entry = Entry(name, tar.FILE, _MODE, there.size_bytes, there.mtime, open=partial(opened, path))
            found.append(Found(name, [entry]))
        return found

    async def _fetched(self, step: CopyFiles, url: str) -> tuple[str, Download]:
        from aviato.transport.downloads import DownloadError, download

        if url not in self._there:
            if self._folder is None:
                self._folder = await in_thread(tempfile.mkdtemp, prefix="aviato-build-")
            path = os.path.join(self._folder, str(len(self._there)))
            self._there[url] = path, await download(url, path)
        path, there = self._there[url]
        if step.checksum not in (None, there.digest):
            raise DownloadError(f"it has the digest {there.digest}, and not that of --checksum")
        return path, there
