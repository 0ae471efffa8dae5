"""Exposed ports: a listener on this machine for each, and the connections through it.

The listener belongs to the server and is kept by the sandbox's process 1 too, so that the address outlives the server and
connections that come while there is none wait for the next.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoValidationError, SandboxResourceExhaustedError, SandboxUnavailableError
from aviato.server.port_relay import refuse, relay
from aviato.server.service.registry import running
from aviato.wire.sandboxes import PORT_HOST, PortInfo, service_url

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aviato.server.backends.base import Backend
    from aviato.server.link.port_channel import PortChannel
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.long_polls import LongPolls
    from aviato.server.service.registry import Registry
    from aviato.server.service.slots import Slots

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTS_A_TURN = 64
CONNECTIONS_A_PORT = 2048
DIALS_A_PORT = 16
"""On their way at once; a program that never accepts holds up no other port."""
FULL_SECONDS = 1.0
DRAIN_SECONDS = 1.0
WARNING_SECONDS = 30.0
LOOK_SECONDS = (0.01, 0.25)
LAST_LOOK_SECONDS = 1.0


@dataclass(eq=False)
class _Port:
    """One exposed port."""

    sandbox_id: str
    number: int
    listener: socket.socket
    dials: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DIALS_A_PORT))
    connections: set[asyncio.Task[None]] = field(default_factory=set)
    accepting: bool = False
    warned_at: float = float("-inf")

    @property
    def address(self) -> int:
        """The port on this machine."""
        return int(self.listener.getsockname()[1])


@dataclass(eq=False)
class _Exposed:
    """What is exposed of one sandbox."""

    ports: dict[int, _Port]
    sandbox: LiveSandbox | None = None
    channel: PortChannel | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


class Ports:
    """The exposed ports of all sandboxes.

    Args:
        backend: makes the connections inside.
        registry: where sandboxes are found.
        slots: are told of those that are in use.
        long_polls: end when the server goes.
    """

    def __init__(self, backend: Backend, registry: Registry, slots: Slots, long_polls: LongPolls) -> None:
        self._backend = backend
        self._registry = registry
        self._slots = slots
        self._long_polls = long_polls
        self._exposed: dict[str, _Exposed] = {}
        self._full: set[_Port] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = 1 << 20 if files == resource.RLIM_INFINITY else files
        # A connection takes two descriptors: of all there are, half stay for everything else.
        self.most_connections = files // 8
        self.most_listeners = files // 4

    # -- listeners

    def open(self, sandbox_id: str, wanted: dict[int, int | None]) -> dict[int, int]:
        """Listen for each port of a sandbox; nothing is accepted yet.

        Args:
            sandbox_id: whose.
            wanted: port inside → port on this machine, as far as it had one.

        Returns:
            Port inside → port on this machine.

        Raises:
            SandboxResourceExhaustedError: the server has too many.
            SandboxUnavailableError: it cannot listen.
        """
        there = sum(len(exposed.ports) for exposed in self._exposed.values())
        if wanted and there + len(wanted) > self.most_listeners:
            message = f"the server has {there} ports open for sandboxes; its open files allow {self.most_listeners}"
            raise SandboxResourceExhaustedError(message, sandbox_id=sandbox_id, reason="ports")
        exposed = _Exposed({})
        try:
            for number, address in wanted.items():
                exposed.ports[number] = _Port(sandbox_id, number, _listen(address))
        except OSError as error:
            for port in exposed.ports.values():
                port.listener.close()
            message = f"no port of this machine can be opened for {sandbox_id}: {error.strerror}"
            raise SandboxUnavailableError(message, sandbox_id=sandbox_id, reason="ports") from None
        if exposed.ports:
            self._exposed[sandbox_id] = exposed
        return {number: port.address for number, port in exposed.ports.items()}

    async def attach(self, sandbox: LiveSandbox) -> None:
        """Begin to accept, now that a sandbox has a process 1: a new one, or one found again after a restart.

        Raises:
            SandboxUnavailableError: a new sandbox does not take its ports. One that has run before lives on without.
        """
        if not sandbox.record.ports:
            return
        try:
            await self._take_up(sandbox)
        except OSError as error:
            if sandbox.record.started_at is None:
                message = f"the ports of sandbox {sandbox.sandbox_id} cannot be opened: {error}"
                raise SandboxUnavailableError(message, sandbox_id=sandbox.sandbox_id, reason="ports") from error
            log.warning("the ports of sandbox %s cannot be opened again: %s", sandbox.sandbox_id, error)
            return
        for port in self._exposed[sandbox.sandbox_id].ports.values():
            self._accept_from(port)

    async def _take_up(self, sandbox: LiveSandbox) -> None:
        channel = await self._backend.open_port_channel(sandbox.place_id)
        exposed = self._exposed.get(sandbox.sandbox_id)
        try:
            if exposed is None:
                kept = await channel.kept()
                exposed = _Exposed({number: _Port(sandbox.sandbox_id, number, sock) for number, sock in kept.items()})
            else:
                kept = {}
            for number, address in sandbox.record.ports.items():
                if number not in exposed.ports:
                    exposed.ports[number] = _Port(sandbox.sandbox_id, number, _listen(address))
                if number not in kept:
                    await channel.keep(number, exposed.ports[number].listener)
        except BaseException:
            channel.close()
            if exposed is not None and sandbox.sandbox_id not in self._exposed:
                for port in exposed.ports.values():
                    port.listener.close()
            raise
        if exposed.channel is not None:
            exposed.channel.close()  # Of a process 1 that was before this one.
        exposed.sandbox, exposed.channel = sandbox, channel
        self._exposed[sandbox.sandbox_id] = exposed
        addresses: dict[int, int | None] = {number: exposed.ports[number].address for number in sandbox.record.ports}
        if addresses != sandbox.record.ports:
            log.warning("ports of sandbox %s have other addresses now: %s", sandbox.sandbox_id, addresses)
            sandbox.record = sandbox.record.but(ports=addresses)
            self._registry.save(sandbox.record)

    def close(self, sandbox_id: str) -> None:
        """A sandbox has ended: its addresses are free at once; its connections get a moment for what is on its way."""
        exposed = self._exposed.pop(sandbox_id, None)
        if exposed is None:
            return
        connections: set[asyncio.Task[None]] = set()
        for port in exposed.ports.values():
            self._accept_no_more(port)
            # Process 1 has it too, until it is gone.
            with suppress(OSError):
                port.listener.shutdown(socket.SHUT_RDWR)
            port.listener.close()
            connections |= port.connections
        if exposed.channel is not None:
            exposed.channel.close()
        if connections:
            leaving = asyncio.create_task(_leave(connections), name=f"connections of {sandbox_id}")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def shut(self) -> None:
        """The server goes: connections are cut, listeners stay with the process 1s."""
        tasks = set(self._leaving)
        for exposed in self._exposed.values():
            for port in exposed.ports.values():
                self._accept_no_more(port)
                port.listener.close()
                tasks |= port.connections
            if exposed.channel is not None:
                exposed.channel.close()
        self._exposed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- connections

    def _accept_from(self, port: _Port) -> None:
        self._full.discard(port)
        if not port.accepting and port.listener.fileno() >= 0:
            port.accepting = True
            asyncio.get_running_loop().add_reader(port.listener.fileno(), self._accept, port)

    def _accept_no_more(self, port: _Port) -> None:
        self._full.discard(port)
        if port.accepting:
            port.accepting = False
            asyncio.get_running_loop().remove_reader(port.listener.fileno())

    def _accept(self, port: _Port) -> None:
        for _ in range(ACCEPTS_A_TURN):
            if len(port.connections) >= min(CONNECTIONS_A_PORT, self.most_connections):
                self._pause(port, f"has {len(port.connections)} connections, the most that it may have")
                return
            if self._connections() >= self.most_connections:
                self._pause(port, f"waits: the server has {self.most_connections} connections to sandboxes, the most it may")
                return
            try:
                sock, _ = port.listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(port, f"cannot accept: {error}")
                asyncio.get_running_loop().call_later(FULL_SECONDS, self._accept_from, port)
                return
            sock.setblocking(False)
            task = asyncio.create_task(self._serve(port, sock), name=f"port {port.number} of {port.sandbox_id}")
            port.connections.add(task)
            task.add_done_callback(partial(self._ended, port, sock))

    def _pause(self, port: _Port, why: str) -> None:
        """Let further connections wait in the kernel."""
        self._accept_no_more(port)
        self._full.add(port)
        now = time.monotonic()
        if now - port.warned_at >= WARNING_SECONDS:
            port.warned_at = now
            log.warning("port %d of sandbox %s %s; others wait", port.number, port.sandbox_id, why)

    def _ended(self, port: _Port, sock: socket.socket, task: asyncio.Task[None]) -> None:
        sock.close()  # A task that is cancelled before its first step has not.
        port.connections.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection to port %d of sandbox %s broke off", port.number, port.sandbox_id, exc_info=error)
        for waiting in list(self._full):
            self._accept_from(waiting)

    def _connections(self) -> int:
        return sum(len(port.connections) for exposed in self._exposed.values() for port in exposed.ports.values())

    async def _serve(self, port: _Port, outer: socket.socket) -> None:
        exposed = self._exposed.get(port.sandbox_id)
        if exposed is None or exposed.sandbox is None:
            outer.close()
            return
        # It uses the sandbox, so that is not let go meanwhile.
        with self._slots.use(exposed.sandbox):
            try:
                async with port.dials:
                    channel = await self._channel(exposed)
                    inner = await channel.dial(port.number)
            except OSError as error:
                await refuse(outer, *_explain(port.sandbox_id, port.number, error))
            except BaseException:
                outer.close()
                raise
            else:
                try:
                    await relay(outer, inner)
                finally:
                    channel.release()

    async def _channel(self, exposed: _Exposed) -> PortChannel:
        async with exposed.opening:
            assert exposed.sandbox is not None
            if exposed.channel is None or not exposed.channel.open:
                exposed.channel = await self._backend.open_port_channel(exposed.sandbox.place_id)
            return exposed.channel

    # -- looking

    async def wait(self, sandbox_id: str, number: int, timeout_seconds: float) -> PortInfo:
        """Whether something listens on an exposed port, at the latest after the timeout.

        Raises:
            AviatoValidationError: the port is not exposed.
            SandboxError: the sandbox has ended.
        """
        sandbox = self._registry.find(sandbox_id)
        address = sandbox.record.ports.get(number)
        if address is None:
            exposed = ", ".join(map(str, sandbox.record.ports)) or "none"
            message = f"port {number} of sandbox {sandbox_id} is not exposed; exposed are: {exposed}"
            raise AviatoValidationError(message, field_violations={"port": "not exposed"})
        deadline = time.monotonic() + timeout_seconds
        with self._slots.use(sandbox):
            listening = await self._long_polls.wait(sandbox.ready, timeout_seconds) and await self._look(
                sandbox, number, deadline
            )
        return PortInfo(port=number, url=service_url(address), listening=listening)

    async def _look(self, sandbox: LiveSandbox, number: int, deadline: float) -> bool:
        pause, longest = LOOK_SECONDS
        while True:
            await running(sandbox)
            left = deadline - time.monotonic()
            with suppress(OSError):
                exposed = self._exposed.get(sandbox.sandbox_id)
                if exposed is not None and exposed.sandbox is not None:
                    async with asyncio.timeout(max(left, LAST_LOOK_SECONDS)):
                        channel = await self._channel(exposed)
                        (await channel.dial(number)).close()
                        channel.release()
                    return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await self._long_polls.wait(sandbox.settled, min(pause, left))
            pause = min(2 * pause, longest)


async def _leave(connections: Iterable[asyncio.Task[None]]) -> None:
    """Give connections of an ended sandbox a moment, then cut them."""
    tasks = set(connections)
    try:
        await asyncio.wait(tasks, timeout=DRAIN_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _listen(address: int | None) -> socket.socket:
    """A listener at this port of the loopback, or at any if that is taken.

    Raises:
        OSError: no descriptor, no port.
    """
    if address is not None:
        with suppress(OSError):
            return _listen_at(address)
    return _listen_at(0)


def _listen_at(address: int) -> socket.socket:
    listener = socket.create_server((PORT_HOST, address), backlog=BACKLOG)
    listener.setblocking(False)
    return listener


def _explain(sandbox_id: str, number: int, error: OSError) -> tuple[str, str]:
    """HTTP status and text for a connection that cannot be made."""
    where = f"port {number} of sandbox {sandbox_id}"
    if isinstance(error, TimeoutError):
        return "504 Gateway Timeout", f"The program on {where} does not accept connections."
    if error.errno == errno.ECONNREFUSED:
        return "502 Bad Gateway", f"Nobody listens on {where}. Start a server in it on that port, or wait until it listens."
    return "502 Bad Gateway", f"There is no way to {where}: {error.strerror or error}."
