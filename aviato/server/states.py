"""The life of a sandbox as pure rules: its states, what leads from one to the next, how it ended, and the error of that.

::

    QUEUED ──► STARTING ──► RUNNING ──► STOPPING ──► ENDED ──► GONE
       └───────────┴──◄─reset───┴───────────┘          ▲
       └───────────┴────────────┴───────────┴──────────┘
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aviato.exceptions import (
    SandboxError,
    SandboxExecutionError,
    SandboxFailedError,
    SandboxImageError,
    SandboxNotRunningError,
    SandboxTerminatedError,
    SandboxUnavailableError,
)
from aviato.options import SandboxStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aviato.exceptions import AviatoError


class State(enum.IntEnum):
    """Where a sandbox is in its life; it goes forward, but for a reset."""

    QUEUED = enum.auto()
    """It waits for its slot."""
    STARTING = enum.auto()
    """Its process 1 is being made, or found again after a restart of the server."""
    RUNNING = enum.auto()
    """Commands can be sent."""
    STOPPING = enum.auto()
    """It was told to end."""
    ENDED = enum.auto()
    """How it ended is known; its directory is being removed."""
    GONE = enum.auto()
    """Nothing of it is left but its record."""


class Event(enum.Enum):
    """What leads from one state to another."""

    ADMITTED = "has its slot"
    STARTED = "runs"
    RESET = "begins anew"
    ASKED = "is told to end"
    ENDED = "has ended"
    REMOVED = "is removed"


TABLE: Mapping[tuple[State, Event], State] = {
    (State.QUEUED, Event.ADMITTED): State.STARTING,
    (State.QUEUED, Event.ASKED): State.STOPPING,
    (State.QUEUED, Event.ENDED): State.ENDED,
    (State.STARTING, Event.STARTED): State.RUNNING,
    (State.STARTING, Event.ASKED): State.STOPPING,
    (State.STARTING, Event.ENDED): State.ENDED,
    (State.RUNNING, Event.RESET): State.STARTING,
    (State.RUNNING, Event.ASKED): State.STOPPING,
    (State.RUNNING, Event.ENDED): State.ENDED,
    (State.STOPPING, Event.ENDED): State.ENDED,
    (State.ENDED, Event.REMOVED): State.GONE,
}
"""Every transition that there is."""

TAKEN = "taken"
"""A reason: it goes on, with another server."""

_STATUS = {
    State.QUEUED: SandboxStatus.PENDING,
    State.STARTING: SandboxStatus.PENDING,
    State.RUNNING: SandboxStatus.RUNNING,
    State.STOPPING: SandboxStatus.TERMINATING,
    State.ENDED: SandboxStatus.TERMINATING,
}
LIVING = tuple(dict.fromkeys(_STATUS.values()))
"""The statuses of a sandbox that has not ended, in their order."""

IMAGE_PULL_FAILED = "image_pull_failed"
INFRASTRUCTURE_REASONS = frozenset(
    {"lease_expired", "shutdown", "orphaned", "released", "start_failed", IMAGE_PULL_FAILED, "lost"}
)
"""Endings that nothing inside a sandbox can bring about."""

_TERMINATING_REASONS = frozenset({"stopped", "lease_expired", "lifetime", "idle", "shutdown", "orphaned", "released"})


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a sandbox ended.

    Attributes:
        status: `COMPLETED`, `FAILED` or `TERMINATED`.
        reason: the stable code of `wire.sandboxes.StatusReason`.
        returncode: of the main command, if it has exited.
        message: for people.
        is_infrastructure: whether nothing inside could have caused it.
    """

    status: SandboxStatus
    reason: str
    returncode: int | None = None
    message: str | None = None
    is_infrastructure: bool = False


def after(state: State, event: Event) -> State:
    """The state that an event leads to.

    Raises:
        ValueError: it cannot happen in this state.
    """
    if (state, event) not in TABLE:
        raise ValueError(f"a sandbox that is {state.name} cannot be one that {event.value}")
    return TABLE[state, event]


def status_of(state: State, before: SandboxStatus) -> SandboxStatus:
    """What clients are told of a sandbox in a state. One that was found again keeps what they were told before."""
    return max(_STATUS[state], before, key=LIVING.index)


