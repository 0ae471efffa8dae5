"""What is left to be done of sandboxes that have died and that nobody waits for, for many of them at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.registry import Registry

log = logging.getLogger(__name__)

TOGETHER_SECONDS = 0.05


class BatchCleanup:
    """Puts ends on record in one commit, then has the places taken away in one turn of a thread.

    In this order: of a sandbox that is on record as ended the next server takes away whatever is left, and in place of one that
    is not it would make another.

    Args:
        registry: has the records.
        destroy: takes places away.
        on_gone: told of each sandbox when all of that is done.
    """

    def __init__(
        self,
        registry: Registry,
        destroy: Callable[[Sequence[str]], Awaitable[None]],
        on_gone: Callable[[LiveSandbox], None],
    ) -> None:
        self._registry = registry
        self._destroy = destroy
        self._on_gone = on_gone
        self._sandboxes: list[LiveSandbox] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, sandbox: LiveSandbox) -> None:
        """One that has died; its record says how it ended."""
        self._sandboxes.append(sandbox)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_SECONDS, self._begin)

    async def close(self) -> None:
        """Do what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._begin()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self) -> None:
        self._timer = None
        sandboxes, self._sandboxes = self._sandboxes, []
        task = asyncio.create_task(self._finish(sandboxes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, sandboxes: list[LiveSandbox]) -> None:
        self._registry.save_together([sandbox.record for sandbox in sandboxes])
        await self._destroy([sandbox.place_id for sandbox in sandboxes])
        for sandbox in sandboxes:
            try:
                self._on_gone(sandbox)
            except Exception:
                log.exception("what follows the end of sandbox %s broke off", sandbox.sandbox_id)
