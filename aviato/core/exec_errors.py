"""What goes wrong with reading a command that was begun elsewhere, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.exceptions import (
    AviatoValidationError,
    OperationCancelledError,
    SandboxExecutionError,
    SandboxUnavailableError,
)
from aviato.wire.frames import StreamId

if TYPE_CHECKING:
    from aviato.wire.execution import Gap


def gone(sandbox_id: str, exec_id: str, stream: int, gap: Gap) -> SandboxExecutionError:
    """The bytes asked for are not there any more."""
    name = StreamId(stream).name.lower()
    if gap.is_infrastructure:
        why = "the server could not keep them"
    else:
        why = "an earlier reader had them, or the command has written more since than is kept"
    return SandboxExecutionError(
        f"bytes {gap.from_offset} to {gap.to_offset} of the {name} of command {exec_id} are gone: {why}; "
        f"attach({exec_id!r}, {name}_offset={gap.to_offset}) reads what is there",
        sandbox_id=sandbox_id,
        started=True,
        reason="output_gap",
        is_infrastructure=gap.is_infrastructure,
    )


def lost(sandbox_id: str, exec_id: str, stream: int, gap: Gap) -> SandboxUnavailableError:
    """Bytes of a command that waits for its reader are not there: the command cannot have brought that about."""
    name = StreamId(stream).name.lower()
    return SandboxUnavailableError(
        f"bytes {gap.from_offset} to {gap.to_offset} of the {name} of command {exec_id} were lost on the way",
        sandbox_id=sandbox_id,
        reason="output_gap",
        retryable=False,
    )


def unknown(sandbox_id: str, exec_id: str) -> SandboxExecutionError:
    """There is no such command."""
    return SandboxExecutionError(
        f"sandbox {sandbox_id} has no command {exec_id!r} to attach to: there never was one, or its result was fetched by the "
        "process that began it; the results of commands begun with detach=True stay",
        sandbox_id=sandbox_id,
        reason="exec_not_found",
    )


def beyond_end(exec_id: str, stream: int, offset: int, total: int) -> AviatoValidationError:
    """The command ended before it came to the offset asked for."""
    name = f"{StreamId(stream).name.lower()}_offset"
    message = f"{name} is {offset}, but command {exec_id} wrote only {total} bytes there"
    return AviatoValidationError(message, field_violations={name: "beyond the end"})


def cancelled(exec_id: str) -> OperationCancelledError:
    """What readers of a cancelled command's streams get at their end."""
    return OperationCancelledError(f"command {exec_id} was cancelled")
