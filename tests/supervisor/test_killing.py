"""Trees that resist, and everything else that has to die in time."""

from __future__ import annotations

import asyncio
import os
import shutil
import time

import pytest

from tests.attacks.hopper import compile_hopper
from tests.attacks.mutate import without

pytestmark = pytest.mark.anyio

HOSTILE = """
import os, signal, sys, time
def block():
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
def spread(depth):
    block()
    os.setsid() if os.getpid() != os.getsid(0) else None
    print(os.getpid(), flush=True)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if os.fork() == 0:
            parent = os.getppid()
            try: os.setsid()
            except OSError: pass
            if parent != 1:
                try: os.kill(parent, 9)
                except OSError: pass
        else:
            time.sleep(0.005)
for _ in range(8):
    if os.fork() == 0:
        spread(0)
for pid in range(2, 400):
    if pid not in (os.getpid(), int(sys.argv[1])):
        try: os.kill(pid, 15)
        except OSError: pass
time.sleep(60)
"""


async def others(box):
    """Processes beside process 1 and the one that looks."""
    source = "import os; print(sum(name.isdecimal() and int(name) not in (1, os.getpid()) for name in os.listdir('/proc')))"
    return int((await box.python(source)).stdout)


async def test_a_hostile_tree_is_dead_a_second_after_its_timeout(box):
    exec_id, neighbour = box.start("sh", "-c", "trap '' TERM; echo $$; read line; echo fine", stdin=True)
    while not (number := (await box.run("pgrep", "-x", "sh")).stdout.strip()):
        pass
    # A second, or as much longer as the machine had more to do than it has processors, before the tree came.
    allowed = max(1.0, os.getloadavg()[0] / os.cpu_count())
    result = await box.python(HOSTILE, number, timeout=1)
    assert (result.returncode, result.exit["signal"], result.exit["timed_out"]) == (137, 9, True)
    assert 1.0 <= result.exit["duration_seconds"] < 1 + allowed
    deadline = time.monotonic() + allowed
    while await others(box) != 1:
        assert time.monotonic() < deadline
    await box.link.write_stdin(exec_id, b"\n", 0, True)
    last = await box.finish(exec_id, neighbour)
    assert (last.returncode, last.stdout.splitlines()[-1]) == (0, "fine")


@pytest.mark.parametrize("size", [3, 30], ids=["few", "many"])
async def test_neighbours_are_left_as_they_were(box, size):
    """Where there are many processes, the sandbox stands still for the kill; who was stopped before is stopped afterwards."""
    stopped, first = box.start("sh", "-c", "echo $$; kill -STOP $$; echo went on")
    going, second = box.start("sh", "-c", "read line; echo fine", stdin=True)
    state = "import sys; print(open(f'/proc/{sys.argv[1]}/stat').read().rpartition(') ')[2][0])"
    deadline = time.monotonic() + 20
    while not (numbers := (await box.run("pgrep", "-f", "went on")).stdout.split()):
        assert time.monotonic() < deadline
    number = numbers[0]
    while (await box.python(state, number)).stdout != "T\n":
        assert time.monotonic() < deadline
    result = await box.run("sh", "-c", f"for i in $(seq {size}); do setsid sleep 60 & done; wait", timeout=0.5)
    assert result.exit["timed_out"]
    assert (await box.python(state, number)).stdout == "T\n"
    assert (await box.run("pgrep", "-x", "sleep")).returncode == 1
    await box.link.write_stdin(going, b"\n", 0, True)
    assert (await box.finish(going, second)).stdout == "fine\n"
    await box.link.signal(stopped, 18)
    assert (await box.finish(stopped, first)).stdout == f"{number}\nwent on\n"


async def test_a_fork_bomb_is_contained(box):
    result = await box.run("bash", "-c", "f() { f | f & }; f; sleep 60", timeout=1)
    assert result.exit["timed_out"]
    deadline = time.monotonic() + 1
    while await others(box):
        assert time.monotonic() < deadline
    assert (await box.run("true")).returncode == 0


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the machine has no gcc")
async def test_who_is_always_being_born_delays_no_end_of_another(box):
    """Whose processes come and go makes every scan one that may have missed somebody, unless they stand still."""
    await compile_hopper(box)
    hopper = await box.run("/tmp/hopper")
    begin = time.monotonic()
    for _ in range(5):
        assert (await box.run("sleep", "60", timeout=0.2)).exit["timed_out"]
    assert time.monotonic() - begin < 5
    lives = (await box.sh("cat /tmp/lives")).stdout
    while (await box.sh("cat /tmp/lives")).stdout == lives:
        assert time.monotonic() - begin < 10
    await box.link.cancel(hopper.exec_id)
    assert await others(box) == 0


