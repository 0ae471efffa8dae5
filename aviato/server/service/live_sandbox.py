"""A sandbox that has not ended, as the server holds it in memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aviato.options import SandboxStatus
from aviato.server.service.event import Event
from aviato.server.states import Ending, check_transition, error_of, terminated
from aviato.wire.sandboxes import CreateSandbox, LimitInfo, QueueInfo, SandboxInfo, service_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.exceptions import SandboxError
    from aviato.server.backends.base import ResolvedImage, SandboxSpec
    from aviato.server.link.link import Process1Link
    from aviato.server.service.exec_state import ExecState
    from aviato.server.service.output.main_output import MainOutput
    from aviato.server.store import SandboxRecord

UNDER_WAY = 64
"""How many confirmations may be on their way to a process 1 that ends just then."""


@dataclass(eq=False, slots=True, kw_only=True)
class LiveSandbox:
    """One living sandbox.

    Attributes:
        record: what the store knows of it.
        image: None for one found again after a restart.
        secrets: environment variables, until its process 1 has them.
        spec: what the backend is asked for, where that was made and it can start at once.
        client: whose turn in the queue it takes, where it has no lease.
        accepted_at: by the monotonic clock.
        place: resolves when it may start.
        link: to its process 1, from the moment that it has one.
        asked: the reason for which this server wants it to end.
        grace_seconds: given to its commands when it was asked.
        entered: its task has taken its first step.
        forced: its process 1 did not end when it was told to, or was not told.
        killed_at: when its process 1 was killed without being told to end, by the monotonic clock.
        ending: how it ended, once that is known.
        ready: it runs, or never will.
        settled: `ending` is known.
        gone: its place is taken away and the end is on record.
        calls: requests that use it now.
        on_run: called in order when it runs, before any waiter of `ready`.
        confirmed: commands whose results have arrived: all since it was told to end, of those before only the latest.
    """

    record: SandboxRecord
    request: CreateSandbox
    holder: str
    client: str = ""
    spec: SandboxSpec | None = field(default=None, repr=False)
    image: ResolvedImage | None = None
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    accepted_at: float = field(default_factory=time.monotonic)
    place: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    link: Process1Link | None = None
    asked: str | None = None
    grace_seconds: float = 0.0
    entered: bool = False
    forced: bool = False
    killed_at: float | None = None
    ending: Ending | None = None
    output: MainOutput | None = None
    ready: Event = field(default_factory=Event)
    settled: Event = field(default_factory=Event)
    gone: Event = field(default_factory=Event)
    execs: dict[str, ExecState] = field(default_factory=dict)
    confirmed: dict[str, None] = field(default_factory=dict)
    calls: int = 0
    pings_missed: int = 0
    expires_at: float | None = None
    on_run: list[Callable[[], None]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    helpers: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def sandbox_id(self) -> str:
        """Its id."""
        return self.record.sandbox_id

    @property
    def let_go(self) -> bool:
        """Whether nobody will begin a request on it any more."""
        return self.record.let_go

    @property
    def for_one_run(self) -> bool:
        """Whether it was made for one command, and ends with it."""
        return self.record.for_one_run

    @property
    def is_dead(self) -> bool:
        """Whether all that is left to be done is to put its end on record and to take its place away."""
        return self.killed_at is not None and self.ending is not None

    @property
    def main_exec_id(self) -> str:
        """Id of its main command: the same at every start, so that it runs at most once."""
        return "ex-" + self.sandbox_id[3:]

    @property
    def runs(self) -> bool:
        """Whether commands can be sent to it."""
        return self.link is not None and self.ready.is_set() and self.asked is None and self.ending is None

    def confirm(self, exec_id: str) -> None:
        """A whole result has arrived: it need not be kept, even if its process 1 should end before it can be told."""
        self.confirmed[exec_id] = None
        if self.runs and len(self.confirmed) > UNDER_WAY:
            del self.confirmed[next(iter(self.confirmed))]

    def ends_with(self, exec_id: str) -> bool:
        """Whether it is ending, with a result of this command that may yet be left behind."""
        state = self.execs.get(exec_id)
        here = (state is not None and state.started) or (self.link is not None and self.link.has(exec_id))
        return here and not self.gone.is_set() and not self.forced

    @property
    def idle(self) -> bool:
        """Whether nothing runs in it, no result waits to be fetched and no request uses it."""
        return self.calls == 0 and self.link is not None and self.request.command is None and self.link.active_execs() == 0

    @property
    def releasable(self) -> bool:
        """Whether it may end so that another can start."""
        return self.let_go and self.request.releasable and not self.record.detached and self.runs and self.idle

    def move(self, status: SandboxStatus, **changes: Any) -> SandboxRecord:
        """Go to another status; the new record is returned, and is not in the store yet."""
        check_transition(self.record.status, status)
        self.record = self.record.but(status=status, status_updated_at=time.time(), **changes)
        return self.record

    def settle(self, ending: Ending) -> None:
        """Its end is known: wake everybody who waits for it to run, or for its end."""
        self.ending = ending
        if self.record.status is not SandboxStatus.TERMINATING:
            # From here on calls raise the error of the ending, so nobody may still be told that it runs.
            self.move(SandboxStatus.TERMINATING)
        self.settled.set()
        self.ready.set()

    def error(self, *, started: bool | None = None) -> SandboxError:
        """The error that calls raise now that it is ending."""
        ending = self.ending or terminated(self.asked or "stopped")
        return error_of(self.sandbox_id, ending, started=started)

    def spawn(self, task: asyncio.Task[None]) -> None:
        """Keep a helper task alive until it is done."""
        self.helpers.add(task)
        task.add_done_callback(self.helpers.discard)


def info_of(record: SandboxRecord, queue: QueueInfo | None = None) -> SandboxInfo:
    """A sandbox as clients see it."""
    return SandboxInfo(
        sandbox_id=record.sandbox_id,
        status=record.status,
        status_reason=record.status_reason,
        message=record.message,
        is_infrastructure=record.is_infrastructure,
        status_updated_at=record.status_updated_at,
        created_at=record.created_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
        startup_seconds=record.startup_seconds,
        returncode=record.returncode,
        detached=record.detached,
        tags=list(record.tags),
        annotations=record.annotations,
        image=record.image,
        image_note=record.image_note,
        limits={name: LimitInfo(**limit) for name, limit in record.limits.items()},
        unkept_promises=list(record.unkept_promises),
        queue=queue,
        ingress_mode="public" if record.ports else "none",
        egress_mode=record.egress,
        exposed_ports=list(record.ports),
        service_urls={port: service_url(address) for port, address in record.ports.items() if address is not None},
        runway_id="local",
        tower_id="local",
    )
