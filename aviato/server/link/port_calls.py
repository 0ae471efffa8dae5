"""What a server asks of the ports of a sandbox, where descriptors cannot be handed on: connections that go over the link."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from functools import partial
from typing import TYPE_CHECKING

from aviato.server.link.connection import Connection
from aviato.server.link.descriptor_channel import DIAL_SECONDS
from aviato.server.link.ended import SandboxGone
from aviato.server.link.payload import as_json
from aviato.server.link.relayed_listener import RelayedListener
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
        try:
            made = self._relayed("dial", port)
        except SandboxGone as gone:
            raise ConnectionResetError(errno.ECONNRESET, gone.ended.message or str(gone)) from gone
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await made.connected()
        except BaseException:
            made.abort()
            raise
        return made

    @property
    def knows_listeners(self) -> bool:
        """Whether it listens for the server."""
        return "accept" in self.hello["features"]

    async def listen(self, port: int) -> None:
        """Have process 1 listen at 127.0.0.1, from here on and for all servers; who connects waits for `wait_for`.

        Raises:
            OSError: it cannot.
        """
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                number = json.loads(await self._call({"op": "listen", "port": port})).get("errno")
        except SandboxGone as gone:
            raise ConnectionResetError(errno.ECONNRESET, gone.ended.message or str(gone)) from gone
        if number is not None:
            raise OSError(number, os.strerror(number))

    def wait_for(self, port: int) -> RelayedPort:
        """The next connection to a port at which process 1 listens; its `answer` is done once it has come.

        Raises:
            SandboxGone: nothing can be asked now.
        """
        return self._relayed("accept", port)

    def _relayed(self, op: str, port: int) -> RelayedPort:
        made = RelayedPort(self._loop)
        channel = self._open(made)
        made.use(partial(self._send_on, channel), partial(self._give_up, channel))
        self._send(FrameType.REQUEST, as_json({"op": op, "port": port, "window": WINDOW_BYTES}), channel=channel)
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

    async def listen(self, port: int) -> RelayedListener:
        """See `PortChannel`."""
        if not self._link.knows_listeners:
            raise OSError(errno.EOPNOTSUPP, "its aviato-init is of a version that listens for no server")
        await self._link.listen(port)
        return RelayedListener(self._link, port)

    def close(self) -> None:
        """The link stays, and so do connections over it."""
        self._is_closed = True
