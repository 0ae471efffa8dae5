"""What backends share whose process 1 has its sockets and its last words in a directory of the sandbox on this machine."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from aviato.server.backends.base import Backend
from aviato.server.link.descriptor_channel import DescriptorChannel
from aviato.system.threads import opened_in_thread

if TYPE_CHECKING:
    from aviato.server.backends.local.directories import Directories


class PlacedBackend(Backend):
    """A backend with such directories."""

    _directories: Directories

    async def open_port_channel(self, sandbox_id: str) -> DescriptorChannel:
        """See `Backend`."""
        sock = await opened_in_thread(self._directories.connect, sandbox_id, "p", socket.SOCK_SEQPACKET)
        if sock is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"process 1 of {sandbox_id} is gone")
        return DescriptorChannel(sock)

    def how_ended(self, sandbox_id: str) -> str | None:
        """See `Backend`."""
        note = self._directories.note(sandbox_id)
        return str(note["reason"]) if note is not None else None

    def remember_end(self, sandbox_id: str, reason: str) -> None:
        """See `Backend`."""
        self._directories.leave_note(sandbox_id, reason)

    def leave_results(self, sandbox_id: str, path: str) -> bool:
        """See `Backend`."""
        return self._directories.leave_results(sandbox_id, path)
