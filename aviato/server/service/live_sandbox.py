"""A sandbox that has not ended, as the server holds it in memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aviato.server.service.event import Event as Flag
from aviato.server.states import Ending, Event, State, after, error_of, status_of, terminated
from aviato.wire.sandboxes import CreateSandbox, LimitInfo, QueueInfo, SandboxInfo, service_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.exceptions import SandboxError
    from aviato.options import SandboxStatus
    from aviato.server.backends.base import ResolvedImage, SandboxSpec
    from aviato.server.link.at_rest import Done
    from aviato.server.link.link import Process1Link
    from aviato.server.service.exec_state import ExecState
    from aviato.server.service.lifecycle import Lifecycle
    from aviato.server.service.output.main_output import MainOutput
    from aviato.server.store import SandboxRecord
    from aviato.wire.images import ImagePull

UNDER_WAY = 64
"""How many confirmations may be on their way to a process 1 that ends just then."""
MOST_PLACES_BEFORE = 64
"""So many resets are known again when they are asked for once more, behind later ones."""


@dataclass(eq=False, slots=True, kw_only=True)
class LiveSandbox:
    """One living sandbox: the state it is in, and what belongs to it.

    Its state changes only by its methods, as `states.TABLE` has it; what follows from a change is done by its lifecycle.

    Attributes:
        record: what the store knows of it.
        lifecycle: starts, watches and ends it; None where it had ended before this server began.
        state: where it is in its life.
        image: None for one found again after a restart.
        secrets: environment variables, until its process 1 has them.
        spec: what the backend is asked for, where that was made and it can start at once.
        client: whose turn in the queue it takes, where it has no lease.
        accepted_at: by the monotonic clock.
        place: resolves when it may start, and is cancelled where it was told to end before.
        link: to its process 1, from the moment that it has one.
        was_ready: it got a place of a pool.
        image_pull: what it took to have its image, where that is one of the store and no snapshot.
        asked: the reason for which this server wants it to end.
        grace_seconds: given to its commands when it was asked.
        forced: its process 1 did not end when it was told to, or was not told.
        is_cut: its task was cancelled for that.
        killed_at: when its process 1 was killed without being told to end, by the monotonic clock.
        ending: how it ended, once that is known.
        ready: set when it runs, or never will.
        restart: makes its next process 1, once it is reset; gives its ending where there is none.
        departures: end what was there before resets.
        places_before: the latest of those that resets gave it.
        reset_at: the latest of them, by the monotonic clock.
        began_at: when it began, in seconds since the epoch, where it has moved since.
        said_started: what was said last when a command had begun, and of which record and windows: most say the same.
        done: gives what happened in the place before and must not happen again, until its process 1 knows that.
        settled: set with `ENDED`.
        gone: set with `GONE`.
        calls: requests that use it now.
        runs: commands can be sent to it: it is `RUNNING`.
        on_run: called in order when it runs or has ended, before any waiter of `ready`.
        confirmed: commands whose results have arrived: all since it was told to end, of those before only the latest.
    """

    record: SandboxRecord
    request: CreateSandbox
    holder: str
    lifecycle: Lifecycle | None = field(default=None, repr=False)
    state: State = State.QUEUED
    client: str = ""
    spec: SandboxSpec | None = field(default=None, repr=False)
    image: ResolvedImage | None = None
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    accepted_at: float = field(default_factory=time.monotonic)
    place: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    link: Process1Link | None = None
    was_ready: bool = False
    image_pull: ImagePull | None = None
    asked: str | None = None
    grace_seconds: float = 0.0
    forced: bool = False
    is_cut: bool = False
    killed_at: float | None = None
    ending: Ending | None = None
    output: MainOutput | None = None
    ready: Flag = field(default_factory=Flag)
    settled: Flag = field(default_factory=Flag)
    gone: Flag = field(default_factory=Flag)
    execs: dict[str, ExecState] = field(default_factory=dict)
    confirmed: dict[str, None] = field(default_factory=dict)
    calls: int = 0
    pings_missed: int = 0
    expires_at: float | None = None
    on_run: list[Callable[[], None]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    restart: asyncio.Task[Ending | None] | None = None
    departures: set[asyncio.Task[None]] = field(default_factory=set)
    places_before: dict[str, None] = field(default_factory=dict)
    reset_at: float | None = None
    began_at: float | None = None
    said_started: tuple[SandboxRecord, bool, bytes] | None = field(default=None, repr=False)
    done: asyncio.Future[Done | None] | None = field(default=None, repr=False)
    helpers: set[asyncio.Task[Any]] = field(default_factory=set)

    runs: bool = field(init=False)

    def __post_init__(self) -> None:
        self.runs = self.state is State.RUNNING

    @property
    def sandbox_id(self) -> str:
        """Its id."""
        return self.record.sandbox_id

    @property
    def place_id(self) -> str:
        """What the backend knows it by: the id of the place that it is in."""
        return self.record.place_id or self.record.sandbox_id

    @property
    def continues_snapshot(self) -> bool:
        """Whether its place lies over a snapshot that has in it what was done before."""
        if self.record.lies_over is not None:
            return True
        if self.record.place_id is None or self.record.image == self.request.image:
            return False
        return self.image is not None and self.image.is_snapshot

    @property
    def is_dead(self) -> bool:
        """Whether all that is left to be done is to put its end on record and to take its place away."""
        return self.killed_at is not None and self.state >= State.ENDED

    @property
    def main_exec_id(self) -> str:
        """Id of its main command: the same at every start in its place, so that it runs at most once there."""
        return "ex-" + (self.record.place_id or self.record.sandbox_id)[3:]

    @property
    def waits_for_image(self) -> bool:
        """Whether its image is on its way here."""
        return self.state is State.QUEUED and self.image is not None and not self.image.is_here

    def confirm(self, exec_id: str) -> None:
        """A whole result has arrived: it need not be kept, even if its process 1 should end before it can be told."""
        self.confirmed[exec_id] = None
        if self.runs and len(self.confirmed) > UNDER_WAY:
            del self.confirmed[next(iter(self.confirmed))]

    def recorded_results(self) -> list[str]:
        """The commands whose whole results are on record."""
        return [exec_id for exec_id, state in self.execs.items() if state.recorded is not None and state.recorded.is_stored]

    def ends_with(self, exec_id: str) -> bool:
        """Whether it is ending, with a result of this command that may yet be left behind."""
        state = self.execs.get(exec_id)
        here = (state is not None and state.started) or (self.link is not None and self.link.has(exec_id))
        return here and self.state < State.GONE and not self.forced

    @property
    def idle(self) -> bool:
        """Whether nothing runs in it, no result waits to be fetched and no request uses it."""
        return self.calls == 0 and self.link is not None and self.request.command is None and self.link.active_execs() == 0

    @property
    def releasable(self) -> bool:
        """Whether it may end so that another can start."""
        return self.record.let_go and self.request.releasable and not self.record.detached and self.runs and self.idle

    def admit(self) -> None:
        """It has its slot."""
        self._go(Event.ADMITTED)

    def start(self) -> None:
        """Commands can be sent to it from now on."""
        took = time.monotonic() - self.accepted_at
        self._go(Event.STARTED, startup_seconds=took if self.began_at is None else self.record.startup_seconds)
        if self.record.started_at is None:
            self.record = self.record.but(started_at=self.began_at or time.time())
        self.ready.set()

    def expire_in(self, seconds: float | None) -> None:
        """Its lifetime is over in so many seconds; what is on record of that stays."""
        if seconds is not None:
            self.expires_at = time.monotonic() + seconds
            if self.record.expires_at is None:
                self.record = self.record.but(expires_at=time.time() + seconds)

    def expire_as_on_record(self) -> None:
        """Go on with the lifetime that is on record."""
        if self.record.expires_at is not None:
            self.expires_at = time.monotonic() + self.record.expires_at - time.time()

    def begin_anew(self, place_id: str, image: ResolvedImage, secrets: dict[str, str]) -> Flag:
        """Leave its place and its process 1 for others; commands of before are of the past.

        Returns:
            To be set once what those left is kept.
        """
        self._leave(place_id, image=image.reference, image_id=image.lasting_id, image_note=image.note, lies_over=None)
        self.reset_at, self.began_at = time.monotonic(), None
        self.image, self.secrets = image, secrets
        left = Flag()
        for state in self.execs.values():
            state.left = state.left or left
        return left

    def move(self, place_id: str, lies_over: str, moving: str) -> None:
        """Leave its place and its process 1, where nothing is under way, and go on in another, over what it leaves."""
        began_at = self.record.started_at or self.began_at
        self._leave(place_id, lies_over=lies_over, moving=moving)
        self.began_at = began_at

    def _leave(self, place_id: str, **changes: Any) -> None:
        self._go(Event.RESET)
        self.places_before[self.place_id] = None
        if len(self.places_before) > MOST_PLACES_BEFORE:
            del self.places_before[next(iter(self.places_before))]
        self.record = self.record.but(place_id=place_id, begun=False, started_at=None, **changes)
        self.link, self.ready = None, Flag()

    def ask_to_end(self, reason: str, grace_seconds: float = 0.0) -> None:
        """End it, whatever it does now; the first reason holds, and a repeat can only shorten the grace."""
        assert self.lifecycle is not None
        if self.state is State.STOPPING and self.ready.is_set() and grace_seconds < self.grace_seconds:
            self.grace_seconds = grace_seconds
            self.lifecycle.stop(self)
        elif self.state < State.STOPPING and not (self.link is not None and self.link.ended() is not None):
            before = self.state
            self.asked, self.grace_seconds = reason, grace_seconds
            self._go(Event.ASKED, status_reason=reason)
            self.lifecycle.end(self, before)

    def settle(self, ending: Ending) -> None:
        """Its end is known: wake everybody who waits for it to run, or for its end."""
        self.ending = ending
        # From here on calls raise the error of the ending, so nobody may still be told that it runs.
        self._go(Event.ENDED)
        self.settled.set()
        self.ready.set()

    def conclude(self) -> SandboxRecord:
        """What goes on record of its end, and nothing after it."""
        ending = self.ending
        assert ending is not None
        self._note(
            ending.status,
            status_reason=ending.reason,
            message=ending.message,
            returncode=ending.returncode,
            is_infrastructure=ending.is_infrastructure,
            ended_at=time.time(),
            ports=dict.fromkeys(self.record.ports),
            body=None,
        )
        return self.record

    def remove(self) -> None:
        """Nothing of it is left but its record."""
        self._go(Event.REMOVED)
        self.gone.set()

    def tell_running(self) -> None:
        """Call who waits for it to run; it does, or has ended."""
        for begin in self.on_run:
            begin()
        self.on_run.clear()

    def error(self, *, started: bool | None = None) -> SandboxError:
        """The error that calls raise now that it is ending."""
        ending = self.ending or terminated(self.asked or "stopped")
        return error_of(self.sandbox_id, ending, started=started)

    def spawn(self, task: asyncio.Task[Any]) -> None:
        """Keep a helper task alive until it is done."""
        self.helpers.add(task)
        task.add_done_callback(self.helpers.discard)

    def _go(self, what: Event, **changes: Any) -> None:
        self.state = after(self.state, what)
        self.runs = self.state is State.RUNNING
        if self.state < State.GONE and (status := status_of(self.state, self.record.status)) is not self.record.status:
            self._note(status, **changes)

    def _note(self, status: SandboxStatus, **changes: Any) -> None:
        self.record = self.record.but(status=status, status_updated_at=time.time(), **changes)


def ended_sandbox(record: SandboxRecord) -> LiveSandbox:
    """One that had ended before this server began, for what is left of it."""
    request = CreateSandbox.model_construct(sandbox_id=record.sandbox_id)
    sandbox = LiveSandbox(record=record, request=request, holder="detached", state=State.GONE)
    for event in (sandbox.ready, sandbox.settled, sandbox.gone):
        event.set()
    return sandbox


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
        image_id=record.image_id,
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
