"""What a command leaves behind in process 1 is collected."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.anyio

COMMANDS = 1200
LEAST_LEAK_BYTES = 3 << 10
"""What a command cost when nothing was collected."""
PYTHON_BYTES = 6 << 20
"""What Python takes at least, where it comes in; a leak is less."""


async def run(box, *command):
    """As `box.run`, with nothing confirmed before the end."""
    exec_id, subscription = box.start(*command)
    return await box.finish(exec_id, subscription, acknowledge=False)


async def resident_bytes(box):
    status = (await run(box, "cat", "/proc/1/status")).stdout
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


@pytest.mark.deep
@pytest.mark.parametrize("python", [False, True], ids=["before Python", "in Python"])
async def test_many_commands_leave_no_memory_behind(box, python):
    if python:
        await box.run("cat", stdin=b"what only Python does")
    for _ in range(100):
        await run(box, "true")
    for _ in range(2):
        before = await resident_bytes(box)
        for _ in range(COMMANDS):
            await run(box, "true")
        after = await resident_bytes(box)
        if after < before + PYTHON_BYTES:
            break
        # Python has come in: a command has not begun for so long, on a busy machine, that it had to be looked at.
    assert after < before + COMMANDS * LEAST_LEAK_BYTES / 3
