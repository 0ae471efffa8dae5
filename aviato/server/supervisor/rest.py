"""What had come over a connection that broke in a write, and was not read yet.

A transport closes its socket when a write fails, and so loses what the other side said before it went. A second descriptor
keeps that.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_BYTES = 256 << 10


class Rest:
    """A second descriptor of a connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._fd = os.dup(sock.fileno())

    def read(self) -> Iterator[bytes]:
        """What is there, without waiting for more."""
        with socket.socket(fileno=self._take()) as sock:
            while True:
                try:
                    data = sock.recv(READ_BYTES, socket.MSG_DONTWAIT)
                except OSError:
                    return
                if not data:
                    return
                yield data

    def close(self) -> None:
        """Let go of it."""
        if self._fd >= 0:
            os.close(self._take())

    def _take(self) -> int:
        fd, self._fd = self._fd, -1
        return fd
