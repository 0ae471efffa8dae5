"""All connections of a server: fewer than it has descriptors for, so that sandboxes can always be made and reached."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from aviato.server.callers import Caller
    from aviato.server.connections.open_connections import OpenConnections

SHARE = 2
"""They may have one in so many of the descriptors."""
LEAST = 32
BATCH = 16
"""One in so many is cut off at once, so that a flood is not looked through for each that comes."""
TENANT_SHARE = 0.75
"""How much of that one tenant may have requests on."""
AGAIN_SECONDS = 1.0
BACKLOG = 4096
_RELIEF = ("/stop", "/cancel", "/acknowledgements", "/health")
"""Requests that make room, or are over at once."""


def open_files() -> int:
    """How many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def backlog() -> int:
    """How many connections may wait to be accepted, and so come at once: those too must have descriptors."""
    return max(16, min(BACKLOG, open_files() // 4))


class ConnectionLimit:
    """Which connections have a request under way. Where there are too many, those that have none are cut off, oldest first.

    A client opens another when it has something to ask, so this costs it nothing. What has nothing but half a request, or an
    answer that it does not read, is one of them.

    Args:
        connections: all that there are.
    """

    def __init__(self, connections: OpenConnections) -> None:
        self._connections = connections
        self._busy: dict[asyncio.BaseTransport, str | None] = {}
        self._of_tenant: Counter[str | None] = Counter()
        self._sessions: dict[asyncio.BaseTransport, tuple[Collection[object], str | None]] = {}
        self._idle_since: dict[asyncio.BaseTransport, float] = {}

    def most(self) -> int:
        """How many may be connected."""
        return max(LEAST, open_files() // SHARE)

    def begin(self, connection: asyncio.BaseTransport, method: str, path: str, caller: Caller) -> None:
        """A request is under way on its connection.

        Raises:
            SandboxResourceExhaustedError: there are as many as there may be.
        """
        busy_at_most = len(self._busy) + len(self._sessions)
        if busy_at_most >= TENANT_SHARE * LEAST and busy_at_most >= TENANT_SHARE * self.most():
            self._refuse(method, path, caller)
        self._busy[connection] = caller.tenant
        self._of_tenant[caller.tenant] += 1
        self._idle_since.pop(connection, None)

    def end(self, connection: asyncio.BaseTransport) -> None:
        """It was answered, or its caller has gone."""
        if connection in self._busy:
            tenant = self._busy.pop(connection)
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]

    def watch(self, connection: asyncio.BaseTransport, under_way: Collection[object], tenant: str | None) -> None:
        """A session has this connection: its requests are under way on it as long as there are any in `under_way`."""
        self._sessions[connection] = under_way, tenant

    def forget(self, connection: asyncio.BaseTransport) -> None:
        """A session has ended."""
        self._sessions.pop(connection, None)

    def is_busy(self, connection: asyncio.BaseTransport) -> bool:
        """Whether a request is under way on it."""
        return connection in self._busy or (connection in self._sessions and bool(self._sessions[connection][0]))

    def make_room(self) -> None:
        """One more comes: look at the others where there are many."""
        if len(self._connections.all()) >= self.most():
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Cut off those that are too many.

        Args:
            now: in seconds, by a clock that does not go back.
        """
        found = self._connections.all()
        idle = [one for one in found if not self.is_busy(one)]
        self._idle_since = {one: self._idle_since.get(one, now) for one in idle}
        too_many = len(found) - self.most() + 1
        if too_many <= 0:
            return
        idle.sort(key=self._idle_since.__getitem__)
        for one in idle[: too_many + self.most() // BATCH]:
            one.abort()

    async def keep_few(self, seconds: float = 1.0) -> None:
        """Take note of who is idle, again and again."""
        while True:
            await asyncio.sleep(seconds)
            if len(self._connections.all()) >= self.most() // 2:
                self.look(time.monotonic())
            else:
                self._idle_since.clear()

    def _refuse(self, method: str, path: str, caller: Caller) -> None:
        if method == "DELETE" or path.endswith(_RELIEF) or path.startswith("/v1/leases/"):
            return
        most = self.most()
        sessions = [tenant for under_way, tenant in self._sessions.values() if under_way]
        busy, own = len(self._busy) + len(sessions), self._of_tenant[caller.tenant] + sessions.count(caller.tenant)
        if busy < most * (1 + TENANT_SHARE) / 2 and own < TENANT_SHARE * most:
            return
        raise SandboxResourceExhaustedError(
            f"the server has {busy} requests under way ({own} of this caller), and descriptors for no more",
            retry_delay_seconds=AGAIN_SECONDS,
        )
