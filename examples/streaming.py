"""Output while the command runs, line by line, in blocking and in async code.

Run it with `python examples/streaming.py`.
"""

import asyncio

from aviato import Sandbox

SLOWLY = ["sh", "-c", "for step in 1 2 3; do echo step $step; sleep 0.2; done"]


async def follow(sandbox: Sandbox) -> None:
    process = sandbox.exec(SLOWLY)
    async for line in process.stdout.lines():
        print("await:", line)
    print("returncode", (await process).returncode)


with Sandbox() as sandbox:
    for line in sandbox.exec(SLOWLY).stdout.lines():
        print("block:", line)
    asyncio.run(follow(sandbox))
