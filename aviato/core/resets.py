"""Resets as a client asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aviato.wire.ids import new_reset_id
from aviato.wire.sandboxes import MOST_RECEIVED

if TYPE_CHECKING:
    from aviato.core.lifecycle import SandboxHandle


async def reset(handle: SandboxHandle, to: str | None) -> None:
    """Let a sandbox begin anew, once it runs; returns when it runs again."""
    await handle.wait_running()
    wanted: dict[str, Any] = {"to": to}
    if values := handle.secret_values():
        wanted["secret_values"] = values
    acknowledgements = handle.lease.acknowledgements
    received = acknowledgements.results_of(handle.sandbox_id)[:MOST_RECEIVED]
    info = await handle.client.reset_sandbox(handle.sandbox_id, new_reset_id(), received, **wanted)
    acknowledgements.settled(handle.sandbox_id, received)
    handle.see(info)
