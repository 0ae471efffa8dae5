"""The graders of a session: sandboxes that only tests ever see, so that many tasks may have them, at once and in turn."""

from __future__ import annotations

import asyncio
import os
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aviato.grading.link import Grader, check_linkable
from aviato.log import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import Any

    from aviato.api.session import Session
    from aviato.bridge.operation import OperationRef
    from aviato.calls.sandbox_config import SandboxConfig
    from aviato.calls.sandbox_state import SandboxState
    from aviato.grading.link import Link, Solution

TASKS_AT_ONCE = 16
"""In one grader: their processes share its limits of memory and processes."""
IDLE_SECONDS = 10.0
"""So long after its last task a grader is kept."""
END_SECONDS = 10.0
"""So long its program may take to end."""
SILENT_SECONDS = 30.0
"""A grader that has given no verdict so long after a task's time was over is lost: tests run beside it and can stop it."""

_of_sessions: weakref.WeakKeyDictionary[Session, dict[str, Graders]] = weakref.WeakKeyDictionary()


def graders_of(session: Session, config: SandboxConfig) -> Graders:
    """The graders of a session for sandboxes of one kind. On the loop thread only."""
    kinds = _of_sessions.setdefault(session, {})
    kind = f"{config.connection} {config.create}"
    found = kinds.get(kind)
    if found is None or not found.are_here:
        found = kinds[kind] = Graders(session, config)
    return found


class Graders:
    """Those of one kind. They are beside the places of the session's `max_concurrency`, since a task needs two sandboxes.

    Args:
        session: whose; they end with it.
        config: how they are made.
    """

    def __init__(self, session: Session, config: SandboxConfig) -> None:
        self._session = weakref.ref(session)
        self._config = config
        self._here = os.getpid(), asyncio.get_running_loop()
        self._shared: list[Place] = []
        self._sharing = True
        """Whether one can have more than one task."""

    @property
    def are_here(self) -> bool:
        """Whether they are of this process and loop."""
        return self._here == (os.getpid(), asyncio.get_running_loop())

    @asynccontextmanager
    async def place(self, own: bool) -> AsyncIterator[Place]:
        """A grader that is ready for one task. It counts as that task's until nothing of it is left there.

        Args:
            own: one that has had no other task and will have none.

        Raises:
            AviatoError: it could not be had.
        """
        place = await self._ready(own)
        try:
            yield place
        finally:
            place.leave()

    async def _ready(self, own: bool) -> Place:
        while True:
            own = own or not self._sharing
            place = None if own else next((one for one in self._shared if one.has_room), None)
            if place is None:
                place = self._new()
                if not own:
                    self._shared.append(place)
            place.tasks += 1
            try:
                # Whoever comes while it starts waits too, and does not end that by going.
                shares = await asyncio.shield(place.ready)
            except BaseException:
                place.leave()
                raise
            if own or shares:
                place.is_shared = place.is_shared and not own
                return place
            self._sharing = place.is_shared = False
            place.leave()

    def _new(self) -> Place:
        session = self._session()
        assert session is not None
        state = session._state(self._config, start=False)
        state.slots = None
        return Place(session, state, self._shared)


class Place:
    """A grader in its sandbox, and how many tasks it has.

    Args:
        session: whose the sandbox is.
        state: of the sandbox, which is not started yet.
        shared: those that tasks are given to.

    Attributes:
        tasks: that have it, or wait for it to be ready.
        is_shared: whether others may come after them.
        ready: whether it can have several, once it is there.
    """

    def __init__(self, session: Session, state: SandboxState, shared: list[Place]) -> None:
        loop = asyncio.get_running_loop()
        self.tasks = 0
        self._begun = 0
        """Of them, those of which something may be there."""
        self._over = False
        self.is_shared = True
        self.state = state
        self.grader = Grader(state.handle())
        self.moved_at = loop.time()
        """When a solution of its tasks last began or ended."""
        self._session = weakref.ref(session)
        self._shared = shared
        self._running: asyncio.Task[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.ready = loop.create_task(self._start(), name=f"grader {state.sandbox_id}")
        self.ready.add_done_callback(self._started)

    @property
    def has_room(self) -> bool:
        """Whether another task may come."""
        return self.is_shared and max(self.tasks, self._begun) < TASKS_AT_ONCE

    def begin(self, told: Mapping[str, Any], solution: Solution, contents: bytes) -> Link:
        """Give the grader a task."""
        link = self.grader.begin(told, solution, contents)
        self._begun += 1
        link.left.add_done_callback(self._left)
        if (limit := told["timeout_seconds"]) is not None:
            silent = asyncio.get_running_loop().call_later(limit + SILENT_SECONDS, self._is_silent)
            link.verdicts.add_done_callback(lambda _: silent.cancel())
        return link

    async def was_out_of_memory(self) -> bool:
        """Whether it is being killed at its limit of memory; it ends in any case."""
        assert self._running is not None
        self.grader.feed.end()
        await asyncio.wait({self._running}, timeout=END_SECONDS)
        return self.grader.out_of_memory

    def _is_silent(self) -> None:
        self.grader.lose("it gave no verdict in time")
        self._end()

    def _left(self, left: asyncio.Future[bool]) -> None:
        self._begun -= 1
        if not left.result():
            self.is_shared = False
        self._look()

    def leave(self) -> None:
        """Whoever had it wants no more of it."""
        self.tasks -= 1
        self._look()

    def _look(self) -> None:
        """End it if nobody needs it."""
        if self.tasks or self._begun:
            return
        if self._idle is not None:
            self._idle.cancel()
        if self.is_shared and self.ready.done() and self.ready.exception() is None:
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end_if_idle)
        else:
            self._end()

    def _end_if_idle(self) -> None:
        if not (self.tasks or self._begun):
            self._end()

    async def _start(self) -> bool:
        check_linkable(await self.state.handle().wait_running())
        self._running = asyncio.get_running_loop().create_task(self.grader.run(), name=f"tests in {self.state.sandbox_id}")
        self._running.add_done_callback(self._ended)
        return await asyncio.shield(self.grader.again)

    def _started(self, ready: asyncio.Task[bool]) -> None:
        if ready.cancelled() or ready.exception() is not None:
            self._end()

    def _ended(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled() and (error := running.exception()) is not None:
            logger.debug("grader %s has ended: %s", self.state.sandbox_id, error)
        self._end()

    def _end(self) -> None:
        """No task comes any more, and its sandbox ends."""
        self.is_shared = False
        if self in self._shared:
            self._shared.remove(self)
        if self._idle is not None:
            self._idle.cancel()
        self.grader.feed.end()
        session = self._session()
        if not self._over and session is not None:
            let_go(session, self.state)
        self._over = True


def let_go(session: Session, state: SandboxState) -> None:
    """End a sandbox without waiting for it; its session forgets it then, so that a long run gathers none."""
    sandbox_id = state.sandbox_id
    if state.ends_by_itself:
        session._forget(sandbox_id)
        return

    def ended(stopping: OperationRef[None]) -> None:
        if stopping.exception() is None:
            session._forget(sandbox_id)

    state.stop(0, missing_ok=True)._when_done(ended)
