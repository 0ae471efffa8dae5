"""Outliving a timeout, a cancel, a grade."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import time
from typing import Any

from tests.attacks.registry import Area, Arena, Patch, root_only
from tests.attacks.test_headless import HEADLESS

area = Area(__name__)
TREE = "server/supervisor/tree.py"
MARKED = area.defence(
    "all that a command started carries its mark",
    patches=(
        Patch(
            "server/supervisor/commands.py",
            "            self._loop.start(self.kill(command.exec_id))\n",
            "            command.signal(signal.SIGKILL)\n",
        ),
    ),
)
EVERY_THREAD = area.defence(
    "a process is found by all its threads",
    patches=(Patch(TREE, "    yield str(pid)\n    try:\n", "    yield str(pid)\n    return\n    try:\n"),),
)
HIDERS = area.defence(
    "who hides is killed", patches=(Patch(TREE, "        return True  # Only", "        return False  # Only"),)
)
STANDSTILL = area.defence(
    "the sandbox stands still for the scan",
    patches=(Patch(TREE, "frozen = newcomers or (not killed and len(before) > FEW)", "frozen = False"),),
)
REPEATED = area.defence(
    "killing goes on until a scan finds nothing", patches=(Patch(TREE, "        if not hits:\n", "        if True:\n"),)
)
GRADED = area.defence(
    "everything is killed before a grade",
    patches=(Patch("server/supervisor/commands.py", "yield from tree.kill_others(", "if False: yield from tree.kill_others("),),
)

LIVES = """
import os, time
{first}
while True:
    with open("/tmp/lives", "w") as file: file.write(str(time.monotonic()))
    time.sleep(0.02)
"""
DAEMON = "if os.fork(): time.sleep(60)\nos.setsid()\nif os.fork(): os._exit(0)\nos.chdir('/')"
AWAY = "\n".join(f"os.close({fd})" for fd in range(3))


async def lives(box: Any, seconds: float = 1.5) -> bool:
    """Whether somebody goes on writing."""
    seen = again = (await box.sh("cat /tmp/lives")).stdout
    deadline = time.monotonic() + seconds
    while again == seen and time.monotonic() < deadline:
        await asyncio.sleep(0.03)
        again = (await box.sh("cat /tmp/lives")).stdout
    return bool(again != seen)


@area.attack("outlive a timeout as a daemon", MARKED)
async def daemon(arena: Arena) -> bool:
    async with arena.box() as box:
        result = await box.python(LIVES.format(first=f"{DAEMON}\n{AWAY}"), timeout=1)
        assert result.exit["timed_out"]
        return await lives(box)


@area.attack(
    "outlive a timeout without a first thread",
    EVERY_THREAD,
    impossible=lambda backend: None if platform.machine() in ("x86_64", "aarch64") else "the number of a system call",
)
async def headless(arena: Arena) -> bool:
    async with arena.box() as box:
        exec_id, subscription = box.start("python3", "-c", HEADLESS.format(more=""), timeout=1)
        try:
            await asyncio.wait_for(box.finish(exec_id, subscription), 6)
        except TimeoutError:
            pass
        return await lives(box)


WRITES = "while :; do date +%s%N > /tmp/lives; sleep 0.02; done >/dev/null 2>&1 </dev/null"


@area.attack("outlive a timeout as a program that nobody may read", HIDERS, impossible=root_only)
async def unreadable(arena: Arena) -> bool:
    """Whose owner is none of the sandbox's. Not even process 1 may look into it. In layers the kernel does not start it."""
    async with arena.plain(), arena.box() as box:
        program = f"{await arena.workspace(box)}/hidden"
        shutil.copy("/bin/sh", program)
        os.chown(program, 12345, 12345)
        os.chmod(program, 0o711)
        exec_id, subscription = box.start("/workspace/hidden", "-c", f"setsid ./hidden -c '{WRITES}' & sleep 60")
        while not await lives(box):
            pass
        await box.link.cancel(exec_id)
        subscription.close()
        return await lives(box)


@area.attack("outlive a grade", GRADED)
async def graded(arena: Arena) -> bool:
    async with arena.box() as box:
        # Somebody is spared, so that who else is there has to be looked at.
        _, main = box.start("sleep", "60", main=True)
        source = LIVES.format(first="os.setsid()")
        await box.run("sh", "-c", 'python3 -c "$0" </dev/null >/dev/null 2>&1 & sleep 0.3', source)
        assert await lives(box)
        await box.link.cancel_all()
        main.close()
        return await lives(box)


FORKS = """
import os, time
# A chain: every process is gone before it can be found, and leaves two others.
if os.fork() == 0:
    os.setsid()
    for fd in range(3): os.close(fd)
    begin = time.monotonic()
    for _ in range(7): os.fork()
    while time.monotonic() - begin < 20:
        with open("/tmp/lives", "w") as file: file.write(str(time.monotonic()))
        if os.fork(): os._exit(0)
        os.setsid()
    os._exit(0)
time.sleep(60)
"""


@area.attack("fork faster than one can be killed", STANDSTILL, REPEATED, alone=False)
async def faster(arena: Arena) -> bool:
    """Which of the two is needed depends on how fast it forks here. They are too late if it goes on for seconds.

    On a busy machine a single scan may find them all, once; hostile code tries again.
    """

    async def outlives() -> bool:
        async with arena.box() as box:
            exec_id, subscription = box.start("python3", "-I", "-c", FORKS, timeout=1)
            try:
                await asyncio.wait_for(box.finish(exec_id, subscription), 10)
            except TimeoutError:
                return True
            return await lives(box)

    for _ in range(6 if arena.off else 1):
        if await outlives():
            return True
    return False
