"""What a `Sandbox` object, its commands and its session share: who it is, how it is made, and its handle on the loop thread.

The `Sandbox` object itself is not part of it: when the caller lets that go, a command that runs on keeps only this.
The bridge, and with it asyncio, is imported at first use: it is two thirds of what importing a `Sandbox` would cost.
"""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aviato.exceptions import AviatoError
from aviato.policy.metrics import ExecStats

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine

    from aviato.bridge.operation import OperationRef, Startable
    from aviato.calls.sandbox_config import Connection, SandboxConfig
    from aviato.core.beginning import Beginning
    from aviato.core.client import Client
    from aviato.core.concurrency_slots import ConcurrencySlots
    from aviato.core.lease import Lease
    from aviato.core.lifecycle import SandboxHandle
    from aviato.core.snapshots import Fork
    from aviato.policy.metrics import Metrics
    from aviato.wire.images import ImagePull
    from aviato.wire.sandboxes import SandboxInfo

T = TypeVar("T")


class SandboxState:
    """One sandbox in this process.

    Attributes:
        accepted: the server is known to have it; a copy need not create it.
        used: some operation was asked for, which reports a failed start.
        stopped: `stop()` was called here, so what ends from now on was cancelled.
        slots: those of its session, where that has a limit.
        fork: what it is a child of.
        sibling: makes another one of its session.
        on_ended: told that it has ended, with its id; more than once perhaps.
    """

    def __init__(
        self, sandbox_id: str, config: SandboxConfig, *, metrics: Metrics | None = None, accepted: bool = False
    ) -> None:
        self.sandbox_id = sandbox_id
        self.config = config
        self.metrics = metrics
        self.slots: ConcurrencySlots | None = None
        self.fork: Fork | None = None
        self.sibling: Callable[[SandboxConfig, Fork], SandboxState] | None = None
        self.on_ended: Callable[[str], None] | None = None
        self.stats = ExecStats()
        self.accepted = accepted or config.create is None
        self.used = False
        self.stopped = False
        self.info: SandboxInfo | None = None
        self._pid = os.getpid()
        self._gone = False
        self._objects: list[None] = []  # Its methods are atomic, and it is small.
        self._handle: SandboxHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __del__(self) -> None:
        metrics = getattr(self, "metrics", None)
        if metrics is not None:
            metrics.sandbox_let_go(self.sandbox_id)

    def handle(self) -> SandboxHandle:
        """The handle on the loop thread, where this must be called; a forked child makes one of its own."""
        import asyncio

        loop = asyncio.get_running_loop()
        handle = self._handle
        if handle is None or self._loop is not loop:
            before, handle = handle, self._make()
            if before is not None:
                handle.accepted = handle.accepted or before.accepted
                handle.info, handle.stopped = before.info, before.stopped
                # Counted once.
                handle.on_running, handle.on_image = before.on_running, before.on_image
            self._handle, self._loop = handle, loop
            if self._gone:
                handle.releasable = True
        return handle

    def _make(self) -> SandboxHandle:
        client, lease = connect(self.config.connection, self.metrics)
        from aviato.core.lifecycle import SandboxHandle

        create = None if self.accepted else self.config.create
        metrics = self.metrics
        on_running: Callable[[float, bool], None] | None = None
        on_image: Callable[[ImagePull | None], None] | None = None
        if metrics is not None:
            on_running = partial(metrics.startup, pooled="pool_id" in (self.config.create or {}))
            on_image = metrics.image_used
        beginning: Beginning | None = self.fork
        if create is not None and self.config.recipe is not None and beginning is None:
            from aviato.calls.recipe import Building

            beginning = Building(self.config.recipe, client, lease, create, metrics)
        return SandboxHandle(
            self.sandbox_id,
            client,
            lease,
            create,
            on_running=on_running,
            on_image=on_image,
            on_ended=self.on_ended,
            slots=self.slots,
            beginning=beginning,
        )

    async def start_in_background(self) -> None:
        """Start it without a waiter; a failure is for whoever uses it, and is logged if nobody does."""
        try:
            await self.do(lambda handle: handle.start())
        except AviatoError:
            if not self.used and not self.stopped:
                raise

    async def do(self, work: Callable[[SandboxHandle], Awaitable[T]]) -> T:
        """Run an operation on the loop thread; the sandbox is not let go before it has ended."""
        handle = self.handle()
        handle.enter()
        try:
            return await work(handle)
        except AviatoError as error:
            handle.has_failed(error)
            raise
        finally:
            handle.leave()

    def begin(self, work: Callable[[SandboxHandle], Awaitable[T]], name: str, *, shared: bool = False) -> OperationRef[T]:
        """Start an operation on the loop thread, as `do`; whoever waits no longer is told what the sandbox waits for."""
        return begin(self.do(work), name, shared=shared, state=self)

    def stop(self, grace_seconds: float, *, missing_ok: bool) -> OperationRef[None]:
        """End it; from any thread."""
        self.stopped = True
        return begin(self._stop(grace_seconds, missing_ok), f"stop {self.sandbox_id}", shared=True)

    async def _stop(self, grace_seconds: float, missing_ok: bool) -> None:
        await self.do(lambda handle: handle.stop(grace_seconds, missing_ok=missing_ok))
        if self.on_ended is not None:  # Also of one that never began, of which nothing is seen.
            self.on_ended(self.sandbox_id)

    @property
    def ends_by_itself(self) -> bool:
        """Whether the server is known to end it: nobody need ask. On the loop thread only."""
        return self._handle is not None and self._handle.over

    @property
    def last_seen(self) -> SandboxInfo | None:
        """What the server said last."""
        return self._handle.info if self._handle is not None and self._handle.info is not None else self.info

    @property
    def status_reason(self) -> str | None:
        """Why it ended, or what it waits for, as far as was said."""
        from aviato.calls.pending import status_reason

        position = None if self._handle is None else self._handle.queue_position
        return status_reason(self.last_seen, position, self.waits_for)

    @property
    def may_have_run(self) -> bool:
        """Whether it has begun to run, or may have, as far as is known here."""
        return self.accepted if self._handle is None else self._handle.may_have_run

    async def why_pending(self) -> str | None:
        """What it waits for, asked of the server now; None: nothing is said of that. On the loop thread."""
        from aviato.calls.pending import why_pending

        return None if self._handle is None else await why_pending(self._handle)

    @property
    def on_its_way(self) -> bool:
        """Whether its session has accepted it, and the server may not have yet."""
        return self._handle is not None and self._handle.on_its_way

    @property
    def waits_for(self) -> str | None:
        """What it waits for before the server can be asked for it, such as `building`."""
        return None if self._handle is None else self._handle.waits_for

    @property
    def is_of_this_process(self) -> bool:
        """Whether this process made the object, and not its parent before a fork."""
        return self._pid == os.getpid()

    @property
    def is_accepted(self) -> bool:
        """Whether the server is known to have it."""
        return self.accepted or (self._handle is not None and self._handle.accepted)

    @property
    def is_over(self) -> bool:
        """Whether it is known to have ended, or never began and never will."""
        info = self.last_seen
        return (info is not None and info.status.is_terminal) or (self.stopped and not self.is_accepted)

    def hold(self, sandbox: object) -> None:
        """Let go once this object is gone too: one the session made, or another of the same id in this process."""
        self._objects.append(None)
        _releasable[self.sandbox_id] = self
        weakref.finalize(sandbox, self._object_gone).atexit = False

    def keep(self) -> None:
        """A copy leaves this process, and nobody will know when that is gone."""
        self._objects.append(None)

    def _object_gone(self) -> None:
        """Called by the collector, in whichever thread."""
        self._objects.pop()
        if self._objects:
            return
        from aviato.bridge.loop import running_loop_thread

        thread = running_loop_thread()
        if self.is_of_this_process and thread is not None and thread.usable:
            try:
                # One round later: operations asked for before have taken their first step then, and are counted.
                thread.loop.call_soon_threadsafe(thread.loop.call_soon, self._let_go)
            except RuntimeError:
                pass

    def _let_go(self) -> None:
        self._gone = True
        import asyncio

        if self._handle is not None and self._loop is asyncio.get_running_loop():
            self._handle.let_go()


