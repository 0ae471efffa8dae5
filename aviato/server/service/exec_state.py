"""What the server knows of one command while its sandbox lives."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxUnavailableError
from aviato.server.link.link import ExecSpec
from aviato.server.store import ExecRecord

if TYPE_CHECKING:
    import asyncio

    from aviato.server.service.event import Event as Flag
    from aviato.server.service.output.feed import ExecFeed
    from aviato.server.service.output.recorded_output import RecordedOutput
    from aviato.wire.execution import ExecExit, ExecRequest


MOST_REPLACED = 256


@dataclass(eq=False, slots=True, kw_only=True)
class ExecState:
    """One command.

    Attributes:
        request: None for one that an earlier server accepted.
        started: it has begun to run.
        exit: its result.
        ended_at: when that was known, in seconds since the epoch.
        cancelled: given up by its caller; if it has not begun to run, it never will.
        feed: who reads it now, unless its output is recorded.
        reader_id: of the one that read it last.
        replaced: readers that another one took over from.
        recorded: its output on disk, for a detached command.
        recording: the task that keeps it.
        left: its sandbox has begun anew since; set once what it left is kept.
        outlives: it can be read though its sandbox has ended, or is about to.
        abandon: the timer that kills it when nobody comes back.
    """

    exec_id: str
    sandbox_id: str
    request: ExecRequest | None = None
    created_at: float = field(default_factory=time.time)
    started: bool = False
    exit: ExecExit | None = None
    ended_at: float | None = None
    cancelled: bool = False
    feed: ExecFeed | None = None
    reader_id: str = ""
    replaced: dict[str, None] = field(default_factory=dict)
    recorded: RecordedOutput | None = None
    recording: asyncio.Task[None] | None = None
    left: Flag | None = None
    outlives: bool = False
    abandon: asyncio.TimerHandle | None = None

    def record(self) -> ExecRecord:
        """What the store keeps of it."""
        result = self.exit
        return ExecRecord(
            exec_id=self.exec_id,
            sandbox_id=self.sandbox_id,
            created_at=self.created_at,
            started=self.started,
            ended_at=self.ended_at,
            returncode=None if result is None else result.returncode,
            timed_out=result is not None and result.timed_out,
            duration_seconds=None if result is None else result.duration_seconds,
        )

    def spec(self) -> ExecSpec | None:
        """The command as its process 1 runs it; None of one that runs there already."""
        request = self.request
        if request is None:
            return None
        return ExecSpec(
            exec_id=request.exec_id,
            command=request.command,
            environment=request.environment_variables,
            working_dir=request.working_dir,
            user=request.user,
            stdin=request.stdin or request.input is not None,
            input=request.input,
            timeout_seconds=request.timeout_seconds,
            terminal=None if request.terminal is None else (request.terminal.width, request.terminal.height),
            cases=None if request.cases is None else request.cases.model_dump(),
        )

    @property
    def command(self) -> list[str] | None:
        """Its argv, where it is known."""
        return (
            self.request.command if self.request is not None else self.recorded.command if self.recorded is not None else None
        )

    @property
    def is_guess(self) -> bool:
        """Whether somebody only asked for it, and nobody has said yet that there is such a command."""
        return self.request is None and self.recorded is None and not self.started and not self.cancelled

    def take_over(self, reader_id: str) -> None:
        """Another reader begins; the newest of them has the command.

        Raises:
            SandboxUnavailableError: it had the command before, and a newer one took over.
        """
        if reader_id == self.reader_id:
            return
        if reader_id in self.replaced:
            raise replaced_error(self.exec_id)
        self.replaced[self.reader_id] = None
        if len(self.replaced) > MOST_REPLACED:
            del self.replaced[next(iter(self.replaced))]
        self.reader_id = reader_id

    def take(self) -> None:
        """Its result has arrived."""
        if self.recorded is not None:
            self.recorded.taken.set()

    def keep(self) -> None:
        """Somebody is there again."""
        if self.abandon is not None:
            self.abandon.cancel()
            self.abandon = None


def replaced_error(exec_id: str) -> SandboxUnavailableError:
    """What the older of two readers of a command gets."""
    message = f"another reader has attached to command {exec_id} and reads it now; a command begun with detach=True has many"
    return SandboxUnavailableError(message, reason="replaced", retryable=False)
