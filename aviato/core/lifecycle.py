"""One sandbox's life as its client sees it: it is asked for, waited for, and stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aviato.core.background import background
from aviato.core.sandbox_endings import ending_error, is_final, nothing_made
from aviato.core.shared import SharedTask
from aviato.core.starting_sandbox import StartingSandbox
from aviato.exceptions import AviatoError
from aviato.log import logger
from aviato.options import SandboxStatus

if TYPE_CHECKING:
    from aviato.wire.sandboxes import SandboxInfo


@dataclass(eq=False, repr=False)
class SandboxHandle(StartingSandbox):
    """A sandbox on one loop.

    Attributes:
        over: the server ends it, and nobody need ask.
        forking: what children that were asked for by now begin with, as far as it is not there yet; a stop waits for it.
    """

    over: bool = field(default=False, init=False)
    forking: list[SharedTask[None]] = field(default_factory=list, init=False)
    _watches: dict[str, SharedTask[SandboxInfo]] = field(default_factory=dict, init=False)
    _stop: SharedTask[None] | None = field(default=None, init=False)

    # -- waiting

    async def wait_running(self) -> SandboxInfo:
        """Return once it runs or has ended; all waiters share one watch.

        Raises:
            SandboxError: it ended without ever having run.
        """
        await self.start()
        info = self.info
        if info is None or not (info.status is SandboxStatus.RUNNING or info.status.is_terminal):
            info = await self._watch("running")
        if info.started_at is None and (error := ending_error(info)) is not None:
            raise error
        return info

    async def wait_ended(self) -> SandboxInfo:
        """Return once it has ended, however it did; also of one that this object has stopped."""
        if self.info is not None and self.info.status.is_terminal:
            return self.info
        if self.stopped and self.begun:
            await self.until_accepted()
        else:
            await self.start()
        return await self._watch("ended")

    async def _watch(self, until: str) -> SandboxInfo:
        watch = self._watches.get(until)
        if watch is None or watch.done():
            watch = self._watches[until] = SharedTask(self._poll(until), f"wait for {self.sandbox_id}")
        return await watch.outcome()

    async def _poll(self, until: str) -> SandboxInfo:
        while True:
            info = self.see(await self.client.poll(self.sandbox_id, until))
            if info.status.is_terminal or (until == "running" and info.status is SandboxStatus.RUNNING):
                return info
            self.lease.waiting_in_queue(info.queue)

    async def ask_status(self) -> SandboxStatus:
        """The status as the server has it; while it cannot know the sandbox yet, as it is here."""
        if not self.begun:
            return SandboxStatus.UNSPECIFIED
        if self.queued or self.waits_for is not None:
            return SandboxStatus.PENDING
        if self.info is not None and not self.accepted:
            return self.info.status
        await self.until_accepted()
        return (await self.refresh()).status

    # -- stopping

    def ends_by_itself(self) -> None:
        """The server ends it: the result of the one command that it was made for has arrived.

        Where its session counts slots, the stop is still asked for: its answer says when the slot is free.
        """
        if self.slots is None:
            self.stopped = self.over = True
            logger.info("sandbox %s has ended: its only command has", self.sandbox_id)

    async def stop(self, grace_seconds: float = 10.0, *, missing_ok: bool = False) -> None:
        """End it; concurrent stops share one request, and one during the start leaves nothing behind."""
        if self.over:
            return
        if not self.accepted and self._start is None:
            self.stopped = True
            self._leave_beginning()
            return
        if self.queued:
            self.withdraw()
            return
        if self.info is not None and self.info.status.is_terminal and not self.accepted:
            return
        if self._stop is None or self._stop.error() is not None:
            self._stop = SharedTask(self._request_stop(grace_seconds, missing_ok), f"stop {self.sandbox_id}")
        await self._stop.outcome()

    def give_up(self) -> None:
        """Whoever asked for it has gone, and nobody else has it: end it off the way, also if it is still to be made."""

        async def end() -> None:
            try:
                await self.stop(0.0, missing_ok=True)
            except AviatoError as error:
                logger.debug(
                    "sandbox %s, which nobody has, could not be ended and ends with its lease: %s", self.sandbox_id, error
                )

        background(end())

    async def _request_stop(self, grace_seconds: float, missing_ok: bool) -> None:
        self.stopped = True
        if not self.accepted and self._start is not None:
            # Whatever comes of the create, its answer is there before the stop is sent: nothing can be created after it.
            await self._start.ended()
            error = self._start.error()
            if isinstance(error, AviatoError) and nothing_made(error) and not self._by_run:
                return
            missing_ok = missing_ok or error is not None
        else:
            error = None
        for fork in list(self.forking):
            await fork.ended()
        if self.slots is not None:
            self.slots.leaving(self, True)
        try:
            received = self.lease.acknowledgements.results_of(self.sandbox_id)
            info = await self.client.stop(self.sandbox_id, grace_seconds, missing_ok=missing_ok, received=received)
        except BaseException as failure:
            if self.slots is not None:
                self.slots.leaving(self, False)
            if is_final(error) and is_final(failure):
                return  # Its start has said what is wrong with this server.
            raise
        acknowledgements = self.lease.acknowledgements  # Also of what has come meanwhile: it has ended.
        acknowledgements.settled(self.sandbox_id, acknowledgements.results_of(self.sandbox_id))
        if info is not None:
            self.see(info)
        elif self.slots is not None:
            self.slots.leave(self)
