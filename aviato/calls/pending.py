"""What is said of a sandbox that does not run yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError
from aviato.options import SandboxStatus

if TYPE_CHECKING:
    from aviato.core.lifecycle import SandboxHandle
    from aviato.wire.sandboxes import SandboxInfo

ASK_SECONDS = 1.0
"""Of a server that does not answer in this time what it said last is told."""


def status_reason(info: SandboxInfo | None, position: int | None, waits_for: str | None) -> str | None:
    """The `status_reason` of a sandbox.

    Args:
        info: what the server said last.
        position: in its session's own queue, 1 is next.
        waits_for: what has to be there before the server can be asked for it.
    """
    if position is not None:
        return f"queued: place {position} in its session's queue"
    if info is not None and info.queue is not None:
        return f"queued: place {info.queue.position} in the server's queue"
    return waits_for if info is None else info.status_reason


async def why_pending(handle: SandboxHandle) -> str | None:
    """The `status_reason` that a pending sandbox has now; None: it is pending no more, or nothing is said of that."""
    import asyncio

    info = handle.info
    if handle.is_known_to_be("running") and (info is None or info.status is not SandboxStatus.PENDING):
        return None  # Whoever looks after a long command again and again costs no request each time.
    try:
        async with asyncio.timeout(ASK_SECONDS):
            await handle.ask_status()
    except (AviatoError, TimeoutError):
        pass
    info = handle.info
    if info is not None and info.status is not SandboxStatus.PENDING:
        return None
    return status_reason(info, handle.queue_position, handle.waits_for)


async def wait_running(handle: SandboxHandle, seconds: float | None) -> None:
    """Return once it runs or has ended.

    Args:
        handle: of the sandbox.
        seconds: how long that may take; None: as long as it takes.

    Raises:
        OperationTimeoutError: the time ran out; the start goes on.
        SandboxError: it ended without ever having run.
    """
    import asyncio

    from aviato.core.timeouts import not_ended

    try:
        async with asyncio.timeout(seconds) as limit:
            await handle.wait_running()
    except TimeoutError:
        if seconds is None or not limit.expired():
            raise
        reason = await why_pending(handle)
        raise not_ended(f"wait for {handle.sandbox_id}", seconds, reason, has_begun=handle.may_have_run) from None
