"""The life of a sandbox as pure rules: legal transitions, why it ended, and which error an ended one gives.

::

    pending ──► running ──► terminating ──► completed | failed | terminated
       └──────────┴─────────────┴──────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxError, SandboxFailedError, SandboxNotRunningError, SandboxTerminatedError
from aviato.options import SandboxStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDS = frozenset({SandboxStatus.COMPLETED, SandboxStatus.FAILED, SandboxStatus.TERMINATED})

TRANSITIONS: Mapping[SandboxStatus, frozenset[SandboxStatus]] = {
    SandboxStatus.PENDING: frozenset({SandboxStatus.RUNNING, SandboxStatus.TERMINATING}) | _ENDS,
    SandboxStatus.RUNNING: frozenset({SandboxStatus.TERMINATING}) | _ENDS,
    SandboxStatus.TERMINATING: _ENDS,
    SandboxStatus.COMPLETED: frozenset(),
    SandboxStatus.FAILED: frozenset(),
    SandboxStatus.TERMINATED: frozenset(),
}

INFRASTRUCTURE_REASONS = frozenset({"lease_expired", "shutdown", "orphaned", "released", "start_failed", "lost"})
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


def check_transition(old: SandboxStatus, new: SandboxStatus) -> None:
    """Hold the table of legal transitions.

    Raises:
        ValueError: a sandbox cannot go from `old` to `new`.
    """
    if new not in TRANSITIONS.get(old, frozenset()):
        raise ValueError(f"a sandbox cannot go from {str(old)!r} to {str(new)!r}")


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
    if said == "oom":
        return Ending(status=SandboxStatus.FAILED, reason="oom", returncode=returncode, message=message)
    if said in _TERMINATING_REASONS:
        return terminated(said, message, returncode)
    return lost(message or "its process 1 is gone without a word")


def error_of(sandbox_id: str, ending: Ending, *, started: bool | None = None) -> SandboxError:
    """The error that calls on an ended sandbox raise (the table in section 2 of the public contract)."""
    why = ending.reason if ending.message is None else f"{ending.reason}: {ending.message}"
    text = f"sandbox {sandbox_id} is {ending.status} ({why})"
    if ending.status is SandboxStatus.FAILED:
        cls: type[SandboxError] = SandboxFailedError
    elif ending.status is SandboxStatus.COMPLETED or ending.reason == "stopped":
        cls = SandboxNotRunningError
    else:
        cls = SandboxTerminatedError
    return cls(text, sandbox_id=sandbox_id, started=started, reason=ending.reason, is_infrastructure=ending.is_infrastructure)
