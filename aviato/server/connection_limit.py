"""All connections of a server: fewer than it has descriptors for, so that sandboxes can always be made and reached."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxResourceExhaustedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

    from aviato.server.callers import Caller

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
    """

    def __init__(self) -> None:
        self.runner: web.AppRunner | None = None
        """Of the server, once it is set up."""
        self._busy: dict[object, str | None] = {}
        self._of_tenant: Counter[str | None] = Counter()
        self._idle_since: dict[object, float] = {}

    def most(self) -> int:
        """How many may be connected."""
        return max(LEAST, open_files() // SHARE)

    def begin(self, request: web.Request, caller: Caller) -> None:
        """A request is under way on its connection.

        Raises:
            SandboxResourceExhaustedError: there are as many as there may be.
        """
        if self.is_large:
            self._refuse(request, caller)
        self.take_in(request.protocol, caller)

    @property
    def is_large(self) -> bool:
        """Whether there are so many that it depends on the request whether it may be one more."""
        return len(self._busy) >= TENANT_SHARE * LEAST and len(self._busy) >= TENANT_SHARE * self.most()

    def take_in(self, connection: object, caller: Caller) -> None:
        """A request is under way on this connection, whatever it is."""
        self._busy[connection] = caller.tenant
        self._of_tenant[caller.tenant] += 1
        self._idle_since.pop(connection, None)

    def end(self, connection: object) -> None:
        """It was answered, or its caller has gone."""
        if connection in self._busy:
            tenant = self._busy.pop(connection)
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]

    def watched(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """The maker of protocols, with a look at the others whenever one comes."""

        def made() -> asyncio.Protocol:
            if len(self._connections()) >= self.most():
                self.look(time.monotonic())
            return make()

        return made

    def look(self, now: float) -> None:
        """Cut off those that are too many.

        Args:
            now: in seconds, by a clock that does not go back.
        """
        found = self._connections()
        idle = [one for one in found if one not in self._busy]
        self._idle_since = {one: self._idle_since.get(one, now) for one in idle}
        too_many = len(found) - self.most() + 1
        if too_many <= 0:
            return
        idle.sort(key=self._idle_since.__getitem__)
        for one in idle[: too_many + self.most() // BATCH]:
            if (transport := one.transport) is not None:
                transport.abort()

    async def keep_few(self, seconds: float = 1.0) -> None:
        """Take note of who is idle, again and again."""
        while True:
            await asyncio.sleep(seconds)
            if len(self._connections()) >= self.most() // 2:
                self.look(time.monotonic())
            else:
                self._idle_since.clear()

    def _connections(self) -> list[web.RequestHandler]:
        server = None if self.runner is None else self.runner.server
        return [] if server is None else server.connections

    def _refuse(self, request: web.Request, caller: Caller) -> None:
        if request.method == "DELETE" or request.path.endswith(_RELIEF) or request.path.startswith("/v1/leases/"):
            return
        most = self.most()
        own = self._of_tenant[caller.tenant]
        if len(self._busy) < most * (1 + TENANT_SHARE) / 2 and own < TENANT_SHARE * most:
            return
        raise SandboxResourceExhaustedError(
            f"the server has {len(self._busy)} requests under way ({own} of this caller), and descriptors for no more",
            retry_delay_seconds=AGAIN_SECONDS,
        )
