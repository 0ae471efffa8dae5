"""Being told by a process 1 that it can be connected to: it has nothing else than files by which it could say so."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class Readiness:
    """A named pipe, read by this process alone. A context manager.

    Args:
        path: where it is made.
    """

    def __init__(self, path: str) -> None:
        os.mkfifo(path)
        os.chmod(path, 0o622)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    async def wait(self) -> None:
        """Until somebody has written."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._fd, told.set)
        try:
            await told.wait()
        finally:
            loop.remove_reader(self._fd)

    def __enter__(self) -> Readiness:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)
