"""What sandboxes asked of the network, on disk: one file of JSON lines a sandbox, bounded, kept as long as its record."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from typing import TYPE_CHECKING, Any

from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
"""Then it becomes the older file, of which there is one."""
MAX_LINES_WAITING = 1000
"""Of one sandbox; what comes faster is counted and left out."""
FLUSH_SECONDS = 0.2


class Journal:
    """The requests of all sandboxes.

    Args:
        directory: of the files `ID.jsonl` and `ID.jsonl.1`.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._waiting: dict[str, list[str]] = {}
        self._left_out: dict[str, int] = {}
        self._flushing: asyncio.Task[None] | None = None

    def note(self, sandbox_id: str, entry: dict[str, Any]) -> None:
        """Put a request on record, in a moment."""
        lines = self._waiting.setdefault(sandbox_id, [])
        if len(lines) >= MAX_LINES_WAITING:
            self._left_out[sandbox_id] = self._left_out.get(sandbox_id, 0) + 1
        else:
            lines.append(json.dumps(entry))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush(), name="log of requests to the network")

    async def close(self) -> None:
        """Write what waits."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.gather(self._flushing, return_exceptions=True)
        await in_thread(self._write, *self._take())

    def remove(self, sandbox_ids: Iterable[str]) -> None:
        """Remove files of sandboxes that are no longer on record; blocks."""
        for sandbox_id in sandbox_ids:
            for path in self._paths(sandbox_id):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    async def _flush(self) -> None:
        while self._waiting:
            await asyncio.sleep(FLUSH_SECONDS)
            await in_thread(self._write, *self._take())

    def _take(self) -> tuple[dict[str, list[str]], dict[str, int]]:
        taken = self._waiting, self._left_out
        self._waiting, self._left_out = {}, {}
        return taken

    def _write(self, waiting: dict[str, list[str]], left_out: dict[str, int]) -> None:
        for sandbox_id, lines in waiting.items():
            if sandbox_id in left_out:
                lines.append(json.dumps({"left_out": left_out[sandbox_id]}))
            path, older = self._paths(sandbox_id)
            try:
                with open(path, "a", opener=_private) as file:
                    file.write("\n".join(lines) + "\n")
                    full = file.tell() > MAX_FILE_BYTES
                if full:
                    os.replace(path, older)
            except OSError as error:
                log.warning("requests of sandbox %s cannot be logged: %s", sandbox_id, error)

    def _paths(self, sandbox_id: str) -> tuple[str, str]:
        path = os.path.join(self._directory, f"{sandbox_id}.jsonl")
        return path, path + ".1"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
