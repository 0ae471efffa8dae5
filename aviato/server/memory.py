"""Memory that a client on this machine lends for one request, see `wire.memory`: it is opened here, and passed on."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from typing import TYPE_CHECKING, Self

from aviato.exceptions import AviatoValidationError
from aviato.server.peers import peer_pid
from aviato.wire.memory import MEMORY_HEADER, REFUSED, SEALS, SIZE, SIZE_FIELD, secret_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

F_GET_SEALS = 1034
PIECE_BYTES = 256 << 10
_NAME = re.compile(r"([0-9]{1,9})\.([0-9a-f]{32})")


class Memory:
    """A piece of it, open until it is closed; a context manager.

    Attributes:
        fd: of it.
        inode: by which a supervisor knows that it got this one.
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


def lent(request: web.Request) -> Memory | None:
    """What a request lends; None where it lends nothing that can be had here."""
    name = request.headers.get(MEMORY_HEADER)
    return None if name is None or request.transport is None else lent_by(name, peer_pid(request.transport))


def lent_by(name: str, pid: int | None) -> Memory | None:
    """What is lent under this name by the process that connected, if that is known; None where it cannot be had here."""
    parts = _NAME.fullmatch(name)
    return None if parts is None or not pid else _open(f"/proc/{pid}/fd/{parts[1]}", parts[2])


def refused() -> AviatoValidationError:
    """What tells a client to send by the socket."""
    message = "the memory that the request names cannot be had here"
    return AviatoValidationError(message, reason=REFUSED, field_violations={SIZE_FIELD: message})


def _open(path: str, secret: str) -> Memory | None:
    """Memory of this name, and nothing else: no file, device or directory of this machine goes into a sandbox.

    Whoever names it knows its secret, so it is lent by him, whichever process has the number of the one that connected by now.
    """
    handle = fd = -1
    try:
        # Looked at before it is opened: what is named by then may be another file, which is the asker's to read alone, or one
        # whose opening does something to whoever is at its other end.
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        here = f"/proc/self/fd/{handle}"
        found = os.fstat(handle)
        if secret_of(os.readlink(here)) != secret or found.st_nlink or not stat.S_ISREG(found.st_mode):
            return None
        fd = os.open(here, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        if fcntl.fcntl(fd, F_GET_SEALS) & SEALS == SEALS and os.fstat(fd).st_size == SIZE:
            memory, fd = Memory(fd), -1
            return memory
    except OSError:
        pass
    finally:
        for opened in (handle, fd):
            if opened >= 0:
                os.close(opened)
    return None
