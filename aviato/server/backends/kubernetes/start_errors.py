"""The error of a sandbox whose pod does not come to run."""

from __future__ import annotations

from aviato.exceptions import SandboxUnavailableError


def did_not_start(sandbox_id: str, why: str, reason: str) -> SandboxUnavailableError:
    """The error for callers.

    Args:
        sandbox_id: of the place.
        why: for people.
        reason: in one word.
    """
    message = f"the pod of {sandbox_id} ended while it started: {why}"
    return SandboxUnavailableError(message, sandbox_id=sandbox_id, reason=reason if reason != "lost" else "start_failed")
