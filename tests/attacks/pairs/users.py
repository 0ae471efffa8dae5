"""Being many users inside: root of a sandbox with ids of its own can become any of them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any
from unittest import mock

from aviato.server.backends.local import plan
from aviato.server.backends.local.directories import Directories
from tests.attacks.pairs.limits import DISK, KERNEL, MIB, WATCHED, takes_memory
from tests.attacks.registry import Area, Arena, Steps

area = Area(__name__)


def has_one_id(backend: Any) -> str | None:
    """For `impossible`."""
    return None if backend.ids_each > 1 else "sandboxes have one id here, so nobody inside can be another user"


BECOME = """
import os, sys, time
def become(uid):
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
"""

# -- processes -------------------------------------------------------------------------------------------------------------


def with_limits_later(steps: Steps) -> Steps:
    """Limits are set once the users are there, so that the kernel counts for each of them alone."""
    limits = next(step for step in steps if step.operation == "limits")
    rest = [step for step in steps if step.operation != "limits"]
    at = [step.operation for step in rest].index("last_user_namespace") + 1
    return (*rest[:at], limits, *rest[at:])


TOGETHER = area.defence("limits of all users of a sandbox together", change=with_limits_later)
FORKS = (
    BECOME
    + """
read, write = os.pipe()
wait, go = os.pipe()
for uid in (1, 2, 1000, 65534):
    if os.fork() == 0:
        os.read(wait, 1)  # until all four are there
        os.close(read); os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        become(uid)
        try:
            while True:
                if os.fork() == 0: os.write(write, b"."); time.sleep(60); os._exit(0)
        except OSError: pass
        os.write(write, b"!"); time.sleep(60); os._exit(0)
os.write(go, b"....")
os.close(write)
seen = b""
while seen.count(b"!") < 4: seen += os.read(read, 1 << 16)
print(seen.count(b".") > 40)
"""
)


@area.attack("more processes than allowed, as four users", TOGETHER, impossible=has_one_id)
async def processes(arena: Arena) -> bool:
    """What a command has left is killed with the sandbox."""
    async with arena.box(limits={"processes": 30}) as box:
        result = await box.python(FORKS)
        assert result.stderr == "", result.stderr
        return bool(result.stdout == "True\n")


# -- what process 1 sees ---------------------------------------------------------------------------------------------------


def without_rights(steps: Steps) -> Steps:
    """Process 1 has no more rights than the user that it is; commands have none."""
    return tuple(
        step._replace(arguments=(step.arguments[0], (plan.RIGHTS["SETUID"], plan.RIGHTS["SETGID"], plan.RIGHTS["CHOWN"])))
        if step.operation == "capabilities"
        else step
        for step in steps
    )


LOOKS = area.defence("process 1 may look at what belongs to others", change=without_rights)
HIDDEN = (
    BECOME
    + """
os.mkdir("/workspace/own"); os.chown("/workspace/own", 1000, 1000)
become(1000)
os.chdir("/workspace/own"); os.mkdir("closed"); os.chdir("closed")
with open("file", "wb") as file:
    for _ in range(64): file.write(b"x" * (1 << 20)); file.flush()
os.chmod("/workspace/own/closed", 0); os.chmod("/workspace/own", 0)
time.sleep(1.5)
print("whole")
"""
)


@area.attack("disk bomb in a directory that another user closed", DISK, impossible=has_one_id)
async def hidden(arena: Arena) -> bool:
    """Whether it is counted."""
    async with arena.box(limits={"disk": 24 * MIB}) as box:
        return bool((await box.python(HIDDEN)).stdout == "whole\n")


@area.attack("disk bomb of many commands, in directories that another user closed", LOOKS, impossible=has_one_id)
async def many_hidden(arena: Arena) -> bool:
    """Each writes less than is allowed; what all have is known to who can look into all of it."""
    source = HIDDEN.replace("range(64)", "range(8)").replace("1.5", "0.5")
    async with arena.box(limits={"disk": 24 * MIB}) as box:
        said = [(await box.python(source.replace("/workspace/own", f"/workspace/{number}"))).stdout for number in range(8)]
        return said == ["whole\n"] * 8


BOMB = (
    BECOME
    + """
become(1000)
kept = [bytearray(os.urandom(1) * (1 << 20)) for _ in range(200)]
time.sleep(0.7)
os.write(1, b"True")
"""
)


@area.attack("memory bomb as another user", WATCHED, impossible=has_one_id)
async def memory(arena: Arena) -> bool:
    """Whoever changes users is hidden from others of the same one, too."""
    with mock.patch.object(arena.backend, "_facts", replace(arena.backend._facts, groups=())):
        async with arena.box(limits={"memory": 80 * MIB}) as box:
            return bool((await box.python(BOMB)).stdout == "True")


PIPES = (
    BECOME
    + """
import fcntl
read, write = os.pipe()
for uid in range(1, 5):
    if os.fork() == 0:
        become(uid)
        total, kept = 0, []
        for _ in range(60):
            kept.append(os.pipe())
            fcntl.fcntl(kept[-1][1], 1031, 1 << 20)  # F_SETPIPE_SZ
            os.set_blocking(kept[-1][1], False)
            try:
                while True: total += os.write(kept[-1][1], bytes(1 << 16))
            except BlockingIOError: pass
        os.write(write, b"%d\\n" % total)
        os.close(write)
        time.sleep(60)
os.close(write)
said = b""
while piece := os.read(read, 4096): said += piece
time.sleep(1.5)
print(sum(map(int, said.split())) >= 160 << 20)
"""
)


@area.attack("memory bomb of a few large pipes of each user", KERNEL, impossible=has_one_id)
async def pipes(arena: Arena) -> bool:
    """The kernel lets each have so much in pipes."""
    return await takes_memory(arena, 80 * MIB, PIPES)


# -- whose it is -----------------------------------------------------------------------------------------------------------


def owner_of_the_root(directories: Directories, sandbox_id: str) -> int:
    """As if what is inside a place said whose it is."""
    return os.stat(f"{directories.path(sandbox_id)}/upper").st_uid


OUTSIDE = area.defence(
    "a sandbox's ids are known by what it cannot change",
    swaps={"aviato.server.backends.local.directories.Directories.owner": owner_of_the_root},
)


@area.attack("have a server that is started anew take one's ids for free", OUTSIDE, impossible=has_one_id)
async def another_owner(arena: Arena) -> bool:
    """Then the next sandbox would have them as well."""
    async with arena.box() as box:
        assert (await box.run("chown", "60000:60000", "/")).returncode == 0
        held = arena.backend._held[box.id].uid
        return bool(arena.backend._directories.owner(box.id) != held)
