"""What is known of a sandbox on this side: what its server and its commands have said, and who uses it."""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from aviato.core.sandbox_endings import IMAGE_PULL_FAILED
from aviato.core.telling import tell_of_end, tell_of_start
from aviato.exceptions import (
    AviatoError,
    SandboxFailedError,
    SandboxImageError,
    SandboxNotRunningError,
    SandboxTerminatedError,
)
from aviato.log import logger
from aviato.options import SandboxStatus
from aviato.values.text import line

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.core.client import Client
    from aviato.core.concurrency_slots import ConcurrencySlots
    from aviato.core.lease import Lease
    from aviato.wire.execution import Started
    from aviato.wire.images import ImagePull
    from aviato.wire.sandboxes import SandboxInfo

_noted: set[str] = set()


@dataclass(eq=False, repr=False)
class KnownSandbox:
    """A sandbox as it was seen last.

    Attributes:
        sandbox_id: made by the client.
        client: requests to its server.
        lease: this process at that server.
        create_fields: how it is to be made, as the create request has it; None: it exists already.
        on_running: told once how long the start took, and whether it was ready in a pool.
        on_image: told once what it took to have its image, or that it cannot be had.
        on_ended: told once it is known to have ended, with its id.
        slots: those of its session, where that has a limit.
        info: as last seen.
        accepted: the server has it.
        stopped: this side has asked for its end.
        releasable: nobody can begin an operation any more; the server is told once the last one has ended.
        used_at: when the last operation of this process ended, by the monotonic clock.
        said_started: what a command has said of its running, as it came and read; None where something else was seen since.
        prints_much: some command of it has, so that memory may be worth sharing for the next.
    """

    sandbox_id: str
    client: Client
    lease: Lease
    create_fields: dict[str, Any] | None
    _: KW_ONLY
    on_running: Callable[[float, bool], None] | None = None
    on_image: Callable[[ImagePull | None], None] | None = None
    on_ended: Callable[[str], None] | None = None
    slots: ConcurrencySlots | None = None
    info: SandboxInfo | None = field(default=None, init=False)
    accepted: bool = field(init=False)
    stopped: bool = field(default=False, init=False)
    releasable: bool = field(default=False, init=False)
    used_at: float = field(default=0.0, init=False)
    said_started: tuple[bytes, Started] | None = field(default=None, init=False)
    prints_much: bool = field(default=False, init=False)
    _queued_seconds: float = field(default=0.0, init=False)
    _operations: int = field(default=0, init=False)
    _seen_running: bool = field(default=False, init=False)
    _seen_end: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.accepted = self.create_fields is None
        self.path = f"/v1/sandboxes/{self.sandbox_id}"

    @property
    def leased(self) -> bool:
        """Whether it ends with this process, which made it."""
        return self.create_fields is not None and not self.create_fields.get("detached")

    # -- looking

    async def refresh(self) -> SandboxInfo:
        """Ask the server."""
        return self.see(await self.client.get(self.sandbox_id))

    def see(self, info: SandboxInfo) -> SandboxInfo:
        """Take note of what the server says."""
        self.info = info
        self.said_started = None
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

    def has_started(self, startup_seconds: float | None, was_ready: bool) -> None:
        """It runs, or has run; counted once."""
        report, self.on_running = self.on_running, None
        if report is not None and startup_seconds is not None:
            report(startup_seconds + self._queued_seconds, was_ready)

    def _has_image(self, pull: ImagePull | None, *, failed: bool = False) -> None:
        """What is known of its image; counted once."""
        if (pull is not None or failed) and self.on_image is not None:
            report, self.on_image = self.on_image, None
            report(pull)

    def runs(self, told: Started) -> None:
        """A command in it has begun, so it runs: known without asking."""
        if told.image_pull is not None:
            self._has_image(told.image_pull)
        if self.on_running is not None:
            self.has_started(told.startup_seconds, told.was_ready)
        if self.info is not None and self.info.status is SandboxStatus.PENDING:
            update: dict[str, Any] = {"status": SandboxStatus.RUNNING, "queue": None, "image_id": told.image_id}
            if (at := told.started_at) is not None:
                update |= {"started_at": at, "status_updated_at": at, "startup_seconds": told.startup_seconds}
            self.info = self.info.model_copy(update=update)
        if not self._seen_running:
            self._is_running(told.startup_seconds)

    def _is_running(self, startup_seconds: float | None) -> None:
        self._seen_running = True
        self.lease.following.runs(self)
        tell_of_start(self.sandbox_id, self.info, startup_seconds, self._queued_seconds)

    def _has_ended(self, info: SandboxInfo) -> None:
        if self._seen_end:
            return
        self._seen_end = True
        if self.on_ended is not None:
            self.on_ended(self.sandbox_id)
        if self._seen_running or self.create_fields is not None:  # else it is no news
            if info.started_at is not None and not self._seen_running:
                self._is_running(info.startup_seconds)
            tell_of_end(info)

    def is_known_to_be(self, until: str) -> bool:
        """Whether it is `running` or has `ended` as far as is known here, or its end was asked for here."""
        status = None if self.info is None else self.info.status
        ended = self.stopped or (status is not None and status.is_terminal)
        return ended or (until == "running" and self._seen_running)

    @property
    def may_have_run(self) -> bool:
        """Whether it has begun to run, as far as is known here; in doubt, what the server has and was not heard of since."""
        if self.is_known_to_be("running"):
            return True
        return self.accepted if self.info is None else self.info.status is not SandboxStatus.PENDING

    def has_failed(self, error: AviatoError) -> None:
        """A call failed; if that was by the end of the sandbox, what is known of it is out of date."""
        if isinstance(error, SandboxImageError) and error.reason == IMAGE_PULL_FAILED:
            self._has_image(None, failed=True)
        if isinstance(error, (SandboxFailedError, SandboxNotRunningError, SandboxTerminatedError)):
            self.lease.following.may_have_ended(self)

    # -- using

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
            if self.slots is not None and self.create_fields is not None and self.create_fields.get("command") is None:
                self.slots.let_go(self)
