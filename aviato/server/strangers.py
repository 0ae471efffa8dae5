"""Connections over TCP that have brought no key: they are few, and soon gone.

Without this anyone who reaches the port could hold all of the server's descriptors, and then nothing can be started.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Container

    from aiohttp import web

STRANGER_SECONDS = 10.0
"""How long one may be connected without a key."""
LOOK_SECONDS = 0.25
SHARE = 8
"""They may have one in so many of the descriptors."""


class Strangers:
    """Cuts them off.

    Args:
        runner: of the server, set up.
        let_in: the connections that have brought a key.
    """

    def __init__(self, runner: web.AppRunner, let_in: Container[asyncio.BaseTransport]) -> None:
        self._runner = runner
        self._let_in = let_in
        self._since: WeakKeyDictionary[asyncio.BaseTransport, float] = WeakKeyDictionary()

    def most(self) -> int:
        """How many may be connected."""
        return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // SHARE)

    async def keep_few(self) -> None:
        """Look again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Cut off who has had the time, and the oldest where there are too many.

        Args:
            now: in seconds, by a clock that does not go back.
        """
        server = self._runner.server
        found = [handler.transport for handler in server.connections] if server is not None else []
        strangers = [one for one in found if one is not None and one not in self._let_in and _is_tcp(one)]
        begun = {transport: self._since.setdefault(transport, now) for transport in strangers}
        strangers.sort(key=begun.__getitem__)
        too_many = len(strangers) - self.most()
        for place, transport in enumerate(strangers, 1):
            if begun[transport] + STRANGER_SECONDS <= now or place <= too_many:
                transport.abort()


def _is_tcp(transport: asyncio.BaseTransport) -> bool:
    connection = transport.get_extra_info("socket")
    return connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6)
