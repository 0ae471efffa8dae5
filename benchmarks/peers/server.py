"""aviato's server: the process whose memory its sandboxes take."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from aviato.transport.http import HttpTransport
from aviato.transport.resolution import choose, endpoint


def server_pid(base_url: str | None = None) -> int | None:
    """The server's process where it is on this machine; starts the embedded one."""
    url = choose(base_url, None)
    if not endpoint(url).is_loopback:
        return None
    pid = asyncio.run(_pid(url))
    return pid if Path(f"/proc/{pid}").exists() else None


async def _pid(url: str) -> int:
    transport = HttpTransport(url, request_timeout_seconds=60.0)
    return int(json.loads(await transport.request("GET", "/v1/health"))["pid"])
