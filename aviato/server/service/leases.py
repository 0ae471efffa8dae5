"""Leases: while one is held its sandboxes live. Over a Unix socket the lease is the client's process, over TCP a heartbeat."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from aviato.server.callers import OPERATOR
from aviato.server.peers import Asker, boot_id, notice_loss, open_process, start_ticks
from aviato.server.states import State
from aviato.server.store import LeaseRecord
from aviato.wire.errors import RequestConflictError
from aviato.wire.sandboxes import LeaseInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.callers import Caller
    from aviato.server.peers import Peer
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.store import Store

log = logging.getLogger(__name__)

PROCESS_GRACE_SECONDS = 5.0
"""How long the sandboxes of a dead process live on."""
CONNECTED_PATIENCE = 3.0
"""A process whose connection lives may be silent for so many periods: a call that holds the interpreter, or a debugger."""
EXPIRED_STOP_GRACE_SECONDS = 1.0
CLOSED_STOP_GRACE_SECONDS = 5.0


@dataclass(eq=False, slots=True)
class Lease:
    """One lease. `remaining_seconds` counts down for a heartbeat, and for a process that was not found again yet."""

    lease_id: str
    remaining_seconds: float
    owner: str | None = None
    pid: int | None = None
    pidfd: int | None = None
    sandboxes: dict[str, LiveSandbox] = field(default_factory=dict)
    ending: asyncio.TimerHandle | None = None
    connection: asyncio.BaseTransport | None = None
    """Over which the last heartbeat came."""
    bare_seconds: float | None = 0.0
    """How long a process has held it and no sandbox was ever under it: it may be the echo of one that was given back."""

    @property
    def patience(self) -> float:
        """How many times as long as usual its holder may be silent: one who keeps the connection lives, and stands still."""
        return CONNECTED_PATIENCE if self.connection is not None and not self.connection.is_closing() else 1.0

    @property
    def kind(self) -> Literal["process", "heartbeat"]:
        """What keeps it."""
        return "heartbeat" if self.pid is None else "process"

    @property
    def holder(self) -> str:
        """Who holds it, for people."""
        return f"lease {self.lease_id}" if self.pid is None else f"pid {self.pid}"


class Leases:
    """The leases that are held.

    Args:
        store: where they survive a restart.
        period_seconds: without a heartbeat, after which a lease ends.
    """

    def __init__(self, store: Store, period_seconds: float) -> None:
        self._store = store
        self.period_seconds = period_seconds
        self.held: dict[str, Lease] = {}

    def renew(self, lease_id: str, peer: Callable[[], Peer | None], caller: Caller = OPERATOR) -> Lease:
        """Make a lease, or renew it; bound to the peer's process where there is one.

        Args:
            lease_id: made by the client.
            peer: tells the peer process; asked only when the lease is not bound to a living one yet.
            caller: who asks.

        Raises:
            RequestConflictError: it is another tenant's.
        """
        lease = self.held.get(lease_id)
        if lease is not None and not caller.sees(lease.owner):
            raise RequestConflictError(f"{lease_id} is in use")
        if lease is not None and lease.pidfd is not None and lease.ending is None:
            return lease
        process = peer()
        if lease is None:
            lease = self.held[lease_id] = Lease(lease_id, self.period_seconds, caller.tenant)
        lease.remaining_seconds = self.period_seconds
        if process is None and isinstance(peer, Asker) and peer.transport is not None:
            lease.connection = peer.transport
            notice_loss(peer.transport)
        if process is not None:
            self._bind(lease, process)
        try:
            self._save(lease)
        except sqlite3.Error:
            # What is not on record holds nothing: its client asks again.
            if not lease.sandboxes:
                self._unwatch(lease)
                del self.held[lease_id]
            raise
        return lease

    def info(self, lease: Lease) -> LeaseInfo:
        """A lease as clients see it."""
        count = len(lease.sandboxes)
        return LeaseInfo(lease_id=lease.lease_id, kind=lease.kind, period_seconds=self.period_seconds, sandboxes=count)

    def attach(self, lease: Lease, sandbox: LiveSandbox) -> None:
        """Put a sandbox under a lease."""
        lease.sandboxes[sandbox.sandbox_id] = sandbox
        lease.bare_seconds = None

    def forget(self, sandbox: LiveSandbox) -> None:
        """A sandbox has ended."""
        lease = self.held.get(sandbox.record.lease_id or "")
        if lease is not None:
            lease.sandboxes.pop(sandbox.sandbox_id, None)

    def close(self, lease_id: str, caller: Caller = OPERATOR) -> None:
        """The client gives its lease back: its sandboxes are told to stop. Unknown ones are fine, others' stay as they are."""
        lease = self.held.get(lease_id)
        if lease is not None and caller.sees(lease.owner):
            self._end(lease, "stopped", CLOSED_STOP_GRACE_SECONDS)

    def tick(self, elapsed_seconds: float) -> None:
        """Count down where no process is watched; `elapsed_seconds` of this server's own running time have passed."""
        for lease in list(self.held.values()):
            if lease.pidfd is not None and lease.bare_seconds is not None:
                lease.bare_seconds += elapsed_seconds
                if lease.bare_seconds > self.period_seconds:
                    self._end(lease, "lease_expired", 0.0)  # The next sandbox brings it along again.
            elif lease.pidfd is None and lease.ending is None:
                lease.remaining_seconds -= elapsed_seconds / lease.patience
                if lease.remaining_seconds <= 0:
                    log.info("lease %s expired", lease.lease_id)
                    self._end(lease, "lease_expired", EXPIRED_STOP_GRACE_SECONDS)

    def restore(self) -> None:
        """Take up the leases of an earlier server: each gets one full period, or its process again if that lives."""
        for record in self._store.leases():
            lease = self.held[record.lease_id] = Lease(record.lease_id, self.period_seconds, record.owner)
            if record.pid is not None and record.boot_id == boot_id():
                pidfd = open_process(record.pid)
                if pidfd is not None and start_ticks(record.pid) == record.start_ticks:
                    self._watch(lease, record.pid, pidfd)
                elif pidfd is not None:
                    os.close(pidfd)

    def shut(self) -> None:
        """Watch no more; the leases stay on record."""
        for lease in self.held.values():
            self._unwatch(lease)
            if lease.ending is not None:
                lease.ending.cancel()

    def _bind(self, lease: Lease, process: Peer) -> None:
        if lease.ending is not None:
            lease.ending.cancel()
            lease.ending = None
        self._unwatch(lease)
        if process.pidfd is None:
            lease.pid = process.pid
            self._process_died(lease)
        else:
            self._watch(lease, process.pid, process.pidfd)

    def _watch(self, lease: Lease, pid: int, pidfd: int) -> None:
        lease.pid, lease.pidfd = pid, pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._process_died, lease)

    def _unwatch(self, lease: Lease) -> None:
        if lease.pidfd is not None:
            asyncio.get_running_loop().remove_reader(lease.pidfd)
            os.close(lease.pidfd)
            lease.pidfd = None

    def _process_died(self, lease: Lease) -> None:
        self._unwatch(lease)
        for sandbox in list(lease.sandboxes.values()):
            if sandbox.state is State.QUEUED and not sandbox.place.done():
                # Nothing of it is there yet, and nobody waits for it any more: others need not wait behind it.
                sandbox.ask_to_end("lease_expired")
        grace = min(PROCESS_GRACE_SECONDS, self.period_seconds)
        loop = asyncio.get_running_loop()
        lease.ending = loop.call_later(grace, self._end, lease, "lease_expired", EXPIRED_STOP_GRACE_SECONDS)

    def _end(self, lease: Lease, reason: str, grace_seconds: float) -> None:
        self._unwatch(lease)
        if lease.ending is not None:
            lease.ending.cancel()
        if self.held.get(lease.lease_id) is lease:
            del self.held[lease.lease_id]
            try:
                self._store.remove_lease(lease.lease_id)
            except sqlite3.Error as error:
                # Its sandboxes end all the same; a later server gives it one more period and then forgets it.
                log.error("lease %s cannot be taken off the record now: %s", lease.lease_id, error)
        for sandbox in list(lease.sandboxes.values()):
            sandbox.ask_to_end(reason, grace_seconds)

    def _save(self, lease: Lease) -> None:
        ticks = None if lease.pid is None else start_ticks(lease.pid)
        self._store.save_lease(
            LeaseRecord(
                lease_id=lease.lease_id,
                kind=lease.kind,
                pid=lease.pid,
                start_ticks=ticks,
                boot_id=None if ticks is None else boot_id(),
                owner=lease.owner,
            )
        )
