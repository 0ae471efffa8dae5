"""A confirmation that died with its server holds no command up."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

import aviato
from aviato.wire.frames import FrameDecoder, FrameType
from aviato.wire.ids import new_exec_id
from aviato.wire.version import WIRE_HEADER, WIRE_VERSION

WINDOW_BYTES = 1 << 20
SIZE_BYTES = 3 * WINDOW_BYTES


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def _read(response: aiohttp.ClientResponse, seen: int, enough: int) -> int:
    """Read on up to so many bytes of stdout, or the end."""
    decoder = FrameDecoder()
    async for chunk in response.content.iter_any():
        for frame in decoder.feed(chunk):
            if frame.type == FrameType.DATA:
                seen = max(seen, frame.offset + len(frame.payload))
            if frame.type == FrameType.EXIT:
                return seen
        if seen >= enough:
            break
    response.close()
    return seen


@pytest.mark.anyio
async def test_who_comes_back_has_confirmed_what_it_has(server: Any) -> None:
    async with aviato.Sandbox(base_url=server.url) as box:
        path = f"http://x/v1/sandboxes/{box.sandbox_id}/execs"
        exec_id, seen = new_exec_id(), 0
        body = {"exec_id": exec_id, "command": ["head", "-c", str(SIZE_BYTES), "/dev/zero"]}
        connector = aiohttp.UnixConnector(server.url.removeprefix("unix://"))
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(
            connector=connector, headers={WIRE_HEADER: str(WIRE_VERSION)}, timeout=timeout
        ) as http:
            seen = await _read(await http.post(path, json=body), seen, WINDOW_BYTES)
            assert WINDOW_BYTES <= seen < SIZE_BYTES  # All that the sandbox has sent, and nobody confirms it.
            for _ in range(3):
                seen = await _read(await http.get(f"{path}/{exec_id}?stdout={seen}"), seen, seen + WINDOW_BYTES)
            assert seen == SIZE_BYTES
