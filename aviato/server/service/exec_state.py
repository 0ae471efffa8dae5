"""What the server knows of one command while its sandbox lives."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aviato.server.store import ExecRecord

if TYPE_CHECKING:
    import asyncio

    from aviato.server.service.feed import ExecFeed
    from aviato.wire.execution import ExecExit, ExecRequest


@dataclass(eq=False, slots=True, kw_only=True)
class ExecState:
    """One command.

    Attributes:
        request: None for one that an earlier server accepted.
        started: it has begun to run.
        exit: its result.
        cancelled: given up by its caller; if it has not begun to run, it never will.
        feed: who reads it now.
        abandon: the timer that kills it when nobody comes back.
    """

    exec_id: str
    sandbox_id: str
    request: ExecRequest | None = None
    created_at: float = field(default_factory=time.time)
    started: bool = False
    exit: ExecExit | None = None
    cancelled: bool = False
    feed: ExecFeed | None = None
    abandon: asyncio.TimerHandle | None = None

    def record(self) -> ExecRecord:
        """What the store keeps of it."""
        result = self.exit
        return ExecRecord(
            exec_id=self.exec_id,
            sandbox_id=self.sandbox_id,
            created_at=self.created_at,
            started=self.started,
            ended_at=time.time() if result is not None else None,
            returncode=None if result is None else result.returncode,
            timed_out=result is not None and result.timed_out,
            duration_seconds=None if result is None else result.duration_seconds,
        )

    def keep(self) -> None:
        """Somebody is there again."""
        if self.abandon is not None:
            self.abandon.cancel()
            self.abandon = None
