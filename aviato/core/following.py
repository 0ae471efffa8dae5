"""What is known of sandboxes that nobody asks about: that they run, and that they have ended."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError
from aviato.log import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from aviato.core.client import Client
    from aviato.core.known_sandbox import KnownSandbox
    from aviato.wire.sandboxes import SandboxInfo

SOON_SECONDS = 0.2
"""What is used at once is heard of by its first command, and costs no request."""
AFTER_SECONDS = 0.1
"""After a limit of its life, the server has ended it."""
AT_A_TIME = 8
"""Sandboxes that are waited for to run, and to end: a request each. The others have their turn after them."""
MISSED_AGAIN_SECONDS = 15.0
"""What a server misses in spite of having been asked for it is not asked for more often."""


class Following:
    """Asks a server about sandboxes of one process, so that their `status` follows without anybody's call.

    A start is followed until it runs; an end where the sandbox was made with a main command, a lifetime or an idle timeout,
    and where it is seen to be under way. Whatever else ends a sandbox is known once a call has failed by it. No sandbox is
    kept by it.

    Args:
        client: requests, in nobody's metrics.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turns = {what: asyncio.Semaphore(AT_A_TIME) for what in ("running", "ended", "missed")}
        self._missed: tuple[int, int] | None = None
        self._missed_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._made: weakref.WeakSet[KnownSandbox] = weakref.WeakSet()
        self._ending: weakref.WeakSet[KnownSandbox] = weakref.WeakSet()

    @property
    def alive(self) -> int:
        """How many sandboxes may live that this process made, still has an object of, and takes with it."""
        return len(self._living())

    def _living(self) -> list[KnownSandbox]:
        return [handle for handle in list(self._made) if handle.leased and not handle.is_known_to_be("ended")]

    def accepted(self, handle: KnownSandbox) -> None:
        """A sandbox is made, and may not run yet."""
        self._made.add(handle)
        self._stopped = False
        if not handle.is_known_to_be("running"):
            self._later(SOON_SECONDS, handle, self._until_running)

    def runs(self, handle: KnownSandbox) -> None:
        """A sandbox runs: what it was made with says when it ends."""
        made = handle.create_fields or {}
        lifetime, idle = made.get("max_lifetime_seconds"), made.get("idle_timeout_seconds")
        if made.get("command") is not None:
            self._later(SOON_SECONDS, handle, self._until_ended)
        elif lifetime is not None:
            self._later(lifetime - _age(handle.info, lifetime) + AFTER_SECONDS, handle, self._until_ended)
        if idle is not None:
            self._later(idle + AFTER_SECONDS, handle, self._if_idle)

    def may_have_ended(self, handle: KnownSandbox) -> None:
        """A call has failed by the end of a sandbox."""
        if not handle.is_known_to_be("ended"):
            self._begin(self._look(weakref.ref(handle)))

    def is_ending(self, handle: KnownSandbox) -> None:
        """The server said that a sandbox is about to end, which it will whatever is called."""
        if handle not in self._ending and not handle.is_known_to_be("ended"):
            self._ending.add(handle)
            self._begin(self._wait(weakref.ref(handle), "ended"))

    def kept(self, count: int | None, alive: int) -> None:
        """A server holds sandboxes by the lease of this process. Where it has fewer than live, another one has the rest.

        That one lets them end by the lease, which nobody renews there. Whoever is asked for a sandbox has it from then on.

        Args:
            count: how many it has; None: it does not say.
            alive: how many were alive when it was asked.
        """
        now = time.monotonic()
        if count is None or count >= alive:
            self._missed = None
        elif self._missed != (count, alive) or now - self._missed_at >= MISSED_AGAIN_SECONDS:
            self._missed, self._missed_at = (count, alive), now
            for handle in self._living():
                self._begin(self._miss(weakref.ref(handle)))

    def stop(self) -> None:
        """Ask no more, until another sandbox is made."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    def _later(self, seconds: float, handle: KnownSandbox, then: Callable[[weakref.ref[KnownSandbox]], object]) -> None:
        asyncio.get_running_loop().call_later(seconds, then, weakref.ref(handle))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        if self._stopped:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _until_running(self, ref: weakref.ref[KnownSandbox]) -> None:
        if (handle := ref()) is not None and not handle.is_known_to_be("running"):
            self._begin(self._wait(ref, "running"))

    def _until_ended(self, ref: weakref.ref[KnownSandbox]) -> None:
        if (handle := ref()) is not None and not handle.is_known_to_be("ended"):
            self._begin(self._wait(ref, "ended"))

    def _if_idle(self, ref: weakref.ref[KnownSandbox]) -> None:
        handle = ref()
        if handle is None or handle.is_known_to_be("ended"):
            return
        idle: float = (handle.create_fields or {})["idle_timeout_seconds"]
        left = idle if handle.in_use else handle.used_at + idle - time.monotonic()
        if left > 0:
            self._later(left + AFTER_SECONDS, handle, self._if_idle)
        else:
            self._begin(self._look(ref, again_seconds=idle))

    async def _wait(self, ref: weakref.ref[KnownSandbox], until: str) -> None:
        while True:
            async with self._turns[until]:
                known = await self._ask(ref, until, lambda sandbox_id: self._client.poll(sandbox_id, until))
            if known:
                return

    async def _miss(self, ref: weakref.ref[KnownSandbox]) -> None:
        async with self._turns["missed"]:
            await self._look(ref)

    async def _look(self, ref: weakref.ref[KnownSandbox], again_seconds: float | None = None) -> None:
        known = await self._ask(ref, "ended", self._client.get)
        handle = ref()
        if not known and again_seconds is not None and handle is not None:
            self._later(again_seconds, handle, self._if_idle)

    async def _ask(self, ref: weakref.ref[KnownSandbox], until: str, request: Callable[[str], Awaitable[SandboxInfo]]) -> bool:
        """Whether nothing is left to ask about it."""
        handle, server = ref(), self._client.transport.server
        if handle is None or handle.is_known_to_be(until) or (server.endpoint.embedded and not server.up):
            return True  # starting a server to ask about a sandbox of the one before would be absurd
        sandbox_id = handle.sandbox_id
        del handle
        try:
            info = await request(sandbox_id)
        except AviatoError as error:
            logger.debug("sandbox %s is not asked about any more: %s", sandbox_id, error)
            return True
        if (handle := ref()) is None:
            return True
        handle.see(info)
        return handle.is_known_to_be(until)


def _age(info: SandboxInfo | None, lifetime: float) -> float:
    """For how long it has run, where the clocks of the server and of this machine can both be right."""
    age = 0.0 if info is None or info.started_at is None else time.time() - info.started_at
    return age if 0 <= age <= lifetime else 0.0