def terminated(reason: str, message: str | None = None, returncode: int | None = None) -> Ending:
    """The ending that the server, a limit or the caller's `stop()` brings about."""
    if reason not in _TERMINATING_REASONS:
        raise ValueError(f"reason is {reason!r}; a terminated sandbox has one of {sorted(_TERMINATING_REASONS)}")
    return Ending(
        status=SandboxStatus.TERMINATED,
        reason=reason,
        message=message,
        returncode=returncode,
        is_infrastructure=reason in INFRASTRUCTURE_REASONS,
    )


def start_failed(message: str, *, is_infrastructure: bool = True) -> Ending:
    """The ending of a sandbox that never ran."""
    return Ending(status=SandboxStatus.FAILED, reason="start_failed", message=message, is_infrastructure=is_infrastructure)


def not_started(error: AviatoError) -> Ending:
    """The ending of a sandbox that this error kept from running."""
    failed = start_failed(str(error), is_infrastructure=error.is_infrastructure)
    return replace(failed, reason=IMAGE_PULL_FAILED) if isinstance(error, SandboxImageError) else failed


def lost(message: str) -> Ending:
    """The ending of a sandbox whose process 1 is gone without a word."""
    return Ending(status=SandboxStatus.FAILED, reason="lost", message=message, is_infrastructure=True)


def ending_of(
    said: str, *, asked: str | None = None, left: str | None = None, returncode: int | None = None, message: str | None = None
) -> Ending:
    """What the end of a process 1 means.

    Args:
        said: process 1's own word: `exited`, `stopped`, `lifetime`, `idle`, `orphaned`, or `lost` where it had none.
        asked: the reason for which this server had asked it to end, if it had.
        left: the reason that a process 1 without a word left behind, if any.
        returncode: of the main command.
        message: process 1's, for people.
    """
    if asked is not None:
        return terminated(asked, message, returncode)
    if said == "lost" and left is not None:
        said = left
    if said == "exited":
        status = SandboxStatus.COMPLETED if returncode == 0 else SandboxStatus.FAILED
        text = message or f"its main command ended with {returncode}"
        return Ending(status=status, reason="exited", returncode=returncode, message=text)
    if said in ("oom", "disk"):
        return Ending(status=SandboxStatus.FAILED, reason=said, returncode=returncode, message=message)
    if said in _TERMINATING_REASONS:
        return terminated(said, message, returncode)
    return lost(message or "its process 1 is gone without a word")


def taken() -> Ending:
    """Another server has it: for this one it is over, and nothing of it."""
    return Ending(status=SandboxStatus.TERMINATED, reason=TAKEN, is_infrastructure=True, message="another server has it")


def error_of_reset(sandbox_id: str, *, started: bool | None = None) -> SandboxExecutionError:
    """The error of what was under way in a sandbox that was reset; what nobody said that it had begun may have."""
    message, began = f"sandbox {sandbox_id} was reset meanwhile", started or None
    return SandboxExecutionError(message, sandbox_id=sandbox_id, started=began, reason="reset", is_infrastructure=False)


def error_of(sandbox_id: str, ending: Ending, *, started: bool | None = None) -> SandboxError:
    """The error that calls on an ended sandbox raise (the table in section 2 of the public contract)."""
    if ending.reason == TAKEN:
        message = f"another server has sandbox {sandbox_id} now; ask again"
        return SandboxUnavailableError(message, sandbox_id=sandbox_id, started=started, reason="server_stopping")
    why = ending.reason if ending.message is None else f"{ending.reason}: {ending.message}"
    text = f"sandbox {sandbox_id} is {ending.status} ({why})"
    if ending.reason == IMAGE_PULL_FAILED:
        cls: type[SandboxError] = SandboxImageError
    elif ending.status is SandboxStatus.FAILED:
        cls = SandboxFailedError
    elif ending.status is SandboxStatus.COMPLETED or ending.reason == "stopped":
        cls = SandboxNotRunningError
    else:
        cls = SandboxTerminatedError
    return cls(text, sandbox_id=sandbox_id, started=started, reason=ending.reason, is_infrastructure=ending.is_infrastructure)
