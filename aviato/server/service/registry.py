"""Which sandboxes live, and what to say of those that do not."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxNotFoundError, SandboxUnavailableError
from aviato.server.states import Ending, State, error_of, error_of_reset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.exceptions import AviatoError, SandboxError
    from aviato.server.callers import Caller
    from aviato.server.link.ended import SandboxGone
    from aviato.server.link.link import Process1Link
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.store import SandboxRecord, Store

log = logging.getLogger(__name__)

SOON_SECONDS = 1.0


class Registry:
    """The living sandboxes, by id, over the store's records of all."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.live: dict[str, LiveSandbox] = {}
        self.let_go: dict[str, LiveSandbox] = {}
        self.unable: AviatoError | None = None
        """Why this server cannot reach what runs, if it cannot."""
        self._unsaved: dict[str, SandboxRecord] = {}
        self._to_forget: set[str] = set()
        self._save_timer: asyncio.TimerHandle | None = None

    def save(self, record: SandboxRecord) -> bool:
        """Put a change on record. A store that cannot be written now holds up no sandbox: the change is tried again.

        Returns:
            Whether it is there.
        """
        self._unsaved[record.sandbox_id] = record
        return self._write(record.sandbox_id, record)

    def forget(self, sandbox_id: str) -> None:
        """Have nothing on record of a sandbox any more: another server has it."""
        self._unsaved.pop(sandbox_id, None)
        self._to_forget.add(sandbox_id)
        self._forget_again()

    def is_saved(self, sandbox_id: str) -> bool:
        """Whether all that is known of a sandbox is on record."""
        return sandbox_id not in self._unsaved

    def save_soon(self, record: SandboxRecord) -> None:
        """Put a change on record within a moment, if no later one has come by then."""
        self._unsaved[record.sandbox_id] = record
        if self._save_timer is None:
            self._save_timer = asyncio.get_running_loop().call_later(SOON_SECONDS, self.save_again)

    def save_together(self, records: Sequence[SandboxRecord]) -> None:
        """Put last changes of several sandboxes on record, in one commit; as with `save`, it is tried again."""
        for record in records:
            self._unsaved[record.sandbox_id] = record
        try:
            self.store.save_sandboxes(records)
        except sqlite3.Error as error:
            log.error("the ends of %d sandboxes cannot be put on record now: %s", len(records), error)
            return
        for record in records:
            del self._unsaved[record.sandbox_id]

    def save_again(self) -> None:
        """Put on record what is not there yet."""
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        self._forget_again()
        for sandbox_id, record in list(self._unsaved.items()):
            if not self._write(sandbox_id, record):
                return

    def _forget_again(self) -> None:
        for sandbox_id in list(self._to_forget):
            try:
                self.store.forget_sandbox(sandbox_id)
            except sqlite3.Error as error:
                log.error("sandbox %s, which another server has, stays on record for now: %s", sandbox_id, error)
                return
            self._to_forget.discard(sandbox_id)

    def _write(self, sandbox_id: str, record: SandboxRecord) -> bool:
        try:
            self.store.save_sandbox(record)
        except sqlite3.Error as error:
            log.error("sandbox %s cannot be put on record now: %s", sandbox_id, error)
            return False
        del self._unsaved[sandbox_id]
        return True

    def find(self, sandbox_id: str, *, exec_id: str | None = None) -> LiveSandbox:
        """A sandbox that has not ended and was not told to.

        Args:
            sandbox_id: which.
            exec_id: the command that is asked for, so that the error can say whether it had started.

        Raises:
            SandboxNotFoundError: it is not on record.
            SandboxUnavailableError: it has not ended, and this server cannot reach it.
            SandboxError: the error of its ending.
        """
        sandbox = self.live.get(sandbox_id)
        if sandbox is None:
            raise self.error_of_record(self.record(sandbox_id), exec_id=exec_id)
        if sandbox.state >= State.STOPPING:
            state = sandbox.execs.get(exec_id) if exec_id is not None else None
            raise sandbox.error(started=None if exec_id is None else state is not None and state.started)
        return sandbox

    def record(self, sandbox_id: str) -> SandboxRecord:
        """What is on record of a sandbox.

        Raises:
            SandboxNotFoundError: nothing is.
        """
        record = self.find_record(sandbox_id)
        if record is None:
            raise _unknown(sandbox_id)
        return record

    def ended(self, sandbox_id: str) -> SandboxRecord:
        """What is on record of a sandbox that does not live here: its end.

        Raises:
            SandboxNotFoundError: nothing is.
            SandboxUnavailableError: it has not ended, and this server cannot reach it.
        """
        record = self.record(sandbox_id)
        if record.ended_at is None:
            raise self._out_of_reach(sandbox_id)
        return record

    def sees(self, caller: Caller, sandbox_id: str) -> bool:
        """Whether a sandbox is on record, and there for this caller."""
        record = self.find_record(sandbox_id)
        return record is not None and caller.sees(record.owner)

    def check(self, caller: Caller, sandbox_id: str) -> None:
        """See whether a sandbox is there for this caller.

        Raises:
            SandboxNotFoundError: it is not on record, or another tenant's: nobody can tell which.
        """
        if caller.tenant is not None and not self.sees(caller, sandbox_id):
            raise _unknown(sandbox_id)

    def find_record(self, sandbox_id: str) -> SandboxRecord | None:
        """What is on record of a sandbox, or None."""
        sandbox = self.live.get(sandbox_id)
        return sandbox.record if sandbox is not None else self._unsaved.get(sandbox_id) or self.store.sandbox(sandbox_id)

    def error_of_record(self, record: SandboxRecord, *, exec_id: str | None = None) -> SandboxError:
        """The error of an ending that is on record, or of a sandbox that this server cannot reach."""
        started = None
        if exec_id is not None:
            found = self.store.exec(exec_id)
            # Of another sandbox's command nothing is told.
            started = found is not None and found.sandbox_id == record.sandbox_id and found.started
        if record.ended_at is None:
            # What is not on record may have started all the same: its server can have died before it had written that.
            return self._out_of_reach(record.sandbox_id, started=started or None)
        ending = Ending(
            status=record.status,
            reason=record.status_reason or "lost",
            returncode=record.returncode,
            message=record.message,
            is_infrastructure=record.is_infrastructure,
        )
        return error_of(record.sandbox_id, ending, started=started)

    def _out_of_reach(self, sandbox_id: str, *, started: bool | None = None) -> SandboxUnavailableError:
        why = "" if self.unable is None else f": {self.unable}"
        message = f"sandbox {sandbox_id} has not ended, but this server cannot reach it{why}; a server that can runs on in it"
        return SandboxUnavailableError(message, sandbox_id=sandbox_id, started=started, reason="backend")


