"""What a transport cannot do with its socket, by a second descriptor of it.

It closes its socket when a write fails, and so loses what the other side said before it went. And it sends no descriptors.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_BYTES = 256 << 10
_FD = struct.Struct("=i")


class SecondDescriptor:
    """A second descriptor of a connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._fd = os.dup(sock.fileno())
        self._sock: socket.socket | None = None
        """Of the descriptor, once something was sent: to make one costs as much as to send."""

    def read(self) -> Iterator[bytes]:
        """What is there, without waiting for more; nothing once it was let go of."""
        if self._fd < 0:
            return
        with socket.socket(fileno=self._take()) as sock:
            while True:
                try:
                    data = sock.recv(READ_BYTES, socket.MSG_DONTWAIT)
                except OSError:
                    return
                if not data:
                    return
                yield data

    def send(self, data: bytes, fd: int) -> int:
        """Send data with a descriptor, while the transport has nothing to send; returns how much of the data went.

        Raises:
            OSError: nothing was sent.
        """
        if self._sock is None:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, self._fd)
        return self._sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _FD.pack(fd))], socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._take())

    def _take(self) -> int:
        if self._sock is not None:
            self._sock.detach()
            self._sock = None
        fd, self._fd = self._fd, -1
        return fd
