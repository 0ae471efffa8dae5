"""What a starting server finds of an earlier one, and what becomes of it."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from pydantic import ValidationError

from aviato.exceptions import AviatoError, SandboxUnavailableError
from aviato.options import SandboxStatus
from aviato.server.callers import Caller
from aviato.server.link.ended import SandboxGone
from aviato.server.service.images import image_before
from aviato.server.service.live_sandbox import LiveSandbox
from aviato.server.states import LIVING, State, ending_of, lost, not_started
from aviato.system.threads import in_thread
from aviato.wire.sandboxes import CreateSandbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato.server.backends.base import Backend
    from aviato.server.link.link import Process1Link
    from aviato.server.service.detached import Detached
    from aviato.server.service.execs import Execs
    from aviato.server.service.leases import Leases
    from aviato.server.service.lifecycle import Lifecycle
    from aviato.server.service.moves import Moves
    from aviato.server.service.ports import Ports
    from aviato.server.service.registry import Registry
    from aviato.server.service.secrets import Secrets
    from aviato.server.service.slots import Slots
    from aviato.server.store import SandboxRecord

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 10.0
AGAIN_SECONDS = 0.2


class _NotReached(Exception):
    """The process 1 of another server's sandbox does not answer."""

    def __init__(self, place_id: str, error: Exception) -> None:
        super().__init__(place_id)
        self.as_error = SandboxUnavailableError(
            f"process 1 in the place {place_id} cannot be reached now: {error!r}; ask again", reason="unreachable"
        )


