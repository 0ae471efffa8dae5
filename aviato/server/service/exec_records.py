"""What is on record of commands: written together, a moment after it is known, so that no command waits for the store."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aviato.server.service.exec_state import ExecState
    from aviato.server.store import Store

log = logging.getLogger(__name__)

RECORD_DELAY_SECONDS = 0.2


class ExecRecords:
    """Puts commands on record.

    Args:
        store: where.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unsaved: dict[str, ExecState] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, state: ExecState) -> None:
        """Put a command on record within a moment, as it is then."""
        if state.exit is not None and state.ended_at is None:
            state.ended_at = time.time()
        self._unsaved[state.exec_id] = state
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RECORD_DELAY_SECONDS, self._flush_on_time)

    def flush(self) -> None:
        """Put what is not on record yet there.

        Raises:
            sqlite3.Error: the store takes nothing now; the next flush tries again.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unsaved:
            self._store.save_execs([state.record() for state in self._unsaved.values()])
            self._unsaved = {}

    def _flush_on_time(self) -> None:
        self._timer = None
        try:
            self.flush()
        except Exception as error:
            log.error("commands could not be put on record: %s", error)
