"""Programs that a store of images runs, and how one ends."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill a program that still runs, wait for it, and close what it was fed by."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()
    with suppress(BrokenPipeError, ConnectionResetError):
        await process.stdin.wait_closed()  # An error that nobody takes is reported by the loop of Python 3.11.2.