async def test_the_process_limit_is_a_result_that_names_it(box):
    source = """
import subprocess, sys
try:
    while True: subprocess.Popen(["sleep", "60"])
except OSError as error:
    print(error.errno, flush=True)
sys.stdin.read()
"""
    exec_id, subscription = box.start("python3", "-c", source, stdin=True)
    async for frame in subscription:
        if frame.type == 3 and frame.stream == 1:
            break
    result = await box.run("true")
    assert (result.returncode, result.stderr) == (126, "true: not started: the sandbox's limit of 512 processes is reached\n")
    await box.link.cancel(exec_id)
    assert (await box.run("true")).returncode == 0


@pytest.fixture
async def hobbled(backend, boxes):
    """A sandbox in which commands can take limits from process 1: the filter forbids that, and this is the wall behind it."""
    with without(backend, "process 1"):
        async with boxes.make_box(backend) as made:
            yield made


async def test_the_supervisor_without_descriptors(hobbled):
    box = hobbled
    assert (await box.run("prlimit", "--pid", "1", "--nofile=64:4096")).returncode == 0
    sleepers = [box.start("sleep", "60", stdin=True) for _ in range(12)]
    await box.link.ping()
    await asyncio.gather(*(box.link.cancel(exec_id) for exec_id, _ in sleepers))
    results = await asyncio.gather(*(box.finish(*sleeper) for sleeper in sleepers))
    assert {result.returncode for result in results} == {126, 137}
    assert all("limit of 64 open files" in result.stderr for result in results if result.returncode == 126)
    assert (await box.run("true")).returncode == 0


async def test_a_supervisor_robbed_of_its_descriptors_still_kills_and_ends(hobbled):
    box = hobbled
    source = "import os, resource, time\nresource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))\nos.fork()\ntime.sleep(60)"
    result = await box.run("python3", "-c", source, timeout=0.5)
    assert result.returncode == 137
    assert result.exit["timed_out"] or "means to watch" in result.stderr
    result = await box.run("true")
    assert (result.returncode, "open files" in result.stderr) == (126, True)
    begin = time.monotonic()
    assert (await box.link.stop(5)).reason == "stopped"
    assert time.monotonic() - begin < 1


async def test_cancelling_twice_and_after_the_end(box):
    exec_id, subscription = box.start("sh", "-c", "setsid sleep 60 & sleep 60")
    await asyncio.sleep(0.05)
    await asyncio.gather(box.link.cancel(exec_id), box.link.cancel(exec_id))
    result = await box.finish(exec_id, subscription)
    assert (result.exit["cancelled"], result.exit["timed_out"], result.returncode) == (True, False, 137)
    await box.link.cancel(exec_id)
    assert await others(box) == 0


async def test_a_later_command_is_not_taken_for_an_earlier_one(box):
    """Numbers of namespaces come back; an old mark must not reach a new command."""
    old = [(await box.run("true")).exec_id for _ in range(20)]
    exec_id, subscription = box.start("sh", "-c", "sleep 0.3; echo alive")
    for name in old:
        await box.link.cancel(name)
    assert (await box.finish(exec_id, subscription)).stdout == "alive\n"


async def test_signals_reach_the_group(box):
    exec_id, subscription = box.start("sh", "-c", "trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.01; done")
    await asyncio.sleep(0.2)
    await box.link.signal(exec_id, 10)
    result = await box.finish(exec_id, subscription, done=False)
    assert (result.returncode, result.stdout) == (7, "ready\ncaught\n")
    await box.link.signal(exec_id, 10)


async def test_orphans_are_reaped(box):
    await box.sh("for i in $(seq 300); do (sh -c 'exit 0' &); done; wait")
    deadline = time.monotonic() + 5
    while "Z" in (await box.run("ps", "-eo", "stat")).stdout:
        assert time.monotonic() < deadline


async def test_no_process_can_reach_process_one(box):
    source = """
import os
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
for name in ("environ", "mem", "root/etc", "fd", "cwd/x"):
    try:
        print(name, os.listdir("/proc/1/" + name) if name in ("fd", "root/etc") else open("/proc/1/" + name).read(1))
    except OSError as error:
        print(name, error.strerror)
"""
    result = await box.python(source)
    assert result.stdout.count("Permission denied") == 5, result.stdout
    assert (await box.run("true")).returncode == 0
