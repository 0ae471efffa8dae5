"""A process whose first thread has ended: for /proc it has no namespaces, memory and files, and yet it lives."""

from __future__ import annotations

import platform
import time
from dataclasses import replace

import pytest

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.attack,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the number of a system call"),
]

EXIT = {"x86_64": 60, "aarch64": 93}.get(platform.machine(), 0)
HEADLESS = f"""
import ctypes, os, threading, time
def rest():
    while True:
        time.sleep(0.05)
        with open("/tmp/lives", "w") as file:
            file.write(str(time.monotonic()))
        work()
def work(): pass
{{more}}
threading.Thread(target=rest).start()
ctypes.CDLL(None).syscall({EXIT}, 0)
"""


async def lifecycle(box):
    """Whether it goes on writing."""
    seen = (await box.run("cat", "/tmp/lives")).stdout
    again = seen
    deadline = time.monotonic() + 0.5
    while again == seen and time.monotonic() < deadline:
        again = (await box.run("cat", "/tmp/lives")).stdout
    return again != seen


async def test_it_meets_its_time_limit(box):
    begin = time.monotonic()
    result = await box.run("python3", "-c", HEADLESS.format(more=""), timeout=1.0)
    assert (result.exit["timed_out"], result.returncode) == (True, 137) and time.monotonic() - begin < 15
    assert not await lifecycle(box)


async def test_left_behind_it_is_killed_with_the_others(box):
    box.start("sleep", "1000", main=True)  # It is spared, so that who else is there has to be looked at.
    await box.run("sh", "-c", 'python3 -c "$0" </dev/null >/dev/null 2>&1 & sleep 0.5', HEADLESS.format(more=""))
    assert await lifecycle(box)
    await box.link.cancel_all()
    assert not await lifecycle(box)


async def test_its_memory_counts(backend, make_box, monkeypatch):
    monkeypatch.setattr(backend, "_facts", replace(backend._facts, groups=()))  # watched
    more = "kept = []\ndef work(): kept.append(bytearray(b'x') * (10 << 20))"
    async with make_box(limits={"memory": 120 << 20}) as box:
        result = await box.run("python3", "-c", HEADLESS.format(more=more), timeout=20.0)
        assert (result.exit["oom_killed"], result.returncode) == (True, 137)
        assert not await lifecycle(box)
