"""What happens by the clock: leases, lifetimes, process 1s that fell silent, retention, places that resisted removal."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sqlite3
import time
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError
from aviato.server.admission import capacity
from aviato.server.link.ended import SandboxGone
from aviato.server.machine import give_memory_back, resident_bytes, room
from aviato.server.service.lifecycle import STOP_SLACK_SECONDS
from aviato.system.threads import in_thread
from aviato.trees.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato.server.service import Service
    from aviato.server.service.live_sandbox import LiveSandbox

log = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
UNREAD_BYTES = 256 << 20
"""Output that the server holds for readers that do not read."""
CAPACITY_SECONDS = 5.0
POOLS_SECONDS = 2.0
GARBAGE_SECONDS = 5.0
GARBAGE_BYTES = 64 << 20
"""By how much the server grows before it looks for garbage."""
CHECKPOINT_SECONDS = 5.0
PING_SECONDS = 30.0
PING_ANSWER_SECONDS = 20.0
PINGS_MISSED = 2
TRASH_SECONDS = 30.0
PURGE_SECONDS = 60.0
LIFETIME_SLACK_SECONDS = 10.0
"""A process 1 ends itself at its lifetime; one that has not so much later is ended by the server."""


class Reaper:
    """Rounds over a service, one a second. Only a lease, a lifetime or silence counts, never tags or pids."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._due: dict[str, float] = {}
        self._resident = resident_bytes()
        self._rested = self._worked = False
        """At the last look for garbage; since something was given back."""

    async def run(self) -> None:
        """Go round until cancelled."""
        await self._service.ready()
        period = min(ROUND_SECONDS, self._service.settings.lease / 4)
        before = time.monotonic()
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            # A server that stood still itself must not hold that against its clients.
            elapsed, before = min(now - before, 2 * period), now
            try:
                await self._round(now, elapsed)
            except Exception:
                log.exception("a round of the reaper failed")

    async def _round(self, now: float, elapsed: float) -> None:
        self._service.leases.tick(elapsed)
        self._service.registry.save_again()
        self._service.execs.shed(UNREAD_BYTES)
        self._end_expired(now)
        self._service.results.expire()
        if self._is_due("ping", PING_SECONDS, now):
            for sandbox in self._service.registry.live.values():
                if sandbox.runs:
                    sandbox.spawn(asyncio.create_task(self._ping(sandbox)))
        if self._is_due("capacity", CAPACITY_SECONDS, now) and self._service.settings.max_sandboxes is None:
            admission = self._service.slots.admission
            admission.limit = capacity(await in_thread(room, admission.live))
            self._service.slots.update()
        if self._is_due("pools", POOLS_SECONDS, now):
            self._service.warm_pools.tick()
        if self._is_due("garbage", GARBAGE_SECONDS, now):
            self._collect()
        if self._is_due("checkpoint", CHECKPOINT_SECONDS, now, at_once=True):
            await self._keep_store_small("be folded", lambda: in_thread(self._service.store.checkpoint))
        if self._is_due("trash", TRASH_SECONDS, now):
            for place_id, sandbox_id in list(self._service.lifecycle.leftovers.items()):
                if self._service.registry.is_saved(sandbox_id):
                    await self._service.lifecycle.destroy(place_id)
            await in_thread(empty_trash, self._service.folder.trash)
            await self._service.snapshots.expire()
        if self._is_due("purge", min(PURGE_SECONDS, self._service.settings.record_retention), now, at_once=True):
            await self._keep_store_small("forget what is old", self._purge)

    async def _keep_store_small(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except sqlite3.Error as error:
            log.error("the store cannot %s now: %s", what, error)

    def _collect(self) -> None:
        """Errors hold what they quote in circles, and Python frees these by their number: few large ones stay for long.

        A server that had no sandbox this time and the last gives all back that it can.
        """
        rests = not self._service.registry.live
        done = rests and self._rested and self._worked
        self._rested, self._worked = rests, not rests or (self._worked and not done)
        if (resident := resident_bytes()) > self._resident + GARBAGE_BYTES or done:
            gc.collect()
            self._service.store.shrink()
            give_memory_back()
            resident = resident_bytes()
        self._resident = resident

    def _is_due(self, what: str, period: float, now: float, *, at_once: bool = False) -> bool:
        """Whether it is time for something; what must not wait is due `at_once`, since a server may never get old."""
        if now < self._due.setdefault(what, now if at_once else now + period):
            return False
        self._due[what] = now + period
        return True

    def _end_expired(self, now: float) -> None:
        for sandbox in list(self._service.registry.live.values()):
            if sandbox.expires_at is not None and now > sandbox.expires_at + LIFETIME_SLACK_SECONDS:
                sandbox.ask_to_end("lifetime")
            if sandbox.killed_at is not None and not sandbox.is_dead and now > sandbox.killed_at + STOP_SLACK_SECONDS:
                self._service.lifecycle.force(sandbox)

    async def _ping(self, sandbox: LiveSandbox) -> None:
        link = sandbox.link
        if link is None:
            return
        heard = link.heard
        try:
            async with asyncio.timeout(PING_ANSWER_SECONDS):
                await link.ping()
            sandbox.pings_missed = 0
        except TimeoutError:
            # One that has thousands of requests before this one, on a busy machine, is slow, and says things meanwhile.
            sandbox.pings_missed = 0 if link.heard > heard else sandbox.pings_missed + 1
            if sandbox.pings_missed >= PINGS_MISSED and sandbox.link is link:
                log.warning("sandbox %s does not answer any more and is given up", sandbox.sandbox_id)
                self._service.lifecycle.force(sandbox)
        except (SandboxGone, AviatoError):
            return

    async def _purge(self) -> None:
        before = time.time() - self._service.settings.record_retention
        while ids := self._service.store.purge(before):
            await in_thread(self._service.logs.remove, ids)
            await in_thread(self._service.egress.forget, ids)


def empty_trash(trash: str) -> None:
    """Remove what can be removed by now; for a worker thread."""
    parent = os.open(trash, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(parent):
            try:
                for _ in remove_tree(parent, name):
                    pass
            except OSError as error:
                log.debug("%s cannot be removed yet: %s", name, error)
    finally:
        os.close(parent)
