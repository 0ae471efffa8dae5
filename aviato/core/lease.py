"""What a process shares towards one server on one loop: its lease, its acknowledgements, its warnings."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from aviato.core.acknowledgements import Acknowledger
from aviato.core.background import background
from aviato.core.client import Client
from aviato.core.following import Following
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxUnavailableError
from aviato.log import logger
from aviato.system import monkey_patches, standard_streams
from aviato.transport.http import HttpTransport
from aviato.wire.ids import new_lease_id

if TYPE_CHECKING:
    from aviato.core.client import Retrying
    from aviato.core.execution import Execution
    from aviato.core.shared import SharedTask
    from aviato.wire.sandboxes import LeaseInfo, QueueInfo

HEARTBEAT_SECONDS = 10.0
QUEUE_WARNING_SECONDS = 30.0
SUBMIT_SECONDS = 2.0
LONGEST_SUBMIT_SECONDS = 60.0
"""A process that ends waits so long for each step of what its detached commands need of it, and for all of them."""
_LOOK_AGAIN_SECONDS = 0.2
_RENEW_AGAIN_SECONDS = 1.0
_FIRST_RENEWAL_SECONDS = 0.5


class Lease:
    """What one loop of this process holds at one server: its sandboxes live by it.

    Attributes:
        lease_id: the lease of every sandbox made from here.
        left: it has ended for good: nothing is made from here any more.
    """

    def __init__(self, base_url: str, retry: Retrying) -> None:
        monkey_patches.check()
        standard_streams.hold()
        self.base_url = base_url
        self.lease_id = new_lease_id()
        self._retry = retry
        self._transports: dict[float, HttpTransport] = {}
        self._client = self.client(60.0, 60.0, retry)
        self.acknowledgements = Acknowledger(self._client.acknowledge)
        self.following = Following(self._client)
        self._keeper: asyncio.Task[None] | None = None
        self.submitting: set[asyncio.Future[None]] = set()
        """What commands that outlive this process still need of it: to be accepted by the server, and pieces of their input."""
        self.executions: dict[str, Execution] = {}
        """Commands that this process runs now: whoever attaches to one of them waits until the server has it."""
        self.builds: dict[object, SharedTask[str]] = {}
        """Images that this process has had built at this server, by what they were to be."""
        self.left = False
        self._warned_at = 0.0
        self._away = False

    def client(self, request_timeout_seconds: float, reconnect_timeout_seconds: float, retry: Retrying | None = None) -> Client:
        """A client with these limits; transports are shared."""
        transport = self._transports.get(request_timeout_seconds)
        if transport is None:
            transport = HttpTransport(self.base_url, request_timeout_seconds=request_timeout_seconds)
            self._transports[request_timeout_seconds] = transport
        return Client(transport, retry or self._retry, reconnect_timeout_seconds=reconnect_timeout_seconds)

    @property
    def ended(self) -> bool:
        """Whether the lease was ended; there is nothing left to clean up one by one."""
        return self.acknowledgements.ended

    # -- the lease

    def take_lease(self) -> str:
        """The id of the lease for a sandbox that is about to be made; after an end that was survived it is held again.

        Raises:
            AviatoValidationError: it was left.
        """
        if self.left:
            raise AviatoValidationError("use an AsyncClient inside its `async with`")
        self.acknowledgements.ended = False
        return self.lease_id

    def hold(self) -> None:
        """Keep the lease alive from now on; called when a sandbox has been created under it."""
        if self.left:
            background(self._end_late())  # Its create was on its way meanwhile.
        elif self._keeper is None or self._keeper.done():
            self._keeper = background(self._keep())

    async def end(self, *, again: bool = False) -> None:
        """End the lease with all its sandboxes, if it ever held one.

        Args:
            again: repeat what came to nothing. The last word of a process needs no repeating: its end is as good.
        """
        await self._submit()
        self.following.stop()
        self.acknowledgements.ended = True
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        keeper.cancel()
        server = self._client.transport.server
        if server.endpoint.embedded and not server.up:
            return  # starting a server to end a lease would be absurd; the next one ends those of dead processes
        count = self.following.alive if logger.isEnabledFor(logging.INFO) else 0
        try:
            await self._client.end_lease(self.lease_id, again=again)
            if count:
                logger.info("%d sandboxes have ended with the lease of this process", count)
        except SandboxUnavailableError as error:
            logger.debug("the lease could not be ended, its server is gone: %s", error)

    async def _end_late(self) -> None:
        try:
            await self._client.end_lease(self.lease_id, again=True)
        except AviatoError as error:
            logger.debug("a sandbox that was made late could not be ended with its lease: %s", error)

    async def _submit(self) -> None:
        """Wait until commands that outlive this process have what they need of it, as long as that makes progress."""
        deadline = time.monotonic() + LONGEST_SUBMIT_SECONDS
        while self.submitting and time.monotonic() < deadline:
            waiting = set(self.submitting)
            done, _ = await asyncio.wait(waiting, timeout=SUBMIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for _ in range(3):
                await asyncio.sleep(0)  # The next write of a queue begins a few turns later.
        if self.submitting:
            logger.warning("this process ends before its detached commands had begun, or had got all of their stdin")

    async def _keep(self) -> None:
        """Keep the lease alive as the server says: where it watches this process, it has only to know the next server."""
        await asyncio.sleep(_FIRST_RENEWAL_SECONDS)  # the create has made it; the first commands come before this
        while True:
            lease = await self._renew()
            if lease is None:
                await asyncio.sleep(_RENEW_AGAIN_SECONDS)
            elif lease.kind == "heartbeat":
                await asyncio.sleep(min(HEARTBEAT_SECONDS, lease.period_seconds / 4))
            else:
                try:
                    await self._client.transport.until_lost()
                except AviatoError as error:
                    logger.debug("the server is away: %s", error)
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _renew(self) -> LeaseInfo | None:
        alive = self.following.alive
        try:
            lease = await self._client.put_lease(self.lease_id)
        except AviatoError as error:
            level = logging.DEBUG if self._away or not self.following.alive else logging.WARNING
            self._away = True
            logger.log(level, "the lease of this process could not be renewed, and its sandboxes end without: %s", error)
            return None
        self._away = False
        self.following.kept(lease.sandboxes, alive)
        return lease

    # -- the queue

    def waiting_in_queue(self, queue: QueueInfo | None) -> None:
        """Say who holds the places, now and then, while something waits for one."""
        now = time.monotonic()
        if queue is None or now - self._warned_at < QUEUE_WARNING_SECONDS:
            return
        self._warned_at = now
        holders = ", ".join(f"{who} holds {count}" for who, count in sorted(queue.holders.items(), key=lambda item: -item[1]))
        logger.warning(
            "waiting for a sandbox: %d of %d are in use (%s); place %d in the queue",
            *(queue.live, queue.limit, holders or "nobody", queue.position),
        )


_leases: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Lease]] = WeakKeyDictionary()


def lease_of(base_url: str, retry: Retrying) -> tuple[Lease, bool]:
    """The lease of the running loop at a server, and whether it is new.

    A forked child has a loop, so a lease, of its own.
    """
    found = _leases.setdefault(asyncio.get_running_loop(), {})
    if base_url in found:
        return found[base_url], False
    made = found[base_url] = Lease(base_url, retry)
    return made, True
