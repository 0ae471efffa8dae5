"""What the end of a sandbox, or of an attempt to have one, means for whoever asks it for something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.exceptions import (
    AviatoAuthenticationError,
    AviatoError,
    AviatoValidationError,
    SandboxFailedError,
    SandboxImageError,
    SandboxNotRunningError,
    SandboxTerminatedError,
)
from aviato.options import SandboxStatus

if TYPE_CHECKING:
    from aviato.wire.sandboxes import SandboxInfo

IMAGE_PULL_FAILED = "image_pull_failed"
"""A `status_reason`."""
NO_SERVER = frozenset({"configuration", "embedded_start", "state_dir", "tls"})
"""Reasons for which no request was ever sent."""


def ending_error(info: SandboxInfo) -> AviatoError | None:
    """What calls on an ended sandbox raise; None while it lives."""
    status, reason = info.status, info.status_reason
    if not status.is_terminal:
        return None
    fields: dict[str, Any] = {"sandbox_id": info.sandbox_id, "is_infrastructure": info.is_infrastructure}
    detail = f": {info.message}" if info.message else ""
    subject = f"sandbox {info.sandbox_id}"
    if reason == IMAGE_PULL_FAILED:
        return SandboxImageError(f"{subject} has no image{detail}", reason=reason, **fields)
    if status is SandboxStatus.FAILED:
        code = "" if info.returncode is None else f" with returncode {info.returncode}"
        return SandboxFailedError(f"{subject} failed{code} ({reason or 'failed'}){detail}", reason=reason, **fields)
    if status is SandboxStatus.TERMINATED and reason != "stopped":
        return SandboxTerminatedError(f"{subject} was ended by the server ({reason}){detail}", reason=reason, **fields)
    how = "was stopped" if status is SandboxStatus.TERMINATED else "has ended: its main command exited with 0"
    return SandboxNotRunningError(f"{subject} {how}", reason=reason, **fields)


def stopped_error(sandbox_id: str) -> AviatoError:
    """What calls on a sandbox raise that this side has stopped."""
    return SandboxNotRunningError(f"sandbox {sandbox_id} was stopped", sandbox_id=sandbox_id, reason="stopped", started=False)


def nothing_made(error: AviatoError) -> bool:
    """Whether a create that failed so reached no server, or was refused by it: there is nothing to end.

    After any other failure there may be a sandbox, and an answer that was garbled on its way is the only one there was.
    """
    refused = isinstance(error, (AviatoValidationError, AviatoAuthenticationError))
    return refused or (is_final(error) and error.reason in NO_SERVER)


def is_final(error: BaseException | None) -> bool:
    """Whether it would fail so again."""
    return isinstance(error, AviatoError) and not error.retryable
