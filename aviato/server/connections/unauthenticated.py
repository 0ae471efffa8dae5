"""Connections over TCP that have brought no key: they are few, and soon gone.

Without this anyone who reaches the port could hold all of the server's descriptors, and then nothing can be started.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aviato.server.connections.open_connections import OpenConnections

UNAUTHENTICATED_SECONDS = 10.0
"""How long one may be connected without a key."""
LOOK_SECONDS = 0.25
SHARE = 8
"""They may have one in so many of the descriptors."""


def most() -> int:
    """How many there may be."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // SHARE)


class Unauthenticated:
    """Cuts them off.

    Args:
        connections: of the server.
        let_in: those of them that have brought a key; those that have gone are taken out.
    """

    def __init__(self, connections: OpenConnections, let_in: set[asyncio.BaseTransport]) -> None:
        self._connections = connections
        self._let_in = let_in
        self._since: dict[asyncio.BaseTransport, float] = {}

    def most(self) -> int:
        """How many may be connected."""
        return most()

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
        found = self._connections.all()
        self._let_in.intersection_update(found)
        unauthenticated = [one for one in found if one not in self._let_in and _is_tcp(one)]
        self._since = {one: self._since.get(one, now) for one in unauthenticated}
        unauthenticated.sort(key=self._since.__getitem__)
        too_many = len(unauthenticated) - self.most()
        for place, one in enumerate(unauthenticated, 1):
            if place <= too_many or self._since[one] + UNAUTHENTICATED_SECONDS <= now:
                one.abort()


def _is_tcp(transport: asyncio.BaseTransport) -> bool:
    connection = transport.get_extra_info("socket")
    return connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6)
