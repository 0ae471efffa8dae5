"""One sandbox's life as its client sees it: start, wait, stop, and what may be forgotten."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from aviato.core.client import encode_create
from aviato.core.secrets import own_values
from aviato.core.shared import SharedTask
from aviato.core.telling import tell_of_end, tell_of_start
from aviato.exceptions import (
    AviatoAuthenticationError,
    AviatoError,
    AviatoValidationError,
    SandboxFailedError,
    SandboxImageError,
    SandboxNotRunningError,
    SandboxTerminatedError,
)
from aviato.log import logger
from aviato.options import SandboxStatus
from aviato.values.text import line
from aviato.wire.sandboxes import SandboxInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato.core.client import Client
    from aviato.core.concurrency_slots import ConcurrencySlots
    from aviato.core.lease import Lease
    from aviato.wire.images import ImagePull

IMAGE_PULL_FAILED = "image_pull_failed"
"""A `status_reason`."""
NO_SERVER = frozenset({"configuration", "embedded_start", "state_dir", "tls"})
"""Reasons for which no request was ever sent."""

_noted: set[str] = set()


class Beginning(Protocol):
    """What has to be there before a sandbox can be asked for."""

    @property
    def status_reason(self) -> str | None:
        """Of a sandbox that waits for it, which no server knows yet; None: nothing is said of it."""
        ...

    async def taken(self) -> str:
        """The image that the sandbox is of, once that is there.

        Raises:
            AviatoError: it cannot be had.
        """
        ...

    def begun(self) -> None:
        """The sandbox has been accepted, or never will be."""
        ...


class SandboxHandle:
    """A sandbox on one loop.

    Args:
        sandbox_id: made by the client.
        client: requests to its server.
        lease: this process at that server.
        create: the fields of the create request; None for a sandbox that exists already.
        on_running: told once how long the start took, and whether it was ready in a pool.
        on_image: told once what it took to have its image, or that it cannot be had.
        slots: those of its session, where that has a limit.
        beginning: what has to be there before it can be asked for.

    Attributes:
        info: as last seen.
        stopped: this side has asked for its end.
        over: the server ends it, and nobody need ask.
        releasable: nobody can begin an operation any more; the server is told once the last one has ended.
        waits_for: what it waits for before it can be asked for, as its `status_reason`; None: nothing.
        forking: what children that were asked for by now begin with, as far as it is not there yet; a stop waits for it.
        used_at: when the last operation of this process ended, by the monotonic clock.
        known_to_run: it runs as far as was seen last, and all that its commands say of that has been taken note of.
        prints_much: some command of it has, so that memory may be worth sharing for the next.
    """

    def __init__(
        self,
        sandbox_id: str,
        client: Client,
        lease: Lease,
        create: dict[str, Any] | None,
        *,
        on_running: Callable[[float, bool], None] | None = None,
        on_image: Callable[[ImagePull | None], None] | None = None,
        slots: ConcurrencySlots | None = None,
        beginning: Beginning | None = None,
    ) -> None:
        self.sandbox_id = sandbox_id
        self.client = client
        self.lease = lease
        self.path = f"/v1/sandboxes/{sandbox_id}"
        self.info: SandboxInfo | None = None
        self.stopped = False
        self.over = False
        self.accepted = create is None
        self.slots = slots
        self.waits_for: str | None = None
        self.forking: list[SharedTask[None]] = []
        self._create = create
        self._beginning = beginning
        self._to_be_told = beginning
        self._asked_at = 0.0
        self._queued_seconds = 0.0
        self._on_running = on_running
        self._on_image = on_image
        self._start: SharedTask[None] | None = None
        self._watches: dict[str, SharedTask[SandboxInfo]] = {}
        self._stop: SharedTask[None] | None = None
        self._operations = 0
        self._seen_running = self._seen_end = False
        self.used_at = 0.0
        self.known_to_run = False
        self.prints_much = False
        self._by_run = False
        """Its create went with a command, so an error may be that of the command."""
        self.releasable = False

    # -- starting

    async def start(self) -> None:
        """Return once the server has accepted it; all callers share one request, and a cancelled one leaves it."""
        if self.accepted and not self.stopped:
            return
        await self._starting().outcome()
        if self.stopped:
            raise self._is_stopped()

    async def start_by(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """As `start`, by a request of the caller's own that holds the create; `send` returns once that is accepted."""
        self._by_run = True
        await self._starting(send).outcome()
        if self.stopped:
            raise self._is_stopped()

    async def accept(self) -> None:
        """As `start`, but a slot in the session's own queue is acceptance too; the start goes on."""
        if not self.accepted:
            self._starting()
        if not self.queued:
            await self.start()

    def _starting(self, send: Callable[[bytes], Awaitable[None]] | None = None) -> SharedTask[None]:
        if self.stopped:
            raise self._is_stopped()
        if self._start is None or self._start.done():
            turn = None if self.slots is None else self.slots.join(self)
            self._asked_at = time.time()
            self.waits_for = None if self._beginning is None else self._beginning.status_reason
            self._start = SharedTask(self._request_start(turn, send or self._send_create), f"start {self.sandbox_id}")
        return self._start

    @property
    def on_its_way(self) -> bool:
        """Whether its session has accepted it, and the server may not have yet."""
        return self.slots is not None and self._start is not None and not self._start.done()

    @property
    def queued(self) -> bool:
        """Whether it waits in its session's own queue, so that the server does not know it yet."""
        return self.slots is not None and self.slots.position(self.sandbox_id) is not None

    @property
    def begun(self) -> bool:
        """Whether a start was ever asked for."""
        return self.accepted or self._start is not None

    @property
    def leased(self) -> bool:
        """Whether it ends with this process, which made it."""
        return self._create is not None and not self._create.get("detached")

    @property
    def create_fields(self) -> dict[str, Any] | None:
        """How it was made; None of one that this process did not make."""
        return self._create

    async def until_accepted(self) -> None:
        """Wait for a start under way, stopped meanwhile or not."""
        if not self.accepted and self._start is not None:
            await self._start.outcome()

    async def _send_create(self, body: bytes) -> None:
        self.see(await self.client.create(body))

    async def _request_start(self, turn: asyncio.Future[None] | None, send: Callable[[bytes], Awaitable[None]]) -> None:
        assert self._create is not None
        self.enter()
        try:
            if turn is not None and not turn.done():
                await self._take(turn)
            if self._beginning is not None:
                # From here on it is of that image for all who make others like it, such as a grade.
                self._create = {**self._create, "image": await self._beginning.taken()}
                self._beginning = None  # Until then another start needs it, too.
            own: dict[str, Any] = {"sandbox_id": self.sandbox_id}
            if values := self.secret_values():
                own["secret_values"] = values
            if not self._create.get("detached"):
                own["lease_id"] = self.lease.take_lease()
            await send(encode_create(self._create, **own))
            self.accepted = True
            self.lease.hold()
            self.lease.following.accepted(self)
        except BaseException:
            if self.slots is not None:
                self.slots.leave(self)
            raise
        finally:
            self.waits_for = None
            self.leave()
            self._leave_beginning()
        if self.slots is not None:
            self.slots.created(self)

    def secret_values(self) -> dict[str, str]:
        """Values of its secrets that an embedded server has to be told; none for another server, which has its own."""
        secrets = (self._create or {}).get("secrets")
        return own_values(secrets) if secrets and self.client.transport.server.endpoint.embedded else {}

    def _leave_beginning(self) -> None:
        """It has begun with it, or never will."""
        beginning, self._to_be_told = self._to_be_told, None
        if beginning is not None:
            beginning.begun()

    async def _take(self, turn: asyncio.Future[None]) -> None:
        begin = time.monotonic()
        try:
            await turn
        except asyncio.CancelledError:
            if self.stopped:
                raise self._is_stopped() from None
            raise
        self._queued_seconds = time.monotonic() - begin

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

    # -- looking

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

    async def refresh(self) -> SandboxInfo:
        """Ask the server."""
        return self.see(await self.client.get(self.sandbox_id))

    def see(self, info: SandboxInfo) -> SandboxInfo:
        """Take note of what the server says."""
        self.info = info
        self.known_to_run = False
        self._has_image(info.image_pull, failed=info.status_reason == IMAGE_PULL_FAILED)
        if info.started_at is not None:
            self.has_started(info.startup_seconds, info.was_ready)
        if info.status is SandboxStatus.RUNNING and not self._seen_running:
            self._is_running(info.startup_seconds)
        elif info.status.is_terminal:
            self._has_ended(info)
        elif info.status is SandboxStatus.TERMINATING:
            self.lease.following.is_ending(self)
        if info.image_note is not None and info.image_note not in _noted:
            _noted.add(info.image_note)
            logger.warning("%s", line(info.image_note))
        if self.slots is not None and info.status.is_terminal:
            self.slots.leave(self)
        return info

    @property
    def created_at(self) -> float:
        """When it was accepted, in seconds since the epoch."""
        return self._asked_at if self.info is None else self.info.created_at

    def has_started(self, startup_seconds: float | None, was_ready: bool) -> None:
        """It runs, or has run; counted once."""
        report, self._on_running = self._on_running, None
        if report is not None and startup_seconds is not None:
            report(startup_seconds + self._queued_seconds, was_ready)

    def _has_image(self, pull: ImagePull | None, *, failed: bool = False) -> None:
        """What is known of its image; counted once."""
        if (pull is not None or failed) and self._on_image is not None:
            report, self._on_image = self._on_image, None
            report(pull)

    def runs(
        self, started_at: float | None, startup_seconds: float | None, was_ready: bool, image_pull: ImagePull | None = None
    ) -> None:
        """A command in it has begun, so it runs: known without asking."""
        if image_pull is not None:
            self._has_image(image_pull)
        if self._on_running is not None:
            self.has_started(startup_seconds, was_ready)
        if self.info is not None and self.info.status is SandboxStatus.PENDING:
            update: dict[str, Any] = {"status": SandboxStatus.RUNNING, "queue": None}
            if started_at is not None:
                update |= {"started_at": started_at, "status_updated_at": started_at, "startup_seconds": startup_seconds}
            self.info = self.info.model_copy(update=update)
        if not self._seen_running:
            self._is_running(startup_seconds)
        self.known_to_run = True

    def _is_running(self, startup_seconds: float | None) -> None:
        self._seen_running = True
        self.lease.following.runs(self)
        tell_of_start(self.sandbox_id, self.info, startup_seconds, self._queued_seconds)

    def _has_ended(self, info: SandboxInfo) -> None:
        if self._seen_end:
            return
        self._seen_end = True
        if self._seen_running or self._create is not None:  # else it is no news
            if info.started_at is not None and not self._seen_running:
                self._is_running(info.startup_seconds)
            tell_of_end(info)

    def is_known_to_be(self, until: str) -> bool:
        """Whether it is `running` or has `ended` as far as is known here, or its end was asked for here."""
        status = None if self.info is None else self.info.status
        ended = self.stopped or (status is not None and status.is_terminal)
        return ended or (until == "running" and self._seen_running)

    def has_failed(self, error: AviatoError) -> None:
        """A call failed; if that was by the end of the sandbox, what is known of it is out of date."""
        if isinstance(error, SandboxImageError) and error.reason == IMAGE_PULL_FAILED:
            self._has_image(None, failed=True)
        if isinstance(error, (SandboxFailedError, SandboxNotRunningError, SandboxTerminatedError)):
            self.lease.following.may_have_ended(self)

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

    async def _request_stop(self, grace_seconds: float, missing_ok: bool) -> None:
        self.stopped = True
        if not self.accepted and self._start is not None:
            # Whatever comes of the create, its answer is there before the stop is sent: nothing can be created after it.
            await self._start.ended()
            error = self._start.error()
            if isinstance(error, AviatoError) and _nothing_made(error) and not self._by_run:
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
            if _is_final(error) and _is_final(failure):
                return  # Its start has said what is wrong with this server.
            raise
        self.lease.acknowledgements.stopped(self.sandbox_id)
        if info is not None:
            self.see(info)
        elif self.slots is not None:
            self.slots.leave(self)

    def withdraw(self) -> None:
        """Leave the session's queue for good: the server will never know it."""
        self.stopped = True
        create = self._create or {}
        self.info = SandboxInfo(
            sandbox_id=self.sandbox_id,
            status=SandboxStatus.TERMINATED,
            status_reason="stopped",
            status_updated_at=time.time(),
            created_at=self._asked_at,
            detached=bool(create.get("detached")),
            tags=list(create.get("tags", ())),
            annotations=dict(create.get("annotations", {})),
        )
        self._has_ended(self.info)
        if self.slots is not None:
            self.slots.leave(self)

    async def release(self) -> None:
        """End it so that another can start, if the server too sees no use of it."""
        await self.lease.acknowledgements.flushed()
        info = await self.client.release(self.sandbox_id)
        if info is not None:
            self.see(info)
        elif self.slots is not None:
            self.slots.leave(self)

    def _is_stopped(self) -> AviatoError:
        return SandboxNotRunningError(
            f"sandbox {self.sandbox_id} was stopped", sandbox_id=self.sandbox_id, reason="stopped", started=False
        )

    # -- being let go

    def enter(self) -> None:
        """An operation of this sandbox begins."""
        self._operations += 1

    def leave(self) -> None:
        """An operation of this sandbox has ended."""
        self._operations -= 1
        self.used_at = time.monotonic()
        if self.releasable:
            self._tell_if_released()

    @property
    def in_use(self) -> bool:
        """Whether a command or another operation of this process is under way."""
        return self._operations > 0

    def let_go(self) -> None:
        """Nobody can begin an operation any more; the server is told once the last one has ended."""
        self.releasable = True
        self._tell_if_released()

    def _tell_if_released(self) -> None:
        if not self._operations and self.accepted and not self.stopped:
            self.releasable = False
            self.lease.acknowledgements.let_go(self.sandbox_id)
            if self.slots is not None and self._create is not None and self._create.get("command") is None:
                self.slots.let_go(self)


