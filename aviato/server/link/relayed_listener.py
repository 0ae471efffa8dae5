"""A listening socket inside whose connections come over the link."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from aviato.server.link.ended import SandboxGone
from aviato.server.port_relay import relay

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.link.port_calls import PortCalls
    from aviato.server.link.relayed_port import RelayedPort

READY = 16
"""So many connections are waited for ahead: a request more each would be a way more."""
MOST = 192
"""With those that are over for the server, and whose last bytes the inside has not taken."""
AGAIN_SECONDS = 0.2
PAIR_BYTES = 64 << 10
"""Of each of the two sockets between proxy and relay: what waits for a slow reader is memory of this machine's."""
LAST_SECONDS = 30.0
"""So long the inside may take to read what was written last."""


class _NearEnd(socket.socket):
    """What stands for the connection here. A reset, which sockets of its family do not have, goes on by `broken`."""

    broken: Callable[[], object]

    def setsockopt(self, *words: Any) -> None:
        """See `socket`."""
        if words[:2] == (socket.SOL_SOCKET, socket.SO_LINGER):
            self.broken()  # Whoever is about to close so has nothing more to say.
        else:
            super().setsockopt(*words)


class RelayedListener:
    """See `Listener`. Whoever is accepted gets a socket of this machine, behind which a relay stands.

    Args:
        link: to the process 1 that listens, by the request `listen`.
        port: at which it does.
    """

    def __init__(self, link: PortCalls, port: int) -> None:
        self._link = link
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._ready: Callable[[], None] | None = None
        self._is_told = self._is_closed = False
        self._waiting: set[RelayedPort] = set()
        self._connected: deque[RelayedPort] = deque()
        self._relays: dict[socket.socket, asyncio.Task[tuple[int, int]]] = {}
        self._ending: set[asyncio.Task[tuple[int, int]]] = set()
        self._again: asyncio.TimerHandle | None = None

    def watch(self, ready: Callable[[], None]) -> None:
        """See `Listener`."""
        if not self._is_closed:
            self._ready = ready
            self._wait_for_more()
            self._tell_soon()

    def unwatch(self) -> None:
        """See `Listener`."""
        self._ready = None

    def accept(self) -> socket.socket:
        """See `Listener`."""
        while self._connected and self._connected[0].lost:
            self._connected.popleft()
        if not self._connected:
            self._wait_for_more()
            raise BlockingIOError
        near, theirs = socket.socketpair()
        own = _NearEnd(fileno=near.detach())
        for sock in (own, theirs):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BYTES)
        task = self._loop.create_task(relay(theirs, self._connected.popleft()), name=f"a connection to port {self._port}")
        task.add_done_callback(partial(self._passed_on, theirs))
        own.broken = task.cancel
        self._relays[own] = task
        self._wait_for_more()
        return own

    def finish(self, sock: socket.socket) -> None:
        """See `Listener`."""
        sock.close()
        task = self._relays.pop(sock, None)
        if task is not None and not task.done():
            self._ending.add(task)
            last = self._loop.call_later(0.0 if self._is_closed else LAST_SECONDS, task.cancel)
            task.add_done_callback(lambda _: last.cancel())

    def close(self) -> None:
        """See `Listener`."""
        self._is_closed, self._ready = True, None
        if self._again is not None:
            self._again.cancel()
        for one in (*self._waiting, *self._connected):
            one.abort()
        self._connected.clear()
        for task in self._ending:
            task.cancel()

    def _wait_for_more(self) -> None:
        """Ask for as many connections as may come."""
        if self._is_closed or self._again is not None:
            return
        room = MOST - len(self._relays) - len(self._ending) - len(self._waiting) - len(self._connected)
        for _ in range(min(room, READY - len(self._waiting) - len(self._connected))):
            try:
                one = self._link.wait_for(self._port)
            except SandboxGone:
                self._wait_again()
                return
            self._waiting.add(one)
            one.answer.add_done_callback(partial(self._came, one))

    def _wait_again(self) -> None:
        """Soon: its link may be coming back."""
        if not self._is_closed and self._again is None and self._link.ended() is None and not self._link.is_detached:
            self._again = self._loop.call_later(AGAIN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._again = None
        self._wait_for_more()

    def _came(self, one: RelayedPort, answer: asyncio.Future[None]) -> None:
        self._waiting.discard(one)
        if answer.cancelled() or answer.exception() is not None:
            self._wait_again()
        elif self._is_closed:
            one.abort()
        else:
            self._connected.append(one)
            self._tell_soon()

    def _tell_soon(self) -> None:
        if self._connected and self._ready is not None and not self._is_told:
            self._is_told = True
            self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._is_told = False
        if self._connected and self._ready is not None:
            self._ready()
            self._tell_soon()

    def _passed_on(self, theirs: socket.socket, task: asyncio.Task[tuple[int, int]]) -> None:
        theirs.close()  # One that is cancelled before its first step has not.
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()
        self._wait_for_more()
