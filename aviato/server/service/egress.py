"""The way out of sandboxes: in each that has one, a listener of its own network, whose connections the server's proxy serves.

Process 1 makes that listener inside and keeps it, so that connections wait while there is no server.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import resource
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.capabilities import Capability
from aviato.server.egress.journal import Journal
from aviato.server.egress.lookup import LOOKUPS_A_SANDBOX, Lookup
from aviato.server.egress.policy import make_policy, networks
from aviato.server.egress.proxy import Proxy
from aviato.server.link.listeners import SocketListener

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aviato.server.backends.base import Backend
    from aviato.server.link.listeners import Listener
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.wire.sandboxes import CreateSandbox

log = logging.getLogger(__name__)

FIRST_PORT = 3128
CONNECTIONS_A_SANDBOX = 128
CONNECTIONS_A_SECOND = 100
"""Of one sandbox, after `CONNECTIONS_AT_ONCE` without delay: whoever connects in a loop keeps the server from nothing else."""
CONNECTIONS_AT_ONCE = 256
ACCEPTS_A_TURN = 16
FULL_SECONDS = 1.0
CONNECTION_FILES = 16
"""Descriptors of the server for each connection. One takes two; what ports may use leaves half of all."""
WARNING_SECONDS = 30.0


def port_of(request: CreateSandbox) -> int | None:
    """Where inside the proxy listens; None where there is no way out. Ports that are exposed are left to their programs."""
    if request.egress_mode in (None, "none"):
        return None
    return next(port for port in range(FIRST_PORT, FIRST_PORT + len(request.ports) + 1) if port not in request.ports)


@dataclass(eq=False)
class _Way:
    """The way out of one sandbox, or of a place that one may get."""

    sandbox_id: str
    listener: Listener
    proxy: Proxy
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    is_logged: bool = True
    accepting: bool = False
    turn: int = 0
    """Of its last wait for a place."""
    warned_at: float = float("-inf")
    credit: float = CONNECTIONS_AT_ONCE
    credited_at: float = field(default_factory=time.monotonic)

    def may_connect(self) -> bool:
        """Take one off what it may open by now, if there is one."""
        now = time.monotonic()
        self.credit = min(CONNECTIONS_AT_ONCE, self.credit + (now - self.credited_at) * CONNECTIONS_A_SECOND)
        self.credited_at = now
        if self.credit < 1:
            return False
        self.credit -= 1
        return True


class Egress:
    """The ways out of all sandboxes.

    Args:
        backend: makes the listeners inside.
        directory: where requests are logged.
        allowed: networks that are reachable whatever kind of addresses they have.
    """

    def __init__(self, backend: Backend, directory: str, allowed: Sequence[str]) -> None:
        self.lookup = Lookup()
        self.journal = Journal(directory)
        self._backend = backend
        self._allowed = networks(allowed)
        self._ways: dict[str, _Way] = {}
        self._full: set[_Way] = set()
        self._waiting: list[tuple[int, int, _Way]] = []
        """A heap of those that wait for a place among all, who has fewest in front: connections, turn. Some are stale."""
        self._turns = 0
        self._connections = 0
        self._leaving: set[asyncio.Task[None]] = set()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = 1 << 20 if files == resource.RLIM_INFINITY else files
        self.most_connections = files // CONNECTION_FILES

    async def attach(self, sandbox: LiveSandbox) -> None:
        """Begin to serve, now that a sandbox has a process 1 and before anything runs in it; again after a restart.

        One that has its way out keeps it.

        Raises:
            SandboxUnavailableError: a new sandbox does not get its way out. One that has run before lives on without.
        """
        if sandbox.sandbox_id in self._ways:
            return
        try:
            listener = await self._listener(sandbox.place_id, sandbox.request)
        except OSError as error:
            if sandbox.record.started_at is None:
                message = f"sandbox {sandbox.sandbox_id} cannot get its way to the network: {error}"
                raise SandboxUnavailableError(message, sandbox_id=sandbox.sandbox_id, reason="egress") from error
            log.warning("sandbox %s has no way to the network any more: %s", sandbox.sandbox_id, error)
            return
        if listener is not None:
            self._serve(sandbox.sandbox_id, listener, sandbox.request)

    async def attach_place(self, place_id: str, request: CreateSandbox) -> None:
        """Begin to serve a place that nobody has yet. What it asks for is in nobody's log.

        Raises:
            OSError: it does not get its way out.
        """
        listener = await self._listener(place_id, request)
        if listener is not None:
            self._serve(place_id, listener, request, is_logged=False)

    def hand_over(self, place_id: str, sandbox: LiveSandbox) -> None:
        """A place is a sandbox's from here on, which may reach the same; so is its way out."""
        if (way := self._ways.pop(place_id, None)) is not None:
            way.sandbox_id, way.is_logged = sandbox.sandbox_id, True
            self._ways[sandbox.sandbox_id] = way

    async def _listener(self, place_id: str, request: CreateSandbox) -> Listener | None:
        """What process 1 makes inside; None where there is no way out."""
        port = port_of(request)
        is_brought = self._backend.brings_internet and request.egress_mode == "internet"
        if port is None or is_brought or Capability.EGRESS not in self._backend.capabilities:
            return None  # There is none, or the backend has brought it about.
        channel = await self._backend.open_port_channel(place_id)
        try:
            made = await channel.listen(port)
            return SocketListener(made) if isinstance(made, socket.socket) else made
        finally:
            channel.close()

    def _serve(self, owner_id: str, listener: Listener, request: CreateSandbox, *, is_logged: bool = True) -> None:
        assert request.egress_mode is not None

        def note(entry: dict[str, Any]) -> None:
            if way.is_logged:
                self.journal.note(way.sandbox_id, entry)

        asker = asyncio.Semaphore(LOOKUPS_A_SANDBOX)
        proxy = Proxy(make_policy(request.egress_mode, self._allowed), self.lookup, asker, note)
        way = self._ways[owner_id] = _Way(owner_id, listener, proxy, is_logged=is_logged)
        self._accept_from(way)

    def close(self, sandbox_id: str) -> None:
        """A sandbox or a place has ended, and its connections with it."""
        way = self._ways.pop(sandbox_id, None)
        if way is None:
            return
        self._accept_no_more(way)
        way.listener.close()
        for task in way.connections:
            task.cancel()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def shut(self) -> None:
        """The server goes: connections are cut, listeners stay with the process 1s."""
        for sandbox_id in list(self._ways):
            self.close(sandbox_id)
        await asyncio.gather(*self._leaving, return_exceptions=True)
        self.lookup.close()
        await self.journal.close()

    def forget(self, sandbox_ids: Iterable[str]) -> None:
        """Take away the logs of sandboxes that are no longer on record; for a worker thread."""
        self.journal.remove(sandbox_ids)

    # -- connections

    def _accept_from(self, way: _Way) -> None:
        self._full.discard(way)
        if not way.accepting:
            way.accepting = True
            way.listener.watch(partial(self._accept, way))

    def _accept_no_more(self, way: _Way) -> None:
        self._full.discard(way)
        if way.accepting:
            way.accepting = False
            way.listener.unwatch()

    def _accept(self, way: _Way) -> None:
        for _ in range(ACCEPTS_A_TURN):
            if len(way.connections) >= CONNECTIONS_A_SANDBOX:
                self._pause(way, f"has {len(way.connections)} connections to the network, the most that it may have")
                return
            # As many as are left for others, so that a few sandboxes cannot take all.
            if len(way.connections) >= self.most_connections - self._connections:
                self._wait(way)
                self._pause(way, f"waits: the server may have {self.most_connections} connections to the network, and has most")
                return
            if not way.may_connect():
                self._accept_no_more(way)
                asyncio.get_running_loop().call_later(ACCEPTS_A_TURN / CONNECTIONS_A_SECOND, self._accept_from, way)
                return
            try:
                sock = way.listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                way.credit += 1
                return
            except OSError as error:
                self._pause(way, f"cannot connect to the network: {error}")
                asyncio.get_running_loop().call_later(FULL_SECONDS, self._accept_from, way)
                return
            task = asyncio.create_task(way.proxy.serve(sock), name=f"egress of {way.sandbox_id}")
            way.connections.add(task)
            self._connections += 1
            task.add_done_callback(partial(self._ended, way, sock))

    def _pause(self, way: _Way, why: str) -> None:
        """Let further connections wait in the kernel."""
        self._accept_no_more(way)
        self._full.add(way)
        now = time.monotonic()
        if now - way.warned_at >= WARNING_SECONDS:
            way.warned_at = now
            log.warning("sandbox %s %s; others wait", way.sandbox_id, why)

    def _ended(self, way: _Way, sock: socket.socket, task: asyncio.Task[None]) -> None:
        way.listener.finish(sock)
        way.connections.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection of sandbox %s to the network broke off", way.sandbox_id, exc_info=error)
        self._connections -= 1
        if way in self._full:
            self._accept_from(way)
        # Whose own number has not changed waits as it did, unless there is a place for it.
        while self._waiting and self._waiting[0][0] < self.most_connections - self._connections:
            _, turn, waiting = heapq.heappop(self._waiting)
            if waiting in self._full and waiting.turn == turn:
                self._accept_from(waiting)
                # At once: if nobody is there after all, the place is for the next.
                self._accept(waiting)

    def _wait(self, way: _Way) -> None:
        if len(self._waiting) > 2 * len(self._ways) + 16:
            self._waiting = [one for one in self._waiting if one[2] in self._full and one[2].turn == one[1]]
            heapq.heapify(self._waiting)
        self._turns += 1
        way.turn = self._turns
        heapq.heappush(self._waiting, (len(way.connections), way.turn, way))
