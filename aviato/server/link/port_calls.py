"""What a server asks of the ports of a sandbox, where descriptors cannot be handed on: connections that go over the link."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from typing import TYPE_CHECKING

from aviato.server.link.connection import Connection
from aviato.server.link.descriptor_channel import DIAL_SECONDS
from aviato.server.link.ended import SandboxGone
from aviato.server.link.payload import as_json
from aviato.server.link.relayed_port import WINDOW_BYTES, RelayedPort
from aviato.wire.frames import FrameType

if TYPE_CHECKING:
    import socket


class PortCalls(Connection):
    """What a link asks of ports."""

    @property
    def knows_ports(self) -> bool:
        """Whether it carries connections."""
        return "dial" in self.hello["features"]

    async def dial(self, port: int) -> RelayedPort:
        """A connection to a port inside, at 127.0.0.1 or ::1; the sandbox is in use for as long as it is there.

        Raises:
            ConnectionRefusedError: nobody listens.
            TimeoutError: whoever listens does not accept, or the sandbox does not answer.
            OSError: it cannot be reached.
        """
        made = RelayedPort(self._loop)
        try:
            channel = self._open(made)
        except SandboxGone as gone:
            raise ConnectionResetError(errno.ECONNRESET, gone.ended.message or str(gone)) from gone
        made.use(partial(self._send_on, channel), partial(self._give_up, channel))
        request = as_json({"op": "dial", "port": port, "window": WINDOW_BYTES})
        self._send(FrameType.REQUEST, request, channel=channel)
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await made.connected()
        except BaseException:
            made.abort()
            raise
        return made

    def _send_on(self, channel: int, type: int, payload: bytes, offset: int) -> None:
        self._send(type, payload, channel=channel, offset=offset)


class RelayedPorts:
    """Connections into a sandbox, where nothing but bytes passes: see `PortChannel`.

    Args:
        link: to its process 1.
    """

    def __init__(self, link: PortCalls) -> None:
        self._link = link
        self._is_closed = False

    @property
    def open(self) -> bool:
        """See `PortChannel`."""
        return not self._is_closed and self._link.ended() is None and not self._link.is_detached

    async def dial(self, port: int) -> RelayedPort:
        """See `PortCalls.dial`."""
        return await self._link.dial(port)

    def release(self) -> None:
        """Process 1 knows."""

    async def keep(self, port: int, listener: socket.socket) -> None:
        """Nobody can: the next server listens by the number that is on record."""

    async def kept(self) -> dict[int, socket.socket]:
        """None."""
        return {}

    async def listen(self, port: int) -> socket.socket:
        """See `PortChannel`.

        Raises:
            OSError: always.
        """
        raise OSError(errno.EOPNOTSUPP, "no listening socket of its inside can be had")

    def close(self) -> None:
        """The link stays, and so do connections over it."""
        self._is_closed = True