def _unknown(sandbox_id: str) -> SandboxNotFoundError:
    return SandboxNotFoundError(f"sandbox {sandbox_id!r} is not known to this server", sandbox_id=sandbox_id)


async def running(sandbox: LiveSandbox) -> Process1Link:
    """Its link, once it runs.

    Raises:
        SandboxError: it ended first.
    """
    while not sandbox.ready.is_set():
        await sandbox.ready.wait()  # And again, where it was reset just then.
    if not sandbox.runs or sandbox.link is None:
        raise sandbox.error(started=False)
    return sandbox.link


async def error_of_gone(sandbox: LiveSandbox, gone: SandboxGone, *, started: bool | None = None) -> SandboxError:
    """The error of the ending of a sandbox that went away under a request."""
    if gone.ended.reason == "reset":
        return error_of_reset(sandbox.sandbox_id, started=started)
    if gone.ended.reason in ("cut", "taken"):
        message = f"the connection to sandbox {sandbox.sandbox_id} was lost ({gone}); it is made anew"
        return SandboxUnavailableError(message, reason="server_stopping", started=started)
    task = sandbox.task
    if sandbox.state < State.ENDED and (task is None or task.done()):
        return SandboxUnavailableError(f"the server let go of the sandbox ({gone})", reason="server_stopping", started=started)
    await sandbox.settled.wait()
    return sandbox.error(started=started)
