"""Control groups, where this user can make some: what the kernel keeps, whom it kills, and that none is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from aviato.server.backends.local import groups
from aviato.server.backends.local.backend import LocalBackend

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not groups.find(), reason="this user can make no control groups here"),
]

MIB = 1 << 20
BOMB = "import time; kept = bytearray(b'x') * (150 << 20); time.sleep(20)"
BUSY = "import time\nwhile time.process_time() < 0.1: pass"


VERSION = 2 if groups.UNIFIED in dict(groups.find()) else 1


def group(box, controller="memory"):
    return Path(dict(box.backend._facts.groups)[controller]) / f"aviato-{box.id}"


def members(box):
    """Which threads the group has (in version 2: processes), with their names."""
    found = {}
    for task in (group(box) / ("tasks" if VERSION == 1 else "cgroup.procs")).read_text().split():
        with contextlib.suppress(OSError):
            found[task] = Path(f"/proc/{task}/comm").read_text().strip()
    return found


def number(path):
    return int(path.read_text())


async def test_the_kernel_lets_nothing_beyond(make_box):
    async with make_box(limits={"memory": 60 * MIB}) as box:
        result = await box.run("python3", "-c", BOMB)
        assert (result.returncode, result.exit["oom_killed"]) == (137, True)
        most = group(box) / ("memory.max_usage_in_bytes" if VERSION == 1 else "memory.peak")
        assert not most.exists() or 50 * MIB < number(most) <= 60 * MIB


async def test_only_who_names_memory_or_processors_has_one(make_box):
    async with make_box(limits={"processes": 64}) as box:
        assert not group(box).exists() and not group(box, "cpu").exists()
    async with make_box(requests={"memory": 64 * MIB}) as box:
        assert group(box).exists() and group(box, "cpu").exists() == (VERSION == 2)


async def test_of_those_that_are_killed_only_who_has_one_has_it_taken_away(make_box, monkeypatch):
    looked, usual = [], groups.remove

    def remove(sandbox_id, directories):
        looked.append(sandbox_id)
        usual(sandbox_id, directories)

    monkeypatch.setattr(groups, "remove", remove)
    async with make_box() as plain, make_box(limits={"memory": 512 * MIB}) as grouped:
        backend = plain.backend
        for box in (plain, grouped):
            assert backend.kill(box.id)
        assert await backend.destroy_all([plain.id, grouped.id]) == []
        assert looked == [grouped.id] and not group(grouped).exists()
        assert not {plain.id, grouped.id} & set(await backend.place_ids())


async def test_the_supervisor_is_outside(make_box):
    async with make_box(limits={"memory": 512 * MIB}) as box:
        exec_id, running = box.start("sh", "-c", "sleep 20 & sleep 20")
        deadline = time.monotonic() + 10
        while sorted((found := members(box)).values()) != ["sh", "sleep", "sleep"]:
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.02)
        await box.link.signal(exec_id, 9)
        await box.finish(exec_id, running)


@pytest.mark.parametrize("shell", ["python3 -c '{}'; echo outlived; sleep 20", "(python3 -c '{}'); exit 3"])
async def test_the_whole_command_dies_with_the_process_that_the_kernel_chose(make_box, shell):
    async with make_box(limits={"memory": 100 * MIB}) as box:
        innocent, beside = box.start("python3", "-c", "kept = bytearray(b'x') * (15 << 20); print(input())", stdin=True)
        result = await box.sh(shell.format(BOMB.replace("'", '"')))
        assert (result.returncode, result.exit["oom_killed"]) == (137, True)
        await box.link.write_stdin(innocent, b"alive\n", 0, True)
        assert (await box.finish(innocent, beside)).stdout == "alive\n"
        killed = await box.sh("kill -9 $$")
        assert (killed.returncode, killed.exit["oom_killed"]) == (137, False)


@pytest.fixture
def group_around(backend, monkeypatch):
    """Groups of sandboxes are made in one of the test's own; its file of the limit, and what stands there for none."""
    directory = Path(dict(backend._facts.groups)["memory"])
    if VERSION == 2:
        yield directory / "memory.max", "max"
        return
    directory /= f"aviato-around-{os.getpid()}"
    directory.mkdir()
    monkeypatch.setattr(backend, "_facts", replace(backend._facts, groups=(("memory", str(directory)),)))
    yield directory / "memory.limit_in_bytes", "-1"
    for left in directory.glob("aviato-sb-*"):
        left.rmdir()
    directory.rmdir()


async def test_a_process_that_the_machine_lacked_memory_for_is_no_fault_of_its_own(make_box, group_around):
    """The same as the machine's own: a limit around the sandbox's group."""
    around, none = group_around
    async with make_box(limits={"memory": 400 * MIB}) as box:
        around.write_text(str(120 * MIB))
        try:
            result = await box.run("python3", "-c", BOMB)
        finally:
            around.write_text(none)
        assert (result.returncode, result.exit["signal"], result.exit["oom_killed"]) == (137, 9, False)
        assert (await box.sh("echo on")).stdout == "on\n"
    async with make_box(limits={"memory": 60 * MIB}) as box:
        assert (await box.run("python3", "-c", BOMB)).exit["oom_killed"]


