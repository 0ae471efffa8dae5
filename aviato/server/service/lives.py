"""The life of a sandbox: one task from its place in the queue to the removal of its place."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from base64 import b64decode
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError
from aviato.options import SandboxStatus
from aviato.server.backends.base import MountedFile, SandboxSpec
from aviato.server.link.subscription import Ended, SandboxGone
from aviato.server.service.batch_cleanup import BatchCleanup
from aviato.server.service.egress import port_of
from aviato.server.states import Ending, ending_of, lost, start_failed
from aviato.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aviato.server.backends.base import Backend
    from aviato.server.service.egress import Egress
    from aviato.server.service.live import LiveSandbox
    from aviato.server.service.main_command import MainCommand
    from aviato.server.service.places import Places
    from aviato.server.service.ports import Ports
    from aviato.server.service.registry import Registry
    from aviato.server.service.results import Results
    from aviato.server.settings import ServerSettings
    from aviato.server.store import SandboxRecord

log = logging.getLogger(__name__)

START_SECONDS = 60.0
STOP_SLACK_SECONDS = 10.0
"""More than a supervisor takes to kill everything and to drain what was written."""
DESTROY_SECONDS = 20.0
OUTPUT_SECONDS = 2.0


class Lives:
    """Starts, watches and ends sandboxes.

    Args:
        settings: of the server.
        backend: where they run.
        registry: where they are found.
        main: reads the output of main commands.
        ports: connects to those that are exposed.
        egress: is the way to the network.
        results: keeps what nobody has confirmed.
    """

    places: Places

    def __init__(
        self,
        settings: ServerSettings,
        backend: Backend,
        registry: Registry,
        main: MainCommand,
        ports: Ports,
        egress: Egress,
        results: Results,
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._registry = registry
        self._main = main
        self._ports = ports
        self._egress = egress
        self._results = results
        self.on_gone: list[Callable[[LiveSandbox], None]] = []
        self.adopt: Callable[[LiveSandbox], Awaitable[None]] | None = None
        """Told when a sandbox that ended without a server has left results behind."""
        self.leftovers: set[str] = set()
        """Ids whose place could not be taken away yet."""
        self.batch_cleanup = BatchCleanup(registry, self._destroy_all, self._forget)

    def begin(self, box: LiveSandbox) -> None:
        """Let it live: a new one from the queue on, one with a link from there on."""
        box.task = asyncio.create_task(self._live(box), name=f"life of {box.sandbox_id}")

    def ask_to_end(self, box: LiveSandbox, reason: str, grace_seconds: float = 0.0) -> None:
        """End it, whatever it does now; the first reason holds, and a repeat can only shorten the grace."""
        if box.asked is not None and box.ending is None and box.ready.is_set() and grace_seconds < box.grace_seconds:
            box.grace_seconds = grace_seconds
            box.spawn(asyncio.create_task(self._stop(box, grace_seconds)))
        if box.asked is not None or box.ending is not None or (box.link is not None and box.link.ended() is not None):
            return
        box.asked, box.grace_seconds = reason, grace_seconds
        self.places.leaving(box)
        if box.record.status is not SandboxStatus.TERMINATING:
            self._save(box, box.move(SandboxStatus.TERMINATING, status_reason=reason))
        if box.for_one_run and box.ready.is_set() and box.request.command is None and not grace_seconds:
            self._kill(box)  # Its command is over and was read: there is nothing to drain.
        elif box.ready.is_set():
            box.spawn(asyncio.create_task(self._stop(box, grace_seconds)))
        elif box.entered and box.task is not None:
            # A task that is cancelled before its first step never runs at all; that one looks at `asked` itself.
            box.task.cancel()

    async def _live(self, box: LiveSandbox) -> None:
        box.entered = True
        try:
            ending = await self._until_ended(box)
        except asyncio.CancelledError:
            if box.link is not None:
                box.link.detach()
            raise
        except Exception as error:
            log.exception("sandbox %s: its life broke off", box.sandbox_id)
            ending = lost(f"the server failed: {type(error).__name__}")
        box.settle(ending)
        await self.conclude(box)

    async def _until_ended(self, box: LiveSandbox) -> Ending:
        if box.asked is not None and not box.ready.is_set():
            return ending_of("stopped", asked=box.asked)
        if not box.ready.is_set():
            try:
                await self._start(box)
            except asyncio.CancelledError:
                if box.asked is None:
                    raise
                _uncancel()
                return ending_of("stopped", asked=box.asked)
            except TimeoutError:
                return start_failed(f"its start took longer than {START_SECONDS:g} s")
            except AviatoError as error:
                return start_failed(str(error), is_infrastructure=error.is_infrastructure)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                return start_failed(f"the server has no descriptor left for it ({error.strerror}); raise its `ulimit -n`")
        return await self._watch(box)

    async def _start(self, box: LiveSandbox) -> None:
        await box.place
        if not box.record.begun:
            box.record = box.record.but(begun=True)
            self._registry.save(box.record)
        async with asyncio.timeout(START_SECONDS):
            assert box.image is not None
            spec, box.spec = box.spec or self.spec(box), None
            box.link = await self._backend.create(spec)
            del spec
            box.secrets = {}
            await self.run(box)

    async def run(self, box: LiveSandbox) -> None:
        """Start its main command, if it has one, and say that it runs."""
        link = box.link
        assert link is not None
        # In this order: the passage of the ports stays, and a newer one would replace it.
        await self._egress.attach(box)
        await self._ports.attach(box)
        if box.request.command is not None:
            with suppress(SandboxGone):
                await self._main.start(box, link)
        is_new = box.record.status is SandboxStatus.PENDING
        if is_new:
            seconds = time.monotonic() - box.accepted_at
            box.move(SandboxStatus.RUNNING, started_at=time.time(), startup_seconds=seconds)
        lifetime = self.lifetime(box)
        box.expires_at = None if lifetime is None else time.monotonic() + lifetime
        box.ready.set()
        for begin in box.on_run:
            begin()
        box.on_run.clear()
        if is_new:
            # While its first command starts. In the same turn: nobody is told of a result before a later server would know that
            # something has run in it, and until then its supervisor remembers the command.
            self._save(box, box.record)
        self.places.started(box)

    def _save(self, box: LiveSandbox, record: SandboxRecord) -> None:
        """Put a change on record; of a sandbox for one command only if that lasts: its end overtakes most of them."""
        if box.for_one_run:
            self._registry.save_soon(record)
        else:
            self._registry.save(record)

    def lifetime(self, box: LiveSandbox) -> float | None:
        """Its lifetime in seconds; None for a leased one that asked for none."""
        if box.request.max_lifetime_seconds is not None or not box.record.detached:
            return box.request.max_lifetime_seconds
        return self._settings.max_detached_lifetime

    def spec(self, box: LiveSandbox) -> SandboxSpec:
        """What the backend is asked for."""
        assert box.image is not None
        return SandboxSpec(
            sandbox_id=box.sandbox_id,
            image=box.image,
            environment=box.request.environment_variables,
            secrets=box.secrets,
            packages=box.request.packages,
            working_dir=box.request.working_dir,
            max_lifetime_seconds=self.lifetime(box),
            idle_timeout_seconds=box.request.idle_timeout_seconds,
            orphan_timeout_seconds=self._settings.orphan_timeout,
            mounted_files=tuple(
                MountedFile(path=file.mount_path, content=b64decode(file.file_content)) for file in box.request.mounted_files
            ),
            exposes_ports=bool(box.request.ports),
            egress_port=port_of(box.request),
            requests=box.request.resources.requests.named(),
            limits=box.request.resources.limits.named(),
        )

    async def _watch(self, box: LiveSandbox) -> Ending:
        assert box.link is not None
        try:
            ended = await box.link.wait_ended()
        except asyncio.CancelledError:
            if not box.forced:
                raise
            _uncancel()
            ended = Ended(reason="lost")
        left = None
        if ended.reason == "lost" and box.asked is None:
            left = await in_thread(self._backend.how_ended, box.sandbox_id)
        await self._main.drained(box, OUTPUT_SECONDS)
        return ending_of(ended.reason, asked=box.asked, left=left, returncode=ended.returncode, message=ended.message)

    async def _stop(self, box: LiveSandbox, grace_seconds: float) -> None:
        assert box.link is not None
        try:
            async with asyncio.timeout(grace_seconds + STOP_SLACK_SECONDS):
                await box.link.stop(grace_seconds)
                return
        except SandboxGone:
            return
        except (TimeoutError, AviatoError) as error:
            log.warning("sandbox %s did not stop when it was told to (%r); its place is taken away", box.sandbox_id, error)
        self.force(box)

    def _kill(self, box: LiveSandbox) -> None:
        """End it without a word; its life goes on when its link ends."""
        if self._backend.kill(box.sandbox_id):
            box.forced = True
            box.killed_at = time.monotonic()
        else:
            self.force(box)

    def force(self, box: LiveSandbox) -> None:
        """Its supervisor is of no use any more: go on to the removal of its place."""
        if box.ending is None and box.task is not None:
            box.forced = True
            box.task.cancel()

    async def conclude(self, box: LiveSandbox) -> None:
        """Its end is known: take its place away and put the end on record."""
        self._ports.close(box.sandbox_id)
        self._egress.close(box.sandbox_id)
        dead = box.killed_at is not None and box.link is not None and box.link.ended() is not None
        if box.record.begun and not dead:
            if not box.forced and (box.link is None or box.link.active_execs()):
                await self._results.gather(box.sandbox_id, self._backend.leave_results, box.confirmed)
                if box.link is None and self.adopt is not None:
                    await self.adopt(box)
            await self.destroy(box.sandbox_id)
        if box.link is not None:
            box.link.detach()
        ending = box.ending
        assert ending is not None
        record = box.move(
            ending.status,
            status_reason=ending.reason,
            message=ending.message,
            returncode=ending.returncode,
            is_infrastructure=ending.is_infrastructure,
            ended_at=time.time(),
            ports=dict.fromkeys(box.record.ports),
            body=None,
        )
        for begin in box.on_run:
            begin()
        box.on_run.clear()
        if dead:
            # Nobody waits for the rest, and it holds nothing that others would wait for.
            self.places.gone(box)
            self.batch_cleanup.add(box)
            return
        if not self._registry.save(record) and not box.for_one_run:
            await self._remember_end(box.sandbox_id, ending.reason)
        self._forget(box)

    def _forget(self, box: LiveSandbox) -> None:
        del self._registry.live[box.sandbox_id]
        self._registry.let_go.pop(box.sandbox_id, None)
        self.places.gone(box)
        try:
            for callback in self.on_gone:
                callback(box)
        finally:
            box.gone.set()

    async def _remember_end(self, sandbox_id: str, reason: str) -> None:
        """The store takes no end now: a server that comes before it does would make the sandbox anew, after its stop."""
        self.leftovers.add(sandbox_id)
        try:
            await in_thread(self._backend.remember_end, sandbox_id, reason)
        except OSError as error:
            log.error("the end of sandbox %s cannot be remembered: %s", sandbox_id, error)

    async def destroy(self, sandbox_id: str) -> None:
        """Take a place away; what resists is tried again by the reaper."""
        try:
            async with asyncio.timeout(DESTROY_SECONDS):
                await self._backend.destroy(sandbox_id)
            self.leftovers.discard(sandbox_id)
        except Exception as error:
            self.leftovers.add(sandbox_id)
            log.warning("the place of sandbox %s cannot be taken away yet: %r", sandbox_id, error)

    async def _destroy_all(self, sandbox_ids: Sequence[str]) -> None:
        """As `destroy`, for sandboxes that were killed."""
        try:
            async with asyncio.timeout(DESTROY_SECONDS):
                left = await self._backend.destroy_all(sandbox_ids)
        except Exception as error:
            log.warning("the places of sandboxes cannot be taken away yet: %r", error)
            left = list(sandbox_ids)
        self.leftovers.update(left)


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
