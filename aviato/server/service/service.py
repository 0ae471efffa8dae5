"""The service: its parts, put together, and its life from open to close."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, SandboxUnavailableError
from aviato.server.admission import CREATES_PER_CORE, Admission, capacity
from aviato.server.machine import room
from aviato.server.service.batches import BatchRunner
from aviato.server.service.departures import Departures
from aviato.server.service.detached import Detached
from aviato.server.service.egress import Egress
from aviato.server.service.exec_records import ExecRecords
from aviato.server.service.execs import Execs
from aviato.server.service.files import Files
from aviato.server.service.image_exports import ImageExports
from aviato.server.service.images import Images
from aviato.server.service.leases import Leases
from aviato.server.service.lifecycle import Lifecycle
from aviato.server.service.logs import Logs
from aviato.server.service.long_polls import LongPolls, stopping_error
from aviato.server.service.main_command import MainCommand
from aviato.server.service.moves import Moves
from aviato.server.service.one_shot import OneShots
from aviato.server.service.output.retained_results import RetainedResults
from aviato.server.service.ports import Ports
from aviato.server.service.recovery import Recovery
from aviato.server.service.registry import Registry
from aviato.server.service.replicas import Replicas
from aviato.server.service.resets import Resets
from aviato.server.service.run_code import CodeRunner
from aviato.server.service.runs import Runs
from aviato.server.service.sandboxes import Sandboxes
from aviato.server.service.secrets import Secrets
from aviato.server.service.slots import Slots
from aviato.server.service.snapshots import Snapshots
from aviato.server.service.warm_pools import WarmPools
from aviato.server.shared_memory import SharedMemories
from aviato.server.states import State
from aviato.server.store import Store
from aviato.system.threads import in_thread
from aviato.wire.sandboxes import Health
from aviato.wire.version import WIRE_VERSION

if TYPE_CHECKING:
    from aviato.server.backends.base import Backend
    from aviato.server.callers import Caller
    from aviato.server.settings import ServerSettings
    from aviato.server.state_dir import StateDirectory

log = logging.getLogger(__name__)

HAND_OVER_SECONDS = 1.0
SHUTDOWN_GRACE_SECONDS = 2.0


class Service:
    """Everything a server does, without HTTP.

    Args:
        settings: of the server.
        folder: its state.
        backend: carries the sandboxes.
        secrets: that sandboxes can have; None is none.
    """

    def __init__(
        self, settings: ServerSettings, folder: StateDirectory, backend: Backend, secrets: Secrets | None = None
    ) -> None:
        self.settings = settings
        self.folder = folder
        self.backend = backend
        self.secrets = secrets or Secrets({})
        self.store = Store(folder.store)
        self.registry = Registry(self.store)
        self.long_polls = LongPolls()
        admission = Admission(
            limit=settings.max_sandboxes or capacity(room(0)),
            in_flight_limit=backend.creates_at_once or CREATES_PER_CORE * (os.cpu_count() or 1),
            queue_bound=settings.max_queued_sandboxes,
        )
        self.slots = Slots(admission, self.registry)
        self.egress = Egress(backend, folder.egress, settings.egress_allow_cidr)
        self.warm_pools = WarmPools(backend, self.slots, self.egress)
        self.leases = Leases(self.store, settings.lease)
        self.ports = Ports(backend, self.registry, self.slots, self.long_polls)
        self.images = Images(backend, self.long_polls, self.check_able)
        self.image_exports = ImageExports(self.images, self.long_polls)
        self.results = RetainedResults(folder.results, settings.record_retention)
        self.exec_records = ExecRecords(self.store)
        self.detached = Detached(folder.execs, self.exec_records)
        main = MainCommand(folder.output)
        self.lifecycle = Lifecycle(
            settings,
            backend,
            self.registry,
            self.slots,
            self.leases,
            self.detached,
            main,
            self.ports,
            self.egress,
            self.results,
            self.warm_pools,
        )
        departures = Departures(backend, self.registry, self.lifecycle, self.egress)
        self.moves = Moves(backend, departures)
        self.snapshots = Snapshots(backend, self.registry, self.slots, self.moves)
        self.resets = Resets(backend, self.registry, departures, self.slots, self.secrets)
        self.execs = Execs(backend, self.registry, self.slots, self.results, self.exec_records, self.detached)
        self.files = Files(self.registry, self.slots)
        self.shared_memories = SharedMemories()
        self.logs = Logs(self.registry, main)
        self.sandboxes = Sandboxes(
            settings, backend, self.registry, self.lifecycle, self.slots, self.leases, self.long_polls, self.ports, self.secrets
        )
        self.runs = Runs(self.sandboxes, self.execs, self.registry)
        self.one_shots = OneShots(
            self.sandboxes,
            self.registry,
            self.files,
            self.leases,
            self.long_polls,
            self.check_able,
            settings.run_code_concurrency,
        )
        self.code = CodeRunner(self.one_shots, self.long_polls)
        self.batches = BatchRunner(self.one_shots)
        self._replicas: Replicas | None = None
        self.is_one_of_several = False
        """Whether other servers may have sandboxes that this one is asked for."""
        self._opened: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to get ready; `ready()` waits for it."""
        self._opened = asyncio.create_task(self._open(), name="open the backend")

    async def ready(self) -> None:
        """Wait until requests about sandboxes can be answered.

        Raises:
            SandboxUnavailableError: the server goes.
        """
        if self.long_polls.closing:
            raise stopping_error()
        if self._opened is not None and not self._opened.done():
            await asyncio.shield(self._opened)

    @property
    def is_ready(self) -> bool:
        """Whether `ready` has nothing to wait for."""
        return not self.long_polls.closing and (self._opened is None or self._opened.done())

    def check_able(self) -> None:
        """See whether sandboxes can run here.

        Raises:
            SandboxUnavailableError: they cannot; the message holds the remedy.
        """
        if self.registry.unable is not None:
            raise self.registry.unable

    async def locate(self, sandbox_id: str, caller: Caller) -> None:
        """Have a sandbox here that another server of the same backend has and the caller sees; else nothing happens."""
        if self._replicas is not None:
            await self._replicas.locate(sandbox_id, caller)

    def health(self) -> Health:
        """What the health route says."""
        from aviato import __version__

        return Health(
            version=__version__,
            wire_version=WIRE_VERSION,
            pid=os.getpid(),
            backend=self.backend.name,
            capabilities=sorted(self.backend.capabilities),
            live_sandboxes=self.slots.admission.live,
            pending_sandboxes=self.slots.admission.waiting,
            max_sandboxes=self.slots.admission.limit,
        )

    @property
    def idle(self) -> bool:
        """Whether there is nothing that a server is needed for, connections aside."""
        held = self.registry.live or self.leases.held or self.lifecycle.leftovers
        images = self.images.is_pulling or self.image_exports.is_busy or self.snapshots.is_taking
        return not held and not images and not self.warm_pools.is_used

    async def end_all(self) -> None:
        """End every sandbox with reason `shutdown`."""
        sandboxes = list(self.registry.live.values())
        for sandbox in sandboxes:
            sandbox.ask_to_end("shutdown", SHUTDOWN_GRACE_SECONDS)
        for sandbox in sandboxes:
            await sandbox.gone.wait()

    def stop_waiting(self) -> None:
        """End long polls and streams with an error that makes clients come back to the next server."""
        self.long_polls.close()
        self.one_shots.stop()
        for feed in list(self.execs.feeds):
            feed.fail(stopping_error())

    async def close(self) -> None:
        """Hand over: starts under way get a moment, links are closed, sandboxes live on."""
        self.stop_waiting()
        if self._opened is not None:
            # Cut in the middle, a helper of the backend could be left behind.
            await asyncio.wait({self._opened}, timeout=HAND_OVER_SECONDS)
            self._opened.cancel()
        await self.images.close()
        await self.image_exports.close()
        await self.snapshots.close()
        await self.one_shots.close()
        await self.warm_pools.close()
        await self._finish_starts()
        sandboxes = list(self.registry.live.values())
        tasks = [task for sandbox in sandboxes for task in (sandbox.task, *sandbox.helpers) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.lifecycle.batch_cleanup.close()
        await self.detached.close()
        await self.ports.shut()
        await self.egress.shut()
        try:
            self.exec_records.flush()
            self.registry.save_again()
        except sqlite3.Error as error:
            log.error("commands could not be put on record: %s", error)
        await in_thread(self.results.save)
        self.leases.shut()
        try:
            await self.backend.close()
        finally:
            await in_thread(self.store.close)

    async def _finish_starts(self) -> None:
        starting = [sandbox for sandbox in self.registry.live.values() if sandbox.place.done() and not sandbox.ready.is_set()]
        ending = [sandbox for sandbox in self.registry.live.values() if sandbox.state is State.ENDED]
        waits = [*(sandbox.ready.wait() for sandbox in starting), *(sandbox.gone.wait() for sandbox in ending)]
        departures = [task for sandbox in self.registry.live.values() for task in sandbox.departures]
        if waits or departures:
            tasks = [asyncio.ensure_future(wait) for wait in waits]
            await asyncio.wait((*tasks, *departures), timeout=HAND_OVER_SECONDS)
            for task in tasks:
                task.cancel()

    async def _open(self) -> None:
        try:
            await self.backend.open()
            recovery = Recovery(
                self.backend,
                self.registry,
                self.lifecycle,
                self.slots,
                self.leases,
                self.execs,
                self.detached,
                self.ports,
                self.secrets,
                self.moves,
            )
            await recovery.run()
            if self.backend.shares_sandboxes:
                self._replicas = Replicas(self.backend, self.registry, recovery)
                self.is_one_of_several = True
            await in_thread(self.results.restore)
            self.runs.restore()
            self.warm_pools.serve(self.settings.warm)
        except AviatoError as error:
            log.error("sandboxes cannot run here: %s", error)
            self.registry.unable = error
        except Exception as error:
            log.exception("the backend cannot be opened")
            message = f"the backend {self.backend.name!r} cannot be opened: {error}"
            self.registry.unable = SandboxUnavailableError(message, reason="backend")
