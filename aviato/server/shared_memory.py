"""Memory that clients on this machine share, see `wire.shared_memory`: it is kept here, and passed on with requests."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import stat
from typing import TYPE_CHECKING, Self

from aviato.exceptions import AviatoValidationError
from aviato.wire.shared_memory import REFUSED, SEALS, SIZE, SIZE_FIELD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

F_GET_SEALS = 1034
PIECE_BYTES = 256 << 10
ON_ITS_WAY_SECONDS = 1.0
_NAME = re.compile(r"[0-9a-f]{32}")


class Memory:
    """A piece of it, open until it is closed; a context manager.

    Attributes:
        fd: of it.
        inode: by which a process 1 knows that it got this one.
        ready: ends once all is there that the client puts into it.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ready: AsyncIterator[bytes] | None = None
        self.inode = os.fstat(fd).st_ino

    async def chunks(self, size: int) -> AsyncIterator[bytes]:
        """So many of its bytes, or as many as there are."""
        await self.filled()
        position = 0
        while position < size and (piece := os.pread(self.fd, min(PIECE_BYTES, size - position), position)):
            position += len(piece)
            yield piece

    async def filled(self) -> None:
        """Wait until the client has put into it what it wants to."""
        if self.ready is not None:
            async for _ in self.ready:
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.fd)


class SharedMemories:
    """All that clients share now, by its names."""

    def __init__(self) -> None:
        self.sharers = 0
        """Connections by which it comes."""
        self._fds: dict[str, int] = {}
        self._added = asyncio.Event()
        """Is set when the next one is there, and is another one then."""

    def add(self, name: str, fd: int) -> None:
        """A client shares this from now on; the descriptor is closed with it, or at once if it is none of these."""
        if name in self._fds or not _is_memory(fd):
            os.close(fd)
            return
        self._fds[name] = fd
        self._added.set()
        self._added = asyncio.Event()

    def remove(self, name: str) -> None:
        """It is shared no more; who has it keeps it."""
        fd = self._fds.pop(name, -1)
        if fd >= 0:
            os.close(fd)

    async def get(self, name: str) -> Memory | None:
        """What is shared under a name, for one request; None where there is nothing of the kind."""
        if name not in self._fds:
            if not self.sharers or _NAME.fullmatch(name) is None:
                return None
            # It comes by another connection, which is read after this one now and then.
            try:
                async with asyncio.timeout(ON_ITS_WAY_SECONDS):
                    while name not in self._fds:
                        await self._added.wait()
            except TimeoutError:
                return None
        try:
            return Memory(os.dup(self._fds[name]))
        except (OSError, KeyError):
            return None


def refused() -> AviatoValidationError:
    """What tells a client to send by the socket."""
    message = "the memory that the request names cannot be had here"
    return AviatoValidationError(message, reason=REFUSED, field_violations={SIZE_FIELD: message})


def _is_memory(fd: int) -> bool:
    """Whether it is memory whose size stays: no file, device or directory of this machine goes into a sandbox."""
    try:
        found = os.fstat(fd)
        sealed = fcntl.fcntl(fd, F_GET_SEALS) & SEALS == SEALS
    except OSError:
        return False
    return sealed and stat.S_ISREG(found.st_mode) and not found.st_nlink and found.st_size == SIZE
