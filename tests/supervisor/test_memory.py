"""What a command leaves behind in process 1 is collected."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.anyio

COMMANDS = 1200
LEAST_LEAK_BYTES = 3 << 10
"""What a command cost when nothing was collected."""


async def resident_bytes(box):
    status = (await box.run("cat", "/proc/1/status")).stdout
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


async def test_many_commands_leave_no_memory_behind(box):
    for _ in range(100):
        await box.run("true")
    before = await resident_bytes(box)
    for _ in range(COMMANDS):
        await box.run("true")
    assert await resident_bytes(box) < before + COMMANDS * LEAST_LEAK_BYTES / 3
