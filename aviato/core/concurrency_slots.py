"""At most so many sandboxes of a session at once: who has a slot, who waits for one in order, and who makes room.

On one loop at a time; on another, as in a forked child, everything begins anew.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.log import logger

if TYPE_CHECKING:
    from aviato.core.known_sandbox import KnownSandbox
    from aviato.core.starting_sandbox import StartingSandbox

WARNING_SECONDS = 30.0
RELEASE_AGAIN_SECONDS = 1.0
_NAMED = 3


class ConcurrencySlots:
    """The slots of one session.

    Args:
        limit: how many sandboxes may hold one at once.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._next_ticket = 0
        self._tickets: list[int] = []
        self._waiting: dict[int, tuple[StartingSandbox, asyncio.Future[None]]] = {}
        self._ticket_of: dict[str, int] = {}
        self._holding: dict[str, StartingSandbox] = {}
        self._let_go: dict[str, StartingSandbox] = {}
        self._leaving: set[str] = set()
        self._resting: set[str] = set()
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._releases: set[asyncio.Task[None]] = set()
        self._warning: asyncio.TimerHandle | None = None
        self._moved_at = 0.0

    def _enter(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._begin_anew()

    # -- coming and going

    def join(self, handle: StartingSandbox) -> asyncio.Future[None]:
        """Take a slot, or wait for one at the end of the queue; resolves with the slot.

        Raises:
            AviatoValidationError: the session is closed.
        """
        self._enter()
        if self._closed:
            raise AviatoValidationError("the session of this sandbox is closed; make a new one")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = self._next_ticket
        self._next_ticket += 1
        self._tickets.append(ticket)
        self._waiting[ticket] = handle, turn
        self._ticket_of[handle.sandbox_id] = ticket
        self._update()
        if not turn.done():
            place = len(self._tickets), len(self._holding), self.limit
            logger.info("sandbox %s waits: place %d in its session's queue, %d of %d in use", handle.sandbox_id, *place)
        return turn

    def hold(self, handle: StartingSandbox) -> None:
        """Count one that lives already, even beyond the limit."""
        self._enter()
        if handle.sandbox_id not in self._ticket_of:
            self._holding[handle.sandbox_id] = handle
            self._update()

    def position(self, sandbox_id: str) -> int | None:
        """Its place in the queue, 1 is next; None if it does not wait. From any thread."""
        ticket = self._ticket_of.get(sandbox_id)
        return None if ticket is None else bisect_left(self._tickets, ticket) + 1

    def created(self, handle: KnownSandbox) -> None:
        """The server has it now."""
        self._enter()
        self._update()

    def leaving(self, handle: KnownSandbox, now: bool) -> None:
        """It was told to end, so its slot will be free without releasing another; or that came to nothing."""
        self._enter()
        if now and handle.sandbox_id in self._holding:
            self._leaving.add(handle.sandbox_id)
        elif not now and handle.sandbox_id in self._leaving:
            self._leaving.discard(handle.sandbox_id)
            self._update()

    def leave(self, handle: KnownSandbox) -> bool:
        """It has ended, will not start, or waits no more; True if it still waited."""
        self._enter()
        name = handle.sandbox_id
        ticket = self._ticket_of.pop(name, None)
        if ticket is not None:
            del self._tickets[bisect_left(self._tickets, ticket)]
            _, turn = self._waiting.pop(ticket)
            turn.cancel()
        if self._holding.pop(name, None) is not None:
            self._let_go.pop(name, None)
            self._leaving.discard(name)
            self._unwatch(name)
        self._update()
        return ticket is not None

    def let_go(self, handle: KnownSandbox) -> None:
        """Nobody can use it any more, and its commands have ended: it may be released."""
        self._enter()
        if (held := self._holding.get(handle.sandbox_id)) is not None:
            self._let_go[handle.sandbox_id] = held
            self._update()

    def close(self) -> None:
        """Nobody gets a slot any more; who waits will not start."""
        self._enter()
        self._closed = True
        for handle, _ in list(self._waiting.values()):
            handle.withdraw()

    # -- giving out slots

    def _update(self) -> None:
        """Give out what is free; make room where that is not enough."""
        while self._tickets and len(self._holding) < self.limit:
            handle, turn = self._waiting.pop(self._tickets.pop(0))
            del self._ticket_of[handle.sandbox_id]
            self._holding[handle.sandbox_id] = handle
            self._moved_at = time.monotonic()
            turn.set_result(None)
        if not self._tickets:
            for name in list(self._watches):
                self._unwatch(name)
            return
        if len(self._watches) < len(self._holding):
            self._watch_all()
        wanted = len(self._tickets) - len(self._leaving)
        if wanted > 0 and self._let_go:
            self._release_oldest(wanted)
        if self._warning is None:
            self._moved_at = time.monotonic()
            self._warn_in(WARNING_SECONDS)

    def _watch_all(self) -> None:
        """While somebody waits, an end that nobody here asked for has to be noticed."""
        for name, handle in self._holding.items():
            if name not in self._watches and handle.accepted:
                self._watches[name] = asyncio.get_running_loop().create_task(self._watch(handle), name=f"watch {name}")

    def _unwatch(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()

    async def _watch(self, handle: StartingSandbox) -> None:
        try:
            while not handle.see(await handle.client.poll(handle.sandbox_id, "ended")).status.is_terminal:
                pass
        except AviatoError as error:
            # Unknown, or its server is gone for good. Whoever waits shall try, and hear that, rather than wait in vain.
            logger.debug("sandbox %s is counted as ended: %s", handle.sandbox_id, error)
            self.leave(handle)

    def _release_oldest(self, wanted: int) -> None:
        free = [handle for name, handle in self._let_go.items() if name not in self._leaving and name not in self._resting]
        for handle in sorted(free, key=lambda one: one.created_at)[:wanted]:
            self._leaving.add(handle.sandbox_id)
            task = asyncio.get_running_loop().create_task(self._release(handle), name=f"release {handle.sandbox_id}")
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, handle: StartingSandbox) -> None:
        try:
            await handle.release()
        except AviatoError as error:
            logger.debug("sandbox %s could not be released: %s", handle.sandbox_id, error)
        name = handle.sandbox_id
        if self._holding.get(name) is handle:
            # Another process uses it, or the server is away.
            self._resting.add(name)
            asyncio.get_running_loop().call_later(RELEASE_AGAIN_SECONDS, self._rested, handle)
            self.leaving(handle, False)

    def _rested(self, handle: StartingSandbox) -> None:
        self._resting.discard(handle.sandbox_id)
        self._update()

    # -- telling

    def _warn_in(self, seconds: float) -> None:
        self._warning = asyncio.get_running_loop().call_later(seconds, self._warn)

    def _warn(self) -> None:
        self._warning = None
        if not self._tickets:
            return
        left = self._moved_at + WARNING_SECONDS - time.monotonic()
        if left > 0:
            self._warn_in(left)
            return
        logger.warning(
            "%d sandboxes wait for a slot in their session and none became free for %d s: max_concurrency=%d, %s; "
            "stop() what is not needed, or let go of its Sandbox object",
            *(len(self._tickets), WARNING_SECONDS, self.limit, self._holders()),
        )
        self._warn_in(WARNING_SECONDS)

    def _holders(self) -> str:
        """Who holds how many slots, for people."""
        groups: dict[str, list[str]] = {}
        for name, handle in self._holding.items():
            what = "starting" if not handle.accepted else "running a command or call" if handle.in_use else "unused but kept"
            groups.setdefault(what, []).append(name)
        return ", ".join(f"{len(names)} {what} ({_some(names)})" for what, names in sorted(groups.items()))


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
