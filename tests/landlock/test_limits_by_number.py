"""Limits, priorities and processors of whoever has the same uid: a command changes those of its own sandbox alone."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import threading
import time

import pytest

from aviato.server.backends.landlock import probe
from aviato.server.backends.local import syscalls
from tests.attacks.programs import EACH, LIMITS_BY_NUMBER, PAGES_BY_NUMBER, PRELUDE, TURNS_BY_NUMBER, of
from tests.attacks.test_ordinary_programs import test_of_oneself_by_c, test_of_oneself_by_python, test_of_oneself_by_the_shell
from tests.landlock.victims import neighbour, subreaper_of
from tests.real_backend import open_backend

__all__ = ["test_of_oneself_by_c", "test_of_oneself_by_python", "test_of_oneself_by_the_shell"]

pytestmark = [pytest.mark.anyio, pytest.mark.attack]
CALLS = LIMITS_BY_NUMBER | TURNS_BY_NUMBER
FAMILY = "limits by number"


async def attempts(box, number, calls=None):
    result = await box.python(PRELUDE + EACH, of(number, CALLS if calls is None else calls))
    assert result.returncode == 0, result
    return ast.literal_eval(result.stdout)


def refused(calls=None):
    return dict.fromkeys(CALLS if calls is None else calls, "EPERM")


async def test_a_process_of_the_same_uid(backend, boxes, box, without):
    with neighbour(backend, box) as process:
        calls = CALLS | PAGES_BY_NUMBER
        assert await attempts(box, process.pid, calls) == refused(calls)
    with without(families=(FAMILY,)):
        async with boxes.make_box(backend) as open_one:
            with neighbour(backend, open_one) as process:
                assert await attempts(open_one, process.pid) == dict.fromkeys(CALLS, "done")


async def test_a_process_that_is_to_be_killed(backend, boxes, box, without):
    """The kernel kills who has used up his limit of processor time."""
    rob = "import resource, sys; resource.prlimit(int(sys.argv[1]), resource.RLIMIT_CPU, (0, 0))"
    busy = ("/bin/sh", "-c", "while :; do :; done")
    with neighbour(backend, box, *busy) as process:
        assert "PermissionError" in (await box.python(rob, str(process.pid))).stderr
        used = os.sysconf("SC_CLK_TCK") // 10
        deadline = time.monotonic() + 60
        while ticks(process.pid) < used:
            assert process.poll() is None and time.monotonic() < deadline
            await asyncio.sleep(0.02)
    with without(families=(FAMILY,)):
        async with boxes.make_box(backend) as open_one:
            with neighbour(backend, open_one, *busy) as process:
                assert (await open_one.python(rob, str(process.pid))).returncode == 0
                assert process.wait(20) == -signal.SIGKILL


def ticks(pid):
    with open(f"/proc/{pid}/stat") as file:
        return sum(map(int, file.read().rpartition(") ")[2].split()[11:13]))


async def test_the_supervisor_and_a_subreaper(backend, boxes, box, inside, without):
    async def both(one):
        exec_id, subscription = one.start("sleep", "88.5")
        for number in (inside(one).supervisor, subreaper_of(inside(one), "88.5")):
            yield await attempts(one, number)
        await one.link.cancel(exec_id)
        await one.finish(exec_id, subscription)

    assert [said async for said in both(box)] == [refused()] * 2
    with without(families=(FAMILY,)):
        async with boxes.make_box(backend) as open_one:
            assert [said async for said in both(open_one)] == [dict.fromkeys(CALLS, "done")] * 2


async def test_ones_own_subreaper(box):
    result = await box.python(f"import os\nsubreaper = os.getppid()\n{PRELUDE}{EACH}", of("subreaper", CALLS))
    assert ast.literal_eval(result.stdout) == refused()


async def test_another_sandbox(backend, boxes, box, inside):
    async with boxes.make_box(backend) as other:
        exec_id, subscription = other.start("sleep", "99.5")
        subreaper_of(inside(other), "99.5")
        for number in (inside(other).named("99.5")[0], inside(other).supervisor):
            assert await attempts(box, number) == refused()
        await other.link.cancel(exec_id)
        await other.finish(exec_id, subscription)


GROUPS = {
    "setpriority of a group": "call('setpriority', 1, 0, 19)",
    "setpriority of a user": "call('setpriority', 2, 0, 19)",
    "ioprio_set of a group": "call('ioprio_set', 2, 0, 2 << 13 | 7)",
    "ioprio_set of a user": "call('ioprio_set', 3, 0, 2 << 13 | 7)",
}


async def test_groups(backend, boxes, box, without):
    assert ast.literal_eval((await box.python(PRELUDE + EACH, repr(GROUPS))).stdout) == refused(GROUPS)
    with without(families=("limits of groups",)):
        async with boxes.make_box(backend) as open_one:
            # Not of the user: as an ordinary one that would be all that he has.
            calls = {name: source for name, source in GROUPS.items() if "group" in name}
            said = ast.literal_eval((await open_one.python(PRELUDE + EACH, repr(calls))).stdout)
            assert said == dict.fromkeys(calls, "done")


async def test_another_command_of_the_sandbox(box, inside):
    """Commands of one sandbox trust each other."""
    exec_id, subscription = box.start("sleep", "66.5")
    subreaper_of(inside(box), "66.5")
    assert await attempts(box, inside(box).named("66.5")[0]) == dict.fromkeys(CALLS, "done")
    await box.link.cancel(exec_id)
    await box.finish(exec_id, subscription)


FLOOD = "import os\nwhile True: os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))"
MANY = """
import os, threading
def work():
    for _ in range(100): os.sched_setaffinity(threading.get_native_id(), os.sched_getaffinity(0))
threads = [threading.Thread(target=work) for _ in range(20)]
[one.start() for one in threads], [one.join() for one in threads]
print("all")
"""


async def test_many_at_once(box):
    """Process 1 answers one after the other, and all else meanwhile."""
    exec_id, subscription = box.start("python3", "-I", "-c", FLOOD)
    assert (await box.python(MANY)).stdout == "all\n"
    assert (await box.python("import os; os.setpriority(os.PRIO_PROCESS, os.getpid(), 19)")).returncode == 0
    await box.link.cancel(exec_id)
    assert (await box.finish(exec_id, subscription)).returncode == 137


async def test_where_nobody_can_be_asked(boxes, monkeypatch):
    """Then only 0 means oneself."""
    monkeypatch.setattr(probe, "may_ask", lambda: False)
    async for backend in open_backend("landlock"):
        [check] = [check for check in await backend.probe() if check.name == FAMILY]
        assert not check.ok and not check.required and "number 0" in check.detail
        async with boxes.make_box(backend) as box:
            usual = [name for name in CALLS if "upper half" not in name]
            assert await attempts(box, 0, {name: CALLS[name] for name in usual}) == dict.fromkeys(usual, "done")
            result = await box.python("import os; os.setpriority(os.PRIO_PROCESS, os.getpid(), 19)")
            assert "PermissionError" in result.stderr
            with neighbour(backend, box) as process:
                assert await attempts(box, process.pid) == refused()


def test_whether_somebody_can_be_asked():
    """Not where another filter asks already. Filters are a thread's own, and those that it starts have them too."""
    assert probe.may_ask()
    said = []

    def under_another():
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        other = syscalls.load_filter(probe.ALLOW_ALL, listening=True)
        said.append(probe.may_ask())
        os.close(other)

    thread = threading.Thread(target=under_another)
    thread.start()
    thread.join()
    assert said == [False]
