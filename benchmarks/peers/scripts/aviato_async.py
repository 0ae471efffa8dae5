"""aviato from asyncio: an AsyncClient on a server that runs."""

from contextlib import AsyncExitStack
from pathlib import Path

import aviato

stack, client = AsyncExitStack(), aviato.AsyncClient()


async def create(image=None):
    if not hasattr(stack, "entered"):
        stack.entered = await stack.enter_async_context(client)
    return await client.sandbox(container_image=image)


async def run(sandbox, argv):
    result = await sandbox.exec(argv, max_output_bytes=1 << 30)
    return result.returncode, result.stdout_bytes


def content(path):
    return Path(path).read_bytes()


async def write(sandbox, path):
    await sandbox.write_file("payload", content(path))


async def read(sandbox):
    return await sandbox.read_file("payload")


async def stop(sandbox):
    await sandbox.stop()


async def close():
    await stack.aclose()
