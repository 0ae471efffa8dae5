"""Waiting for a program inside to listen on an exposed port."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aviato.core.client import LONG_POLL_SECONDS, decode
from aviato.exceptions import SandboxTimeoutError
from aviato.wire.sandboxes import PortInfo

if TYPE_CHECKING:
    from aviato.core.lifecycle import SandboxHandle


async def wait_for_port(handle: SandboxHandle, port: int, timeout_seconds: float) -> str:
    """The URL of an exposed port, once something inside listens on it. The time counts from when the sandbox runs.

    Raises:
        AviatoValidationError: the port is not exposed.
        SandboxTimeoutError: nobody listens on it in time.
        SandboxError: the sandbox ended.
    """
    await handle.wait_running()
    client = handle.client
    begun = time.monotonic()
    while True:
        left = max(0.0, timeout_seconds - (time.monotonic() - begun))
        patience = min(left, LONG_POLL_SECONDS)
        path = f"{handle.path}/ports/{port}?timeout_seconds={patience:.3f}"
        silence = patience + client.transport.request_timeout_seconds
        seen = decode(PortInfo, await client.call(f"wait for port {port}", "GET", path, silence_seconds=silence))
        if seen.listening:
            return seen.url
        if patience == left:
            raise SandboxTimeoutError(
                f"nobody listens on port {port} of sandbox {handle.sandbox_id} after {timeout_seconds:g} s; "
                "is the server program running, and on this port?",
                sandbox_id=handle.sandbox_id,
                reason="port_not_listening",
            )
