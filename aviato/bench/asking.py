"""`python -m aviato.bench.asking`: how long the server of `AVIATO_BASE_URL` takes to say how it is, again and again.

A process of its own, so that a busy client is not what is measured. It prints a line when it begins, and at the end of its
input the seconds of every answer as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time

from aviato.transport.http import HttpTransport

EVERY_SECONDS = 0.05


async def ask(transport: HttpTransport, into: list[float]) -> None:
    """Note the seconds of each answer, until cancelled."""
    while True:
        begin = time.perf_counter()
        await transport.request("GET", "/v1/health")
        into.append(time.perf_counter() - begin)
        await asyncio.sleep(EVERY_SECONDS)


async def main() -> None:
    """Ask until standard input ends."""
    transport = HttpTransport(os.environ["AVIATO_BASE_URL"], request_timeout_seconds=60.0)
    await transport.request("GET", "/v1/health")
    seconds: list[float] = []
    print("asking", flush=True)
    asking = asyncio.create_task(ask(transport, seconds))
    reading = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([asking, reading], return_when=asyncio.FIRST_COMPLETED)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    print(json.dumps(seconds))


if __name__ == "__main__":
    asyncio.run(main())
