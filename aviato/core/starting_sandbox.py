"""How a sandbox is asked for: once, after what it begins with is there, and in the turn that its session gives it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from aviato.core.client import encode_create
from aviato.core.known_sandbox import KnownSandbox
from aviato.core.sandbox_endings import stopped_error
from aviato.core.secrets import own_values
from aviato.core.shared import SharedTask
from aviato.exceptions import AviatoError
from aviato.options import SandboxStatus
from aviato.wire.sandboxes import SandboxInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aviato.core.beginning import Beginning


@dataclass(eq=False, repr=False)
class StartingSandbox(KnownSandbox):
    """A sandbox that may have to be made.

    Attributes:
        beginning: what has to be there before it can be asked for; None once it is.
        waits_for: what it waits for before it can be asked for, as its `status_reason`; None: nothing.
    """

    _: KW_ONLY
    beginning: Beginning | None = None
    waits_for: str | None = field(default=None, init=False)
    _asked_at: float = field(default=0.0, init=False)
    _start: SharedTask[None] | None = field(default=None, init=False)
    _by_run: bool = field(default=False, init=False)
    """Its create went with a command, so an error may be that of the command."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._to_be_told = self.beginning

    # -- asking for it

    async def start(self) -> None:
        """Return once the server has accepted it; all callers share one request, and a cancelled one leaves it."""
        if self.accepted and not self.stopped:
            return
        await self._starting().outcome()
        if self.stopped:
            raise stopped_error(self.sandbox_id)

    async def start_by(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """As `start`, by a request of the caller's own that holds the create; `send` returns once that is accepted."""
        self._by_run = True
        await self._starting(send).outcome()
        if self.stopped:
            raise stopped_error(self.sandbox_id)

    async def accept(self) -> None:
        """As `start`, but a slot in the session's own queue is acceptance too; the start goes on."""
        if not self.accepted:
            self._starting()
        if not self.queued:
            await self.start()

    def _starting(self, send: Callable[[bytes], Awaitable[None]] | None = None) -> SharedTask[None]:
        if self.stopped:
            raise stopped_error(self.sandbox_id)
        if self._start is None or self._start.done():
            turn = None if self.slots is None else self.slots.join(self)
            self._asked_at = time.time()
            self.waits_for = None if self.beginning is None else self.beginning.status_reason
            self._start = SharedTask(self._request_start(turn, send or self._send_create), f"start {self.sandbox_id}")
        return self._start

    @property
    def begun(self) -> bool:
        """Whether a start was ever asked for."""
        return self.accepted or self._start is not None

    async def until_accepted(self) -> None:
        """Wait for a start under way, stopped meanwhile or not."""
        if not self.accepted and self._start is not None:
            await self._start.outcome()

    @property
    def created_at(self) -> float:
        """When it was accepted, in seconds since the epoch."""
        return self._asked_at if self.info is None else self.info.created_at

    async def _send_create(self, body: bytes) -> None:
        self.see(await self.client.create(body))

    async def _request_start(self, turn: asyncio.Future[None] | None, send: Callable[[bytes], Awaitable[None]]) -> None:
        assert self.create_fields is not None
        self.enter()
        try:
            if turn is not None and not turn.done():
                await self._take(turn)
            await self._ask_for_it(send)
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

    async def _ask_for_it(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the create, and once more where what it begins with was removed in between and can be made anew."""
        for is_last in (False, True):
            if self.beginning is not None:
                # From here on it is of that image for all who make others like it, such as a grade.
                self.create_fields = {**(self.create_fields or {}), "image": await self.beginning.taken()}
            fields = self.create_fields or {}
            own: dict[str, Any] = {"sandbox_id": self.sandbox_id}
            if values := self.secret_values():
                own["secret_values"] = values
            if not fields.get("detached"):
                own["lease_id"] = self.lease.take_lease()
            try:
                await send(encode_create(fields, **own))
            except AviatoError as error:
                if self.beginning is None or not self.beginning.is_lost(error) or is_last:
                    raise
            else:
                self.beginning = None  # Until then another start needs it, too.
                return

    def secret_values(self) -> dict[str, str]:
        """Values of its secrets that an embedded server has to be told; none for another server, which has its own."""
        secrets = (self.create_fields or {}).get("secrets")
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
                raise stopped_error(self.sandbox_id) from None
            raise
        self._queued_seconds = time.monotonic() - begin

    # -- its turn

    @property
    def on_its_way(self) -> bool:
        """Whether its session has accepted it, and the server may not have yet."""
        return self.slots is not None and self._start is not None and not self._start.done()

    @property
    def queued(self) -> bool:
        """Whether it waits in its session's own queue, so that the server does not know it yet."""
        return self.queue_position is not None

    @property
    def queue_position(self) -> int | None:
        """Its place in its session's own queue, 1 is next."""
        return None if self.slots is None else self.slots.position(self.sandbox_id)

    def withdraw(self) -> None:
        """Leave the session's queue for good: the server will never know it."""
        self.stopped = True
        create = self.create_fields or {}
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
        await self.lease.acknowledgements.told_of(self.sandbox_id)
        info = await self.client.release(self.sandbox_id)
        if info is not None:
            self.see(info)
        elif self.slots is not None:
            self.slots.leave(self)
