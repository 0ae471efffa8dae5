"""Limits that hold: bombs of every kind end the command that is one, and nothing else."""

from __future__ import annotations

import asyncio
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aviato.exceptions import AviatoError

pytestmark = pytest.mark.anyio

MIB = 1 << 20
GROW = """
import shutil
import time
kept = []
for _ in range(40):
    kept.append(bytearray(b"x") * (5 << 20))
    time.sleep(0.002)
time.sleep(WAIT)
print("whole")
"""
FORKED = """
import os, time
pids = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        kept = bytearray(b"x") * (20 << 20)
        time.sleep(WAIT)
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
print("whole")
"""
MAPPED = """
import mmap, time
kept = mmap.mmap(-1, 160 << 20)
kept.write(b"x" * (160 << 20))
time.sleep(WAIT)
print("whole")
"""
NAMELESS = """
import os, time
fd = os.memfd_create("bomb")
for _ in range(160):
    os.write(fd, bytes(1 << 20))
time.sleep(WAIT)
print("whole")
"""
STORED = """
import shutil
import time
with open("/dev/shm/bomb", "wb") as file:
    file.write(b"x" * (40 << 20))
kept = bytearray(b"x") * (60 << 20)
time.sleep(WAIT)
print("whole")
"""
BOMBS = {"grows": GROW, "forked": FORKED, "mapped": MAPPED, "nameless": NAMELESS, "in /dev/shm": STORED}


async def refusal(call):
    with pytest.raises(AviatoError) as caught:
        await call
    assert not caught.value.is_infrastructure
    return caught.value


async def nobody(box):
    """Whether the last of a command that was killed is gone."""
    return (await box.sh("pgrep -c python3")).stdout == "0\n"


async def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.fixture(params=["control groups", "watched"])
def kept(request, backend, monkeypatch):
    """How the limit of memory is kept."""
    grouped = request.param == "control groups"
    if grouped and not backend._facts.groups:
        pytest.skip("this user can make no control groups here")
    if not grouped:
        monkeypatch.setattr(backend, "_facts", replace(backend._facts, groups=()))
    return request.param


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_memory_bomb_ends_its_command_and_nothing_else(kept, make_box, bomb):
    async with make_box(limits={"memory": 80 * MIB}) as box, make_box(limits={"memory": 400 * MIB}) as neighbour:
        exec_id, beside = box.start("sh", "-c", "read line; echo $line", stdin=True)
        control = asyncio.create_task(neighbour.python(BOMBS[bomb].replace("WAIT", "0.5")))
        result = await box.python(BOMBS[bomb].replace("WAIT", "20"))
        assert (result.returncode, result.exit["oom_killed"], result.exit["signal"]) == (137, True, 9)
        assert (result.stdout, result.stderr) == ("", "")
        await box.link.write_stdin(exec_id, b"alive\n", 0, True)
        assert (await box.finish(exec_id, beside)).stdout == "alive\n"
        await until(lambda: nobody(box))
        spared = await control
        assert (spared.returncode, spared.exit["oom_killed"], spared.stdout) == (0, False, "whole\n")


async def test_the_machine_out_of_memory_takes_commands_first(box):
    script = (
        "cd /proc; until [ $(cat self/oom_score_adj) -gt $(cat 1/oom_score_adj) ]; do sleep 0.01; done; cat 1/oom_score_adj"
    )
    assert (await box.sh(script, timeout=10)).stdout == Path("/proc/self/oom_score_adj").read_text()


async def test_what_processes_share_counts_once(kept, make_box):
    source = """
import os, time
kept = bytearray(b"x") * (50 << 20)
pids = [os.fork() for _ in range(3)]
time.sleep(0.6)
print("whole") if all(pids) else os._exit(0)
"""
    async with make_box(limits={"memory": 120 * MIB}) as box:
        result = await box.python(source)
    assert (result.returncode, result.stdout) == (0, "whole\n")


async def test_memory_that_a_child_borrows_until_it_is_a_program_counts_once(kept, make_box):
    source = """
import subprocess, time
kept, end = b"x" * (130 << 20), time.monotonic() + 6
while time.monotonic() < end: subprocess.run(["true"], check=True)
print("whole")
"""
    async with make_box(limits={"memory": 200 << 20}) as box:
        result = await box.python(source)
        assert (result.stdout, result.exit["oom_killed"]) == ("whole\n", False)


LENT = r"""
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    int status = 0;
    if (fork() == 0) {
        char *kept = malloc(300L << 20);
        memset(kept, 1, 300L << 20);
        sleep(kept[1 << 20] * 3);
        _exit(0);
    }
    pid_t borrows = vfork();
    if (borrows == 0) {
        sleep(3);
        _exit(0);
    }
    /* Killed before its lender, it lets that go on for a moment. */
    if (waitpid(borrows, &status, 0) == borrows && WIFEXITED(status)) write(1, "whole", 5);
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the machine has no gcc")
async def test_memory_that_a_child_has_beside_one_that_borrows_counts(kept, make_box):
    async with make_box(limits={"memory": 200 << 20}) as box:
        made = await box.run("gcc", "-w", "-x", "c", "-", "-o", "/tmp/lent", stdin=LENT.encode())
        assert made.returncode == 0, made.stderr
        result = await box.run("/tmp/lent")
        assert (result.stdout, result.exit["oom_killed"]) == ("", True)


async def test_what_a_command_left_behind_is_killed_too(kept, make_box):
    async with make_box(limits={"memory": 60 * MIB}) as box:
        bomb = GROW.replace("WAIT", "20")
        started = await box.sh(f"setsid python3 -c '{bomb}' >/dev/null 2>&1 </dev/null & echo started")
        assert started.stdout == "started\n" and not started.exit["oom_killed"]
        await until(lambda: nobody(box))
        assert (await box.sh("echo on")).stdout == "on\n"


FILL = """
import os, time
for number in range(24):
    with open(f"/workspace/{number}", "wb") as file:
        file.write(b"x" * (2 << 20))
