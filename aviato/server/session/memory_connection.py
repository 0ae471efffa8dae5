"""The connection by which a client shares memory: descriptors come beside its bytes, which asyncio's transports would lose."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

from aviato.wire.shared_memory import GONE, RECORD, SHARED

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.shared_memory import SharedMemories

READ_BYTES = 64 * RECORD.size
MOST_DESCRIPTORS = 16
"""That come with one message; ours has one."""


class MemoryConnection:
    """The server's end of it.

    Args:
        sock: of the connection, which is closed with it.
        memories: get what is shared.
        on_lost: told once it has ended.
    """

    def __init__(self, sock: socket.socket, memories: SharedMemories, on_lost: Callable[[MemoryConnection], None]) -> None:
        self._sock = sock
        self._memories = memories
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._begun = b""
        self._fds: list[int] = []
        """That came with what was begun."""
        self._names: set[str] = set()
        self._is_open = True
        sock.setblocking(False)
        memories.sharers += 1
        self._loop.add_reader(sock.fileno(), self._read)

    def close(self) -> None:
        """End it; nothing is shared by it any more. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._close_fds()
        self._memories.sharers -= 1
        for name in self._names:
            self._memories.remove(name)
        self._on_lost(self)

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, READ_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self._begun += data
        self._fds += fds
        if not data or not self._take():
            self.close()
        elif not self._begun:
            self._close_fds()  # More than were spoken of.

    def _take(self) -> bool:
        """Do what whole records say; False where they say nothing that can be."""
        while len(self._begun) >= RECORD.size:
            kind, secret = RECORD.unpack_from(self._begun)
            self._begun = self._begun[RECORD.size :]
            name = secret.hex()
            if kind == SHARED and self._fds:
                self._names.add(name)
                self._memories.add(name, self._fds.pop(0))
            elif kind == GONE and name in self._names:
                self._names.remove(name)
                self._memories.remove(name)
            else:
                return False
        return True

    def _close_fds(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)
