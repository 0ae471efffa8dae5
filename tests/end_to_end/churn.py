"""Creates, uses and stops sandboxes; every fifth is stopped at a random point of its start. Run by `test_nothing_left.py`."""

from __future__ import annotations

import asyncio
import random
import sys

import aviato


async def churn(count: int, at_once: int, pick: random.Random) -> None:
    gate = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with gate:
            sandbox = aviato.Sandbox()
            if number % 5 == 0:
                await stop_at_random(sandbox, pick)
            else:
                assert (await sandbox.exec(["sh", "-c", "echo $$; echo x > /tmp/file"])).returncode == 0
                await sandbox.stop()

    await asyncio.gather(*(one(number) for number in range(count)))


async def stop_at_random(sandbox: aviato.Sandbox, pick: random.Random) -> None:
    """The command ends well if it was quicker than the stop; else the stop has cancelled it."""
    process = sandbox.exec(["true"])
    await asyncio.sleep(pick.random() * 0.05)
    await sandbox.stop(graceful_shutdown_seconds=0)
    try:
        assert (await process).returncode == 0
    except (aviato.SandboxNotRunningError, aviato.OperationCancelledError):
        pass


asyncio.run(churn(int(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))))