class Recovery:
    """Makes the store and the machine agree.

    Sandboxes whose process 1 answers run again; those in which nothing has run yet are queued again; the others have ended,
    by the reason that their process 1 left behind or `lost`. One that cannot be taken up, whatever the reason, is lost and
    holds up no other. Slots without a record are taken away.
    """

    def __init__(
        self,
        backend: Backend,
        registry: Registry,
        lifecycle: Lifecycle,
        slots: Slots,
        leases: Leases,
        execs: Execs,
        detached: Detached,
        ports: Ports,
        secrets: Secrets,
        moves: Moves,
    ) -> None:
        self._backend = backend
        self._registry = registry
        self._lifecycle = lifecycle
        self._slots = slots
        self._leases = leases
        self._execs = execs
        self._detached = detached
        self._ports = ports
        self._secrets = secrets
        self._moves = moves
        self._unbegun: dict[str, SandboxRecord] = {}
        self._placed: set[str] = set()

    async def run(self) -> None:
        """Do it, before the first request is answered."""
        self._leases.restore()
        self._placed = set(await self._backend.place_ids())
        records = self._registry.store.living()
        await asyncio.gather(*(self._take_up(record, self._resume) for record in records))
        # Those that wait come once all places that are taken are known, in the order in which they came.
        for record in records:
            if record.sandbox_id in self._unbegun:
                await self._take_up(self._unbegun[record.sandbox_id], self._queue)
        known = {record.place_id or record.sandbox_id for record in records}
        for place_id in await self._backend.place_ids():
            if place_id not in known:
                await self._lifecycle.destroy(place_id)
        self._unbegun.clear()
        await self._detached.clear(self._registry.live, self._registry.find_record)

    async def take_up(self, record: SandboxRecord) -> None:
        """Go on with a sandbox that another server had.

        Raises:
            SandboxUnavailableError: its process 1 cannot be reached now. Nothing has become of it here.
        """
        await self._take_up(record, partial(self._resume, is_others=True))
        if (unbegun := self._unbegun.pop(record.sandbox_id, None)) is not None:
            await self._take_up(unbegun, self._queue)

    async def _take_up(self, record: SandboxRecord, how: Callable[[SandboxRecord], Awaitable[None]]) -> None:
        try:
            await how(record)
        except _NotReached as error:
            raise error.as_error from error
        except Exception as error:
            # What it says of a body could quote it: it is for nobody else. An error of ours says all that there is to say.
            quiet = isinstance(error, (ValidationError, AviatoError))
            log.error("sandbox %s cannot be taken up: %s", record.sandbox_id, _said(error), exc_info=None if quiet else error)
            await self._give_up(record, f"the server could not take it up after a restart: {_said(error)}")

    async def _give_up(self, record: SandboxRecord, message: str) -> None:
        sandbox = self._registry.live.get(record.sandbox_id)
        if sandbox is None:
            sandbox = self._unusable(record)
            self._registry.live[record.sandbox_id] = sandbox
        elif sandbox.task is not None:
            sandbox.task.cancel()
            await asyncio.wait((sandbox.task,))
            if sandbox.state is State.GONE:
                return
        # Whatever runs there is out of reach for good, so its place goes too.
        sandbox.record = sandbox.record.but(begun=True)
        if sandbox.state < State.ENDED:
            sandbox.settle(lost(message))
        self._slots.gone(sandbox)  # It may have been in the queue.
        self._slots.hold(sandbox)
        sandbox.task = asyncio.create_task(self._lifecycle.conclude(sandbox))

    def _unusable(self, record: SandboxRecord) -> LiveSandbox:
        status = record.status if record.status in LIVING else SandboxStatus.RUNNING
        request = CreateSandbox.model_construct(sandbox_id=record.sandbox_id)
        return LiveSandbox(
            record=record.but(status=status),
            request=request,
            lifecycle=self._lifecycle,
            holder="detached",
            state=State.STARTING,
        )

    async def _queue(self, record: SandboxRecord) -> None:
        """Nothing of it is there: it waits for a place, again or still."""
        sandbox = self._found(record, State.QUEUED)
        try:
            sandbox.secrets = await self._secrets.find_again(sandbox.request.secrets)
            # One that was being reset begins with what that was to give it, and lives as long as it had left.
            sandbox.expire_as_on_record()
            asked = record.lies_over or (sandbox.request.image if record.place_id is None else record.image)
            named = self._backend.resolve_image(asked, fallback=sandbox.request.image_fallback)
            sandbox.image = named if record.lies_over else image_before(self._backend, named, record.image_id)
            sandbox.record = record.but(ports={**self._ports.open(sandbox.sandbox_id, record.ports)})
        except AviatoError as error:
            sandbox.settle(not_started(error))
            self._enter(sandbox)
            self._slots.hold(sandbox)
            sandbox.task = asyncio.create_task(self._lifecycle.conclude(sandbox))
            return
        if sandbox.record.ports != record.ports:
            self._registry.save(sandbox.record)
        self._enter(sandbox)
        self._lifecycle.begin(sandbox)
        self._slots.join(sandbox)

    async def _resume(self, record: SandboxRecord, *, is_others: bool = False) -> None:
        """Go on with it, or with its end. What another server has on record of it is as it was when it was made."""
        if record.moving is not None:
            record = await self._moves.finish(record)
            self._registry.save(record)
        place_id = record.place_id or record.sandbox_id
        if self._backend.is_taken(place_id):
            self._registry.store.forget_sandbox(record.sandbox_id)
            return
        if place_id in self._placed:
            record = record.but(begun=True)  # So it was, or its end was remembered there.
        is_asked = record.status is SandboxStatus.TERMINATING
        if not record.begun and not is_asked:
            self._unbegun[record.sandbox_id] = record
            return
        sandbox = self._found(record, State.STOPPING if is_asked else State.STARTING)
        link = await self._reconnect(place_id, is_others=is_others)
        if not is_asked and record.started_at is None and await self._is_unused(sandbox, link, is_others):
            # Its server died before it had made it, or said what holds inside (environment, directory, lifetime).
            if link is not None:
                link.detach()
            await self._lifecycle.destroy(place_id)
            self._unbegun[record.sandbox_id] = record = record.but(begun=False)
            self._registry.save(record)
            return
        self._enter(sandbox)
        self._slots.hold(sandbox)
        if is_asked:
            self._slots.leaving(sandbox)
        if link is None:
            left = await in_thread(self._backend.how_ended, place_id)
            sandbox.settle(ending_of("lost", asked=sandbox.asked, left=left, message="its process 1 was gone after a restart"))
            await self._detached.restore(sandbox)
            sandbox.task = asyncio.create_task(self._lifecycle.conclude(sandbox))
            return
        sandbox.link = link
        try:
            await self._execs.restore(sandbox, is_others=is_others)
            await self._lifecycle.run(sandbox)
        except AviatoError as error:
            sandbox.settle(not_started(error))
            sandbox.task = asyncio.create_task(self._lifecycle.conclude(sandbox))
            return
        self._lifecycle.begin(sandbox)

    async def _is_unused(self, sandbox: LiveSandbox, link: Process1Link | None, is_others: bool) -> bool:
        """Whether nobody can have used a sandbox that is not known to run, so that it can be made again.

        Once its process 1 was told what holds inside somebody may have, though a full disk kept the server from putting on
        record that it runs: files may be there. An earlier process 1 tells of commands only.
        """
        if link is not None:
            return not (link.hello["execs"] or link.hello.get("configured"))
        if is_others:
            return False  # It may have run since, and nobody would know that what was in it is gone.
        if sandbox.place_id not in await self._backend.place_ids():
            return True
        # Commands come later; the main one may have run, and then its process 1 was killed before it could be told.
        left = await in_thread(self._backend.how_ended, sandbox.place_id)
        return left is None and sandbox.request.command is None

    def _found(self, record: SandboxRecord, state: State) -> LiveSandbox:
        if record.status not in LIVING:
            raise ValueError(f"{str(record.status)!r} is no status of a sandbox that has not ended")
        request, unknown = CreateSandbox.from_record(record.body or "{}")
        if unknown:
            log.warning("sandbox %s: fields of another version are ignored: %s", record.sandbox_id, ", ".join(unknown))
        lease = self._leases.held.get(record.lease_id or "")
        waited = max(0.0, time.time() - record.created_at)
        sandbox = LiveSandbox(
            record=record,
            request=request,
            lifecycle=self._lifecycle,
            state=state,
            holder="detached" if lease is None else lease.holder,
            accepted_at=time.monotonic() - waited,
            asked=record.status_reason if state is State.STOPPING else None,
        )
        if state is State.STOPPING:
            sandbox.ready.set()
        return sandbox

    def _enter(self, sandbox: LiveSandbox) -> None:
        self._registry.live[sandbox.sandbox_id] = sandbox
        if sandbox.record.let_go:
            self._registry.let_go[sandbox.sandbox_id] = sandbox
        if sandbox.record.lease_id is not None:
            lease = self._leases.held.get(sandbox.record.lease_id)
            if lease is None:
                # Its lease ended while nobody was there to end it: it gets a period like any other.
                lease = self._leases.renew(sandbox.record.lease_id, lambda: None, Caller(tenant=sandbox.record.owner))
            self._leases.attach(lease, sandbox)

    async def _reconnect(self, place_id: str, *, is_others: bool) -> Process1Link | None:
        """A link to its process 1; what fails while that lives is tried again, since a sandbox is given up for good.

        But for another server's, which whoever asks for it next may reach.
        """
        deadline = time.monotonic() + RECONNECT_SECONDS
        while True:
            try:
                async with asyncio.timeout(RECONNECT_SECONDS):
                    return await self._backend.reconnect(place_id)
            except (TimeoutError, AviatoError, SandboxGone, OSError) as error:
                if isinstance(error, SandboxUnavailableError) and not error.retryable:
                    raise
                if time.monotonic() + AGAIN_SECONDS > deadline and is_others:
                    raise _NotReached(place_id, error) from error
                if time.monotonic() + AGAIN_SECONDS > deadline:
                    log.warning("process 1 in the place %s does not answer: %r", place_id, error)
                    return None
            await asyncio.sleep(AGAIN_SECONDS)


def _said(error: Exception) -> str:
    if isinstance(error, ValidationError):
        faults = error.errors(include_input=False, include_context=False, include_url=False)
        return "its record cannot be read: " + "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in faults[:3]
        )
    return str(error) if isinstance(error, AviatoError) else f"{type(error).__name__}: {error}"