_releasable: weakref.WeakValueDictionary[str, SandboxState] = weakref.WeakValueDictionary()


def hold_too(sandbox_id: str, sandbox: object) -> None:
    """Another object of a sandbox: one that was made here to be let go is kept by it as well."""
    state = _releasable.get(sandbox_id)
    if state is not None:
        state.hold(sandbox)


def begin(work: Coroutine[Any, Any, T], name: str, *, shared: bool = False, state: Startable | None = None) -> OperationRef[T]:
    """Start an operation on the loop thread; the arguments are those of `OperationRef.start`."""
    from aviato.bridge.operation import OperationRef

    return OperationRef.start(work, name=name, shared=shared, state=state)


def connect(connection: Connection, metrics: Metrics | None = None) -> tuple[Client, Lease]:
    """A client for a server, and this process's lease there. On the loop thread only."""
    from aviato.transport import embedded, resolution

    if connection.base_url == resolution.EMBEDDED and not _started:
        # The server comes up on another core while this one loads the HTTP client.
        _started.append(True)
        embedded.start_early(embedded.socket_path())
    from aviato.bridge.loop import register_exit
    from aviato.core.lease import lease_of
    from aviato.policy.retry import RetryPolicy

    here, is_new = lease_of(connection.base_url, RetryPolicy())
    if is_new:
        register_exit(here.end)
    retry = RetryPolicy(metrics.retry) if metrics is not None else None
    client = here.client(connection.request_timeout_seconds, connection.reconnect_timeout_seconds, retry)
    return client, here


_started: list[bool] = []


async def call(connection: Connection, work: Callable[[Client, Lease], Awaitable[T]]) -> T:
    """Run a call that concerns no one sandbox, on the loop thread."""
    return await work(*connect(connection))