async def test_a_command_that_is_stopped_before_it_is_one(make_box):
    """Whoever stops every process that is born stops nobody who starts one."""
    stops = """
import os, signal, sys, time
own = os.getpid()
print("ready", flush=True)
seen, deadline = set(), time.monotonic() + 3
while time.monotonic() < deadline:
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) not in (1, own) and name not in seen:
            seen.add(name)
            try: os.kill(int(name), signal.SIGSTOP)
            except OSError: pass
"""
    async with make_box(limits={"memory": 200 * MIB}) as box:
        exec_id, running = box.start("python3", "-c", stops)
        for _ in range(10):
            second, other = box.start("true")
            await box.link.cancel(second)
            await asyncio.wait_for(box.finish(second, other), 10)
        await box.link.cancel(exec_id)
        await box.finish(exec_id, running)


@pytest.mark.parametrize("others", range(3))
async def test_beside_as_many_as_a_zygote_keeps_something_of(make_box, others):
    """What it has open has numbers, three for a sandbox, and calls name one by its number; a sandbox with groups gets most."""
    async with AsyncExitStack() as stack:
        for _ in range(others):
            await stack.enter_async_context(make_box(exposes_ports=True))  # It keeps one.
        for number in range(64):
            await stack.enter_async_context(make_box())
            if number > 24:
                async with make_box(limits={"cpu": 1}) as box:
                    assert (await box.sh("test -c /dev/null && test -d /dev/pts && wc -c < /etc/hosts")).returncode == 0


def throttled(box):
    """How often it had to wait for its next share of the processor."""
    return int((group(box, "cpu") / "cpu.stat").read_text().split("nr_throttled")[1].split()[0])


async def test_a_share_of_the_processor(make_box):
    # 2 ms of 100: less than the kernel gives at a time, so that it shows on a busy machine, too.
    async with make_box(limits={"cpu": 0.02}) as box, make_box(limits={"cpu": 4}) as neighbour:
        assert (await box.python(BUSY.replace("0.1", "0.05"))).exit["duration_seconds"] > 1.0
        await neighbour.python(BUSY)
        assert throttled(box) > 3 and throttled(neighbour) == 0


async def test_no_group_is_left(make_box, tmp_path, boxes):
    async with make_box(limits={"cpu": 1}) as box:
        left = [group(box), group(box, "cpu")]
        box.start("sleep", "60")
        assert all(path.is_dir() for path in left)
    assert not any(path.exists() for path in left)


async def test_another_server_takes_away_what_the_first_one_left(boxes, tmp_path):
    first = LocalBackend(tmp_path / "state")
    await first.open()
    made = boxes.make_box(first, limits={"cpu": 1})
    box = await made.__aenter__()
    left = [group(box), group(box, "cpu")]
    await first.close()
    second = LocalBackend(tmp_path / "state")
    await second.open()
    for sandbox_id in await second.place_ids():
        await second.destroy(sandbox_id)
    assert not any(path.exists() for path in left)
    await second.close()


@pytest.mark.deep
async def test_the_share_of_a_sandbox_that_outlived_its_template_goes_with_it(boxes, tmp_path):
    """Who ends then is no child of the zygote that is there."""
    if "cpu" not in dict(groups.find()):
        pytest.skip("no group shares the processors out here")
    first = LocalBackend(tmp_path / "state")
    await first.open()
    made = boxes.make_box(first)
    box = await made.__aenter__()
    share = share_of(box.process_1)
    assert share.name.startswith("aviato-share-")
    await first.close()
    second = LocalBackend(tmp_path / "state")
    await second.open()
    assert share.exists()
    await second.destroy(box.id)
    deadline = time.monotonic() + 30
    while share.exists():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    await second.close()


def share_of(pid):
    """The group by which a process has its share."""
    found = Path(dict(groups.find())["cpu"])
    [path] = [path.parent for path in found.glob("aviato-share-*/cgroup.procs") if str(pid) in path.read_text().split()]
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user can mount nothing over them")
def test_without_them_limits_are_watched():
    """Where /sys/fs/cgroup is hidden or read only, nothing is found."""
    find = [sys.executable, "-c", "from aviato.server.backends.local import groups; print(groups.find())"]
    whole = "p=/sys/fs/cgroup; mount --bind $p $p; mount -o remount,bind,ro $p"
    each = "for p in /sys/fs/cgroup/*; do mount -o remount,bind,ro $p; done"
    for commands in ("mount -t tmpfs none /sys/fs/cgroup", each if VERSION == 1 else whole):
        if commands.startswith("for"):
            commands = f"for p in /sys/fs/cgroup/*; do mount --bind $p $p; done; {commands}"
        argv = ["unshare", "-m", "sh", "-ec", f'{commands}; exec "$@"', "sh", *find]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=250, env=dict(os.environ))
        assert (done.stdout, done.returncode) == ("()\n", 0), done.stderr
