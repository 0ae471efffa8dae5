"""The life of a sandbox: one task from its place in the queue to the removal of its place, through the states of `states`."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError
from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.service.batch_cleanup import BatchCleanup
from aviato.server.service.commands_of_server import warm_up
from aviato.server.service.images import note_image, note_made_of, of_image
from aviato.server.service.replicas import record_text
from aviato.server.service.specs import spec_of
from aviato.server.states import TAKEN, Ending, State, ending_of, lost, not_started, start_failed, taken
from aviato.system.threads import in_thread
from aviato.wire.images import ImagePull

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aviato.server.backends.base import Backend, ResolvedImage, SandboxSpec
    from aviato.server.service.detached import Detached
    from aviato.server.service.egress import Egress
    from aviato.server.service.leases import Leases
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.main_command import MainCommand
    from aviato.server.service.output.retained_results import RetainedResults
    from aviato.server.service.ports import Ports
    from aviato.server.service.registry import Registry
    from aviato.server.service.slots import Slots
    from aviato.server.service.warm_pools import WarmPools
    from aviato.server.settings import ServerSettings

log = logging.getLogger(__name__)

START_SECONDS = 60.0
STOP_SLACK_SECONDS = 10.0
"""More than a process 1 takes to kill everything and to drain what was written."""
DESTROY_SECONDS = 20.0
OUTPUT_SECONDS = 2.0
MOMENT_SECONDS = 0.001


class Taken(Exception):
    """Another server has taken a sandbox over."""


class Lifecycle:
    """Starts, watches and ends sandboxes.

    Args:
        settings: of the server.
        backend: where they run.
        registry: where they are found.
        slots: are told of those that run, end and are gone.
        leases: hold them until they are gone.
        detached: keeps results of detached commands longer than that.
        main: reads the output of main commands.
        ports: connects to those that are exposed.
        egress: is the way to the network.
        results: keeps what nobody has confirmed.
        warm_pools: have places that are ready.
    """

    def __init__(
        self,
        settings: ServerSettings,
        backend: Backend,
        registry: Registry,
        slots: Slots,
        leases: Leases,
        detached: Detached,
        main: MainCommand,
        ports: Ports,
        egress: Egress,
        results: RetainedResults,
        warm_pools: WarmPools,
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._registry = registry
        self._slots = slots
        self._leases = leases
        self._detached = detached
        self._main = main
        self._ports = ports
        self._egress = egress
        self._results = results
        self._warm_pools = warm_pools
        self.leftovers: dict[str, str] = {}
        """Places that could not be taken away yet, and whose record has to be saved before they can."""
        self.batch_cleanup = BatchCleanup(registry, self._destroy_all, self._forget)

    def begin(self, sandbox: LiveSandbox) -> None:
        """Let it live: a new one from the queue on, one with a link from there on."""
        sandbox.task = asyncio.create_task(self._live(sandbox), name=f"life of {sandbox.sandbox_id}")

    def end(self, sandbox: LiveSandbox, before: State) -> None:
        """It was told to end in this state: bring that about."""
        self._slots.leaving(sandbox)
        self._save(sandbox)
        if before is State.QUEUED:
            sandbox.place.cancel()
        elif (
            before is State.RUNNING
            and sandbox.record.for_one_run
            and sandbox.request.command is None
            and not sandbox.grace_seconds
        ):
            self._kill(sandbox)  # Its command is over and was read: there is nothing to drain.
        elif before is State.RUNNING:
            self.stop(sandbox)
        elif (task := sandbox.restart or sandbox.task) is not None:
            task.cancel()

    def stop(self, sandbox: LiveSandbox) -> None:
        """Tell its process 1 to end, with what is left of the grace."""
        sandbox.spawn(asyncio.create_task(self._stop(sandbox, sandbox.grace_seconds)))

    async def _live(self, sandbox: LiveSandbox) -> None:
        try:
            ending = await self._until_ended(sandbox)
        except Taken:
            return self._hand_over(sandbox)
        except asyncio.CancelledError:
            if not sandbox.is_cut:
                if sandbox.link is not None:
                    sandbox.link.detach()
                raise
            _uncancel()
            ending = ending_of("lost", asked=sandbox.asked)
        except Exception as error:
            if not _is_taken(sandbox):
                log.exception("sandbox %s: its life broke off", sandbox.sandbox_id)
            ending = lost(f"the server failed: {type(error).__name__}")
        if _is_taken(sandbox):
            return self._hand_over(sandbox)  # Whatever was wrong here, it goes on there.
        sandbox.settle(ending)
        await self.conclude(sandbox)

    async def _until_ended(self, sandbox: LiveSandbox) -> Ending:
        if sandbox.link is None:
            if (ending := await self.start(sandbox)) is not None:
                return ending
        elif sandbox.state is State.STOPPING:
            self.stop(sandbox)  # It was found again, and an earlier server had told it to end.
        restart = None
        while True:
            ended: Ending | None = await self._watch(sandbox)
            while sandbox.restart is not restart:
                restart = sandbox.restart
                assert restart is not None
                try:
                    ending = await restart
                except asyncio.CancelledError:
                    if sandbox.asked is None or not restart.cancelled():
                        raise
                    ending = ending_of("stopped", asked=sandbox.asked)  # It was told to end before that had its first turn.
                if ending is not None:
                    return ending
                ended = None
            if ended is not None:
                return ended

    async def start(self, sandbox: LiveSandbox) -> Ending | None:
        """Start it in its place; returns its ending where it does not."""
        try:
            await self._start(sandbox)
        except asyncio.CancelledError:
            if sandbox.asked is None:
                raise
            _uncancel()
            return ending_of("stopped", asked=sandbox.asked)
        except TimeoutError:
            return start_failed(self._backend.too_long(sandbox.place_id))
        except AviatoError as error:
            return not_started(error)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            return start_failed(f"the server has no descriptor left for it ({error.strerror}); raise its `ulimit -n`")
        return None

    async def _start(self, sandbox: LiveSandbox) -> None:
        image = sandbox.image
        assert image is not None
        if sandbox.restart is None:
            if not image.is_here:
                await self._fetch_image(sandbox, image)
            elif image.kind == "oci" and not image.is_snapshot:
                sandbox.image_pull = ImagePull()
            await sandbox.place
            if sandbox.asked is not None:
                raise asyncio.CancelledError  # In the turn in which it got its slot.
            sandbox.admit()
        if not sandbox.record.begun:
            sandbox.record = sandbox.record.but(begun=True)
            self._registry.save(sandbox.record)
        async with asyncio.timeout(self._backend.start_seconds):
            spec, sandbox.spec = sandbox.spec or self.spec(sandbox), None
            is_warm = self._claim(sandbox, spec)
            if not is_warm:
                sandbox.link = await self._backend.create(spec)
                note_made_of(self._backend, sandbox)
            del spec
            sandbox.secrets = {}
        assert sandbox.link is not None
        if sandbox.done is not None:
            if (done := await asyncio.shield(sandbox.done)) is not None:
                sandbox.link.remember(done)
            sandbox.done = None
        if not is_warm and not sandbox.continues_snapshot and sandbox.request.warmup:
            await self._egress.attach(sandbox)
            await warm_up(sandbox.link, sandbox.request.warmup)
        async with asyncio.timeout(START_SECONDS):
            await self.run(sandbox)

    def _claim(self, sandbox: LiveSandbox, spec: SandboxSpec) -> bool:
        """Give it a place that is ready, if there is one; whether there was."""
        if sandbox.record.place_id is not None or (warm := self._warm_pools.take(sandbox, spec)) is None:
            return False
        sandbox.link, sandbox.was_ready = warm.link, True
        sandbox.record = sandbox.record.but(place_id=warm.place_id)
        self._egress.hand_over(warm.place_id, sandbox)
        # In this order: one that is on record to be in this place has been told what holds there.
        self._backend.claim(replace(spec, sandbox_id=warm.place_id), warm.link)
        self._registry.save(sandbox.record)
        return True

    async def _fetch_image(self, sandbox: LiveSandbox, image: ResolvedImage) -> None:
        """Wait for its image, before it waits for a place: others start meanwhile."""
        fetching = asyncio.ensure_future(self._backend.fetch_image(image))
        try:
            await asyncio.wait((fetching, sandbox.place), return_when=asyncio.FIRST_COMPLETED)
            if not fetching.done():
                raise asyncio.CancelledError  # It was told to end.
            sandbox.image = fetching.result()
        finally:
            fetching.cancel()
        if (came := sandbox.image.came) is not None:
            sandbox.image_pull = ImagePull(seconds=came.seconds, done_bytes=came.done_bytes)
        record = of_image(sandbox.record, sandbox.image.lasting_id)
        sandbox.record = record.but(image_note=sandbox.image.note or record.image_note)
        if not sandbox.place.done():
            self._slots.image_is_here(sandbox)

    async def run(self, sandbox: LiveSandbox) -> None:
        """Start its main command, if it has one, and say that it runs; one that was told to end meanwhile does not."""
        link = sandbox.link
        assert link is not None
        # In this order: the channel of the ports stays, and a newer one would replace it.
        await self._egress.attach(sandbox)
        await self._ports.attach(sandbox)
        if sandbox.request.command is not None:
            with suppress(SandboxGone):
                await self._main.start(sandbox, link)
        if sandbox.state is State.STARTING:
            before = sandbox.record
            sandbox.start()
            note_image(self._backend, sandbox)
            sandbox.expire_in(self.lifetime(sandbox))
            sandbox.tell_running()
            if sandbox.record is not before:
                # While its first command starts. In the same turn: nobody is told of a result before a later server would know
                # that something has run in it, and until then its process 1 remembers the command.
                self._save(sandbox)
        self._slots.started(sandbox)

    def _save(self, sandbox: LiveSandbox) -> None:
        """Put a change on record; of a sandbox for one command only if that lasts: its end overtakes most of them."""
        if sandbox.record.for_one_run:
            self._registry.save_soon(sandbox.record)
        else:
            self._registry.save(sandbox.record)

    def lifetime(self, sandbox: LiveSandbox) -> float | None:
        """Its lifetime in seconds, after a reset what is left of it; None for a leased one that asked for none."""
        if sandbox.expires_at is not None:
            return max(sandbox.expires_at - time.monotonic(), MOMENT_SECONDS)
        if sandbox.request.max_lifetime_seconds is not None or not sandbox.record.detached:
            return sandbox.request.max_lifetime_seconds
        return self._settings.max_detached_lifetime

    def spec(self, sandbox: LiveSandbox) -> SandboxSpec:
        """What the backend is asked for."""
        assert sandbox.image is not None
        return spec_of(
            sandbox.request,
            sandbox.image,
            sandbox.place_id,
            host_name=sandbox.sandbox_id,
            secrets=sandbox.secrets,
            record=record_text(sandbox.record) if self._backend.shares_sandboxes else None,
            max_lifetime_seconds=self.lifetime(sandbox),
            orphan_timeout_seconds=self._settings.orphan_timeout,
        )

    async def _watch(self, sandbox: LiveSandbox) -> Ending:
        link = sandbox.link
        assert link is not None
        try:
            ended = await link.wait_ended()
        except asyncio.CancelledError:
            if not sandbox.forced:
                raise
            _uncancel()
            ended = Ended(reason="lost")
        left = None
        if sandbox.link is not link:
            return lost("it was reset")
        if ended.reason == TAKEN:
            raise Taken
        if ended.reason == "lost" and sandbox.asked is None:
            left = await in_thread(self._backend.how_ended, sandbox.place_id)
        await self._main.drained(sandbox, OUTPUT_SECONDS)
        return ending_of(ended.reason, asked=sandbox.asked, left=left, returncode=ended.returncode, message=ended.message)

    async def _stop(self, sandbox: LiveSandbox, grace_seconds: float) -> None:
        assert sandbox.link is not None
        try:
            async with asyncio.timeout(grace_seconds + STOP_SLACK_SECONDS):
                await sandbox.link.stop(grace_seconds)
                return
        except SandboxGone:
            return
        except (TimeoutError, AviatoError) as error:
            log.warning("sandbox %s did not stop when it was told to (%r); its place is taken away", sandbox.sandbox_id, error)
        self.force(sandbox)

    def _kill(self, sandbox: LiveSandbox) -> None:
        """End it without a word; its life goes on when its link ends."""
        if self._backend.kill(sandbox.place_id):
            sandbox.forced = True
            sandbox.killed_at = time.monotonic()
        else:
            self.force(sandbox)

    def force(self, sandbox: LiveSandbox) -> None:
        """Its process 1 is of no use any more: go on to the removal of its place."""
        if sandbox.state < State.ENDED and sandbox.task is not None and not sandbox.is_cut:
            sandbox.forced = sandbox.is_cut = True
            sandbox.task.cancel()

    async def keep_results(self, sandbox: LiveSandbox, place_id: str) -> None:
        """Keep what a process 1 that has ended has left of commands whose results have not arrived."""
        await self._results.gather(sandbox.sandbox_id, partial(self._backend.leave_results, place_id))
        # It may have ended before it heard of those, and some arrive meanwhile.
        for exec_id in (*sandbox.confirmed, *sandbox.recorded_results()):
            self._results.confirm(sandbox.sandbox_id, exec_id)

    async def conclude(self, sandbox: LiveSandbox) -> None:
        """Its end is known: take its place away and put the end on record."""
        self._ports.close(sandbox.sandbox_id)
        self._egress.close(sandbox.sandbox_id)
        if sandbox.departures:
            await asyncio.wait(sandbox.departures)
        dead = sandbox.killed_at is not None and sandbox.link is not None and sandbox.link.ended() is not None
        if sandbox.record.begun and not dead:
            if not sandbox.forced and (sandbox.link is None or sandbox.link.active_execs()):
                await self.keep_results(sandbox, sandbox.place_id)
                if sandbox.link is None:
                    await self._detached.adopt(sandbox, self._results)
            await self.destroy(sandbox.place_id)
        if sandbox.link is not None:
            sandbox.link.detach()
        record = sandbox.conclude()
        sandbox.tell_running()
        if dead:
            # Nobody waits for the rest, and it holds nothing that others would wait for.
            self._slots.gone(sandbox)
            self.batch_cleanup.add(sandbox)
            return
        if not self._registry.save(record) and not sandbox.record.for_one_run:
            await self._remember_end(sandbox, str(record.status_reason))
        self._forget(sandbox)

    def _hand_over(self, sandbox: LiveSandbox) -> None:
        """Another server has it: let go of it, and keep nothing on record."""
        log.info("sandbox %s: another server has it now", sandbox.sandbox_id)
        self._ports.close(sandbox.sandbox_id)
        self._egress.close(sandbox.sandbox_id)
        if sandbox.link is not None:
            sandbox.link.detach()
        sandbox.settle(taken())
        sandbox.tell_running()
        self._registry.forget(sandbox.sandbox_id)
        self._forget(sandbox, self._detached.hand_over)

    def _forget(self, sandbox: LiveSandbox, leave: Callable[[LiveSandbox], None] | None = None) -> None:
        del self._registry.live[sandbox.sandbox_id]
        self._registry.let_go.pop(sandbox.sandbox_id, None)
        self._slots.gone(sandbox)
        try:
            self._leases.forget(sandbox)
            (leave or self._detached.forget)(sandbox)
        finally:
            sandbox.remove()

    async def _remember_end(self, sandbox: LiveSandbox, reason: str) -> None:
        """The store takes no end now: a server that comes before it does would make the sandbox anew, after its stop."""
        self.leftovers[sandbox.place_id] = sandbox.sandbox_id
        try:
            await in_thread(self._backend.remember_end, sandbox.place_id, reason)
        except OSError as error:
            log.error("the end of sandbox %s cannot be remembered: %s", sandbox.sandbox_id, error)

    async def destroy(self, place_id: str) -> None:
        """Take a place away; what resists is tried again by the reaper."""
        try:
            async with asyncio.timeout(DESTROY_SECONDS):
                await self._backend.destroy(place_id)
            self.leftovers.pop(place_id, None)
        except Exception as error:
            self.leftovers.setdefault(place_id, place_id)
            log.warning("the place %s cannot be taken away yet: %r", place_id, error)

    async def _destroy_all(self, place_ids: Sequence[str]) -> None:
        """As `destroy`, for places of sandboxes that were killed."""
        try:
            async with asyncio.timeout(DESTROY_SECONDS):
                left = await self._backend.destroy_all(place_ids)
        except Exception as error:
            log.warning("the places of sandboxes cannot be taken away yet: %r", error)
            left = list(place_ids)
        for place_id in left:
            self.leftovers.setdefault(place_id, place_id)


def _is_taken(sandbox: LiveSandbox) -> bool:
    """Whether another server has it now."""
    ended = None if sandbox.link is None else sandbox.link.ended()
    return ended is not None and ended.reason == TAKEN


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
