"""Outliving a timeout, a cancel, a grade."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import time
from typing import TYPE_CHECKING, Any

from aviato.wire.frames import FrameType
from tests.attacks.hopper import compile_hopper, without_gcc
from tests.attacks.registry import Area, Arena, Patch, root_only
from tests.attacks.test_headless import HEADLESS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

area = Area(__name__)
PROCESS_TREE = "init/src/process_tree.rs"
KILLING = """\
                    let kill = Kill::new(&exec_id, &self.commands);
                    self.start_job(Box::new(kill));
                }
            }
            Call::LingerOver"""
KILLING_ONE = """\
                    if let Ok(command) = self.commands.find(&exec_id) {
                        command.signal(sys::SIGKILL);
                    }
                }
            }
            Call::LingerOver"""
MARKED = area.defence(
    "all that a command started carries its mark",
    patches=(Patch("init/src/supervisor.rs", KILLING, KILLING_ONE),),
)
EVERY_THREAD = area.defence(
    "a process is found by all its threads",
    patches=(
        Patch(
            PROCESS_TREE,
            "        for (name, _) in threads {\n            if let Some(tag)",
            "        for (name, _) in threads.into_iter().take(0) {\n            if let Some(tag)",
        ),
    ),
)
HIDERS = area.defence(
    "who hides is killed",
    patches=(Patch(PROCESS_TREE, "Err(_) => true,", "Err(_) => false,"),),
)
STANDSTILL = area.defence(
    "the sandbox stands still for the scan",
    patches=(
        Patch(
            PROCESS_TREE,
            "let frozen = self.newcomers || are_many || (self.killed.is_empty() && before.len() > FEW);",
            "let (before, frozen) = (processes.all()?, false);",
        ),
    ),
)
REPEATED = area.defence(
    "killing goes on until a scan finds nothing",
    patches=(Patch(PROCESS_TREE, "if hits.is_empty() {", "if true {"),),
)
BORN = area.defence(
    "a scan counts only where nobody was born meanwhile",
    patches=(Patch(PROCESS_TREE, "Ok(self.descent.is_some() || self.newest()? == newest)", "Ok(newest.len() < 256)"),),
)
GRADED = area.defence(
    "everything is killed before a grade",
    patches=(
        Patch("init/src/killing.rs", "kill: Some(KillOthers::new(tag))", "kill: Some(KillOthers::new(tag)).filter(|_| false)"),
    ),
)
HOLDERS = area.defence(
    "a tracer that keeps the end of a killed command to itself is killed",
    patches=(Patch("init/src/killing.rs", "                    supervisor.processes.kill_tracer(pid);\n", ""),),
)
HELD = area.defence(
    "nobody waits for the dead whom a tracer keeps",
    patches=(
        Patch(
            PROCESS_TREE,
            "killed.contains(&pid) && !matches!(processes.tracer_of(pid), (true, Some(_)))",
            "killed.contains(&pid)",
        ),
    ),
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


async def lifecycle(box: Any, seconds: float = 1.5) -> bool:
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
        return await lifecycle(box)


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
        return await lifecycle(box)


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
        while not await lifecycle(box):
            pass
        await box.link.cancel(exec_id)
        subscription.close()
        return await lifecycle(box)


@area.attack("outlive a grade", GRADED)
async def graded(arena: Arena) -> bool:
    async with arena.box() as box:
        # Somebody is spared, so that who else is there has to be looked at.
        _, main = box.start("sleep", "60", main=True)
        source = LIVES.format(first="os.setsid()")
        await box.run("sh", "-c", 'python3 -c "$0" </dev/null >/dev/null 2>&1 & sleep 0.3', source)
        assert await lifecycle(box)
        await box.link.cancel_all()
        main.close()
        return await lifecycle(box)


HOLD = """
import ctypes, os, time
mine, libc = {os.getpid(), os.getppid(), 1}, ctypes.CDLL(None)
print("begins", flush=True)
while True:
    for name in os.listdir("/proc"):
        # 0x4206: PTRACE_SEIZE. Whoever ends then is not taken from there.
        if name.isdecimal() and int(name) not in mine and libc.ptrace(0x4206, int(name), 0, 0) == 0: mine.add(int(name))
"""
TRACED = """
import time
while "TracerPid:\\t0\\n" in open("/proc/self/status").read(): time.sleep(0.01)
print("traced", flush=True)
time.sleep(60)
"""


@area.attack("outlive a cancel by having gone whenever one is looked at", BORN, impossible=without_gcc)
async def hops(arena: Arena) -> bool:
    async with arena.box() as box:
        await compile_hopper(box)
        until = time.monotonic() + 40
        for _ in range(150 if arena.off else 10):  # One in a dozen lives where nobody else is at work, fewer elsewhere.
            if time.monotonic() > until:
                break
            result = await box.run("/tmp/hopper")
            await box.link.cancel(result.exec_id)
            if await lifecycle(box, 0.1):
                return True
        return False


async def heard(subscription: Any) -> None:
    """Wait until a command has said something."""
    async for frame in subscription:
        if frame.type == FrameType.DATA:
            return


async def traced(box: Any) -> tuple[str, Any]:
    """A command that has been taken by the tracer. One that is stopped by any signal after that says nothing more."""
    for _ in range(5):
        exec_id, subscription = box.start("python3", "-I", "-c", TRACED)
        try:
            await asyncio.wait_for(heard(subscription), 15)  # On a busy machine an interpreter begins late.
        except TimeoutError:
            subscription.close()
        else:
            return exec_id, subscription
    raise AssertionError("no command was traced")


async def held(arena: Arena, *, main: bool, end: Callable[[Any, str], Awaitable[None]]) -> bool:
    """Whether a command that was killed has no end while another one traces it."""
    async with arena.box() as box:
        _, holder = box.start("python3", "-I", "-c", HOLD, main=main)
        await heard(holder)
        exec_id, subscription = await traced(box)
        try:
            try:
                await asyncio.wait_for(end(box, exec_id), 8)
            except TimeoutError:
                return True
            return False
        finally:
            holder.close()
            subscription.close()


@area.attack("keep a command that was cancelled from its end", HOLDERS)
async def keeps_a_command(arena: Arena) -> bool:
    return await held(arena, main=False, end=lambda box, exec_id: box.link.cancel(exec_id))


@area.attack("keep a grade from its beginning", HELD)
async def keeps_a_grade(arena: Arena) -> bool:
    return await held(arena, main=True, end=lambda box, _: box.link.cancel_all())


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


@area.attack("fork faster than one can be killed", STANDSTILL, REPEATED, BORN, alone=False)
async def faster(arena: Arena) -> bool:
    """Which of them is needed depends on how fast it forks here. They are too late if it goes on for seconds.

    On a busy machine a single scan may find them all, once; hostile code tries again.
    """

    async def outlives() -> bool:
        async with arena.box() as box:
            exec_id, subscription = box.start("python3", "-I", "-c", FORKS, timeout=1)
            try:
                await asyncio.wait_for(box.finish(exec_id, subscription), 10)
            except TimeoutError:
                return True
            return await lifecycle(box)

    for _ in range(6 if arena.off else 1):
        if await outlives():
            return True
    return False