time.sleep(WAIT)
print("whole")
"""
UNLINKED = """
import os, time
file = open("/tmp/gone", "wb")
os.unlink("/tmp/gone")
for _ in range(48):
    file.write(b"x" * (1 << 20))
    file.flush()
time.sleep(WAIT)
print("whole")
"""
HIDDEN = """
import os, time
os.makedirs("/var/a/b")
os.chdir("/var/a/b")
for number in range(24):
    with open(str(number), "wb") as file:
        file.write(b"x" * (2 << 20))
    os.chmod("/var/a", 0)
time.sleep(WAIT)
print("whole")
"""
DEEP = """
import os, time
os.chdir("/tmp")
for _ in range(200):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
with open("big", "wb") as file:
    for _ in range(48):
        file.write(b"x" * (1 << 20))
time.sleep(WAIT)
print("whole")
"""
DISK_BOMBS = {"many files": FILL, "no name": UNLINKED, "no permission": HIDDEN, "deep": DEEP}


@pytest.mark.parametrize("bomb", DISK_BOMBS)
async def test_a_disk_bomb_ends_all_commands(make_box, bomb):
    async with make_box(limits={"disk": 24 * MIB}) as box, make_box(limits={"disk": 200 * MIB}) as neighbour:
        exec_id, beside = box.start("sleep", "20")
        control = asyncio.create_task(neighbour.python(DISK_BOMBS[bomb].replace("WAIT", "0.4")))
        result = await box.python(DISK_BOMBS[bomb].replace("WAIT", "20"))
        assert (result.returncode, result.exit["oom_killed"], result.exit["timed_out"]) == (137, False, False)
        assert result.stderr == "aviato: killed: the sandbox's limit of 24 MiB of disk is reached\n"
        assert (await box.finish(exec_id, beside)).returncode == 137
        assert (await control).stdout == "whole\n"


async def test_beyond_the_disk_limit_one_can_read_and_remove(make_box):
    async with make_box(limits={"disk": 24 * MIB}) as box:
        await box.put("/workspace/kept", b"kept")
        assert (await box.python(FILL.replace("WAIT", "20"))).returncode == 137
        for call in (box.put("/workspace/new", b"x"), box.link.make_directory("/workspace/folder", 0o755)):
            error = await refusal(call)
            assert error.reason == "disk_full" and "24 MiB" in str(error)
        assert await box.get("/workspace/kept") == b"kept"
        # Who writes no more is left alone, and a command may make room as well.
        assert (await box.sh("sleep 0.3; cat /workspace/kept; rm /workspace/0")).stdout == "kept"
        for name in (await box.sh("ls /workspace | grep -v kept")).stdout.split():
            await box.link.remove(f"/workspace/{name}", False)
        await box.put("/workspace/new", b"x")
        assert (await box.sh("sleep 0.3; ls /workspace")).stdout == "kept\nnew\n"


async def test_files_that_come_in_by_calls_have_the_same_limit(make_box):
    async with make_box(limits={"disk": 8 * MIB}) as box:
        for _ in range(6):
            await box.put("/workspace/again", b"x" * (3 * MIB))
        error = await refusal(box.put("/workspace/big", b"x" * (7 * MIB)))
        assert error.reason == "disk_full"
        assert (await box.sh("ls -A /workspace")).stdout == "again\n"
        await box.link.remove("/workspace/again", False)
        await box.put("/workspace/big", b"x" * (7 * MIB))


async def test_a_tree_that_is_wide_where_it_is_deep_is_no_inode_bomb(make_box):
    source = """
import os, time
top = "/".join("d" * 40)
os.makedirs(top)
for depth in range(28, 36):
    for number in range(300): os.mkdir("/".join("d" * depth) + f"/{number}")
time.sleep(1.5)
print("whole")
"""
    async with make_box() as box:
        result = await box.python(source)
        assert (result.stdout, result.stderr) == ("whole\n", "")
        await box.put("/workspace/file", b"more")


async def test_an_inode_bomb(make_box):
    many = "import os, time\nfor number in range(2000):\n    open(f'/tmp/{number}', 'w')\ntime.sleep(WAIT)\nprint('whole')"
    links = many.replace("open(f'/tmp/{number}', 'w')", "os.link('/etc/../workspace/one', f'/tmp/{number}')")
    async with make_box(limits={"inodes": 1000}) as box, make_box(limits={"inodes": 4000}) as neighbour:
        await box.put("/workspace/one", b"x" * MIB)
        assert (await box.python(links.replace("WAIT", "0.3"))).stdout == "whole\n"
        result = await box.sh("rm /tmp/*") and await box.python(many.replace("WAIT", "20"))
        assert result.returncode == 137
        assert result.stderr == "aviato: killed: the sandbox's limit of 1000 files and directories is reached\n"
        assert (await neighbour.python(many.replace("WAIT", "0.3"))).stdout == "whole\n"


async def test_a_fork_bomb_meets_the_number_that_was_asked_for(make_box):
    source = """
import os, time
count = 1
try:
    for _ in range(60):
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except OSError as error:
    print(error.strerror, count)
else:
    print("whole", count)
"""
    async with make_box(limits={"processes": 20}) as box, make_box(limits={"processes": 100}) as neighbour:
        assert (await box.python(source)).stdout == "Resource temporarily unavailable 20\n"
        assert (await neighbour.python(source)).stdout == "whole 61\n"