def _is_final(error: BaseException | None) -> bool:
    return isinstance(error, AviatoError) and not error.retryable


def _nothing_made(error: AviatoError) -> bool:
    """Whether a create that failed so reached no server, or was refused by it: there is nothing to end.

    After any other failure there may be a sandbox, and an answer that was garbled on its way is the only one there was.
    """
    refused = isinstance(error, (AviatoValidationError, AviatoAuthenticationError))
    return refused or (_is_final(error) and error.reason in NO_SERVER)


def ending_error(info: SandboxInfo) -> AviatoError | None:
    """What calls on an ended sandbox raise; None while it lives."""
    status, reason = info.status, info.status_reason
    if not status.is_terminal:
        return None
    fields: dict[str, Any] = {"sandbox_id": info.sandbox_id, "is_infrastructure": info.is_infrastructure}
    detail = f": {info.message}" if info.message else ""
    subject = f"sandbox {info.sandbox_id}"
    if reason == IMAGE_PULL_FAILED:
        return SandboxImageError(f"{subject} has no image{detail}", reason=reason, **fields)
    if status is SandboxStatus.FAILED:
        code = "" if info.returncode is None else f" with returncode {info.returncode}"
        return SandboxFailedError(f"{subject} failed{code} ({reason or 'failed'}){detail}", reason=reason, **fields)
    if status is SandboxStatus.TERMINATED and reason != "stopped":
        return SandboxTerminatedError(f"{subject} was ended by the server ({reason}){detail}", reason=reason, **fields)
    how = "was stopped" if status is SandboxStatus.TERMINATED else "has ended: its main command exited with 0"
    return SandboxNotRunningError(f"{subject} {how}", reason=reason, **fields)
