"""What cases, and what they leave behind, could bring about in the verdicts on others; each was a fault once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from aviato.grading.driver import Case
from tests.supervisor.test_cases import TOKEN, TOKEN_INSIDE, WINDOW, make, raw, reasons, run, starts, verdicts

pytestmark = pytest.mark.anyio

LEAVES = """
import os, time
while not os.path.exists('/workspace/go'): time.sleep(0.01)
os._exit(0)
"""
LATER_END = """
import os, threading, time
open('/workspace/begun', 'w').close()
time.sleep(0.5)  # for the one that stops process 1 now
threading.Thread(target=lambda: (time.sleep(0.3), os._exit(0))).start()
"""
FLOOD = """
import fcntl
fcntl.fcntl(records, 1031, 1 << 20)  # F_SETPIPE_SZ
piece = (token + b'%8d' % 1 + b'x') * 99
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        while True: os.write(records, piece)
time.sleep(0.5)
os._exit(0)
"""


def supervisor_of(name):
    """Process 1 of the sandbox in which this is somebody's whole command line."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == name:
                return int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            pass
    return None


def has_dead_child(pid):
    """Whether one waits to be reaped."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any(Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2][0] == "Z" for child in children)


async def test_the_number_of_a_namespace_that_comes_back_kills_no_new_process(box, boxes):
    for turn in range(6):
        await box.sh("rm -f go")
        spec = make(boxes, "", LEAVES, "", timeout=10)
        subscription = box.link.subscribe(spec, spec.exec_id)
        for _ in range(turn % 3):
            await box.run("true")
        await box.run("touch", "go")
        result = await asyncio.wait_for(box.finish(spec.exec_id, subscription), 15)
        assert (result.returncode, reasons(verdicts(result))) == (0, ["ended_early", "passed", 2])


async def test_a_record_that_is_read_after_the_end_begins_no_case(box, boxes):
    exec_id, sleeping = box.start("sleep", "77.125")
    while (pid := supervisor_of(b"sleep\x0077.125\0")) is None:
        await asyncio.sleep(0.01)
    spec = make(boxes, "", LATER_END, "", timeout=10)
    subscription = box.link.subscribe(spec, spec.exec_id)
    await box.sh("until [ -e begun ]; do sleep 0.01; done")
    os.kill(pid, signal.SIGSTOP)
    try:
        # The record and the end come while nobody reads.
        deadline = time.monotonic() + 5
        while not has_dead_child(pid) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
    finally:
        os.kill(pid, signal.SIGCONT)
    result = await asyncio.wait_for(box.finish(spec.exec_id, subscription), 15)
    assert reasons(verdicts(result)) == ["passed", "passed", 2]
    await box.link.cancel(exec_id)
    await box.finish(exec_id, sleeping)


async def test_a_limit_that_is_reached_at_the_end_is_not_the_next_ones(box, boxes):
    for turn in range(20):
        busy = f"import time; end = time.monotonic() + {0.0485 + turn / 10000}\nwhile time.monotonic() < end: pass"
        _, found = await run(box, make(boxes, "", Case(busy, "a", 0.05), Case("", "b", 5), timeout=10))
        assert found[1]["passed"], reasons(found)


async def test_what_is_recorded_after_the_last_verdict_counts_for_nothing(box, boxes):
    script = f"echo x >> starts; printf '{TOKEN}       5begin{TOKEN}       6passed{TOKEN}       5begin' >&3; sleep 1"
    result, found = await run(box, raw(boxes, script, timeout=5))
    assert (result.exit["timed_out"], reasons(found), len(await starts(box))) == (False, ["passed", 1], 1)


async def test_a_program_that_is_gone_before_it_is_told_anything(box, boxes):
    for _ in range(20):
        result, found = await run(box, raw(boxes, "exec <&- 4<&-; exit 7", timeout=5))
        assert (result.error, result.returncode, found) == (None, 7, [])


async def test_verdicts_wait_for_their_reader_where_each_ends_its_process(box, boxes):
    spec = make(boxes, "", *["import os; os.write(1, b'x' * 60000); os._exit(0)"] * 40)
    subscription = box.link.subscribe(spec, spec.exec_id)
    result = boxes.Result(spec.exec_id)
    while len(result.streams[1]) < WINDOW:
        result.take(await asyncio.wait_for(anext(subscription), 5))
    await box.run("sleep", "1")
    for frame in subscription.drain():
        result.take(frame)
    assert len(result.streams[1]) < WINDOW + 70_000
    await box.link.cancel(spec.exec_id)


@pytest.mark.parametrize(
    ("failing", "other"),
    [
        ("import io, sys; sys.stdout = io.StringIO(); 1 / 0", "print('mine')"),
        ("import sys; sys.stdout.close(); 1 / 0", "print('mine')"),
        ("import os; os.dup2(os.open('/dev/null', 1), 1); 1 / 0", "print('mine')"),
        ("import signal; signal.setitimer(0, 0.2); 1 / 0", "import time; time.sleep(0.4); print('mine')"),
        ("import os; os.chdir('/'); os.environ['A'] = 'x'; 1 / 0", "import os; print(os.getenv('A', 'mine'))"),
        ("import builtins; builtins.len = lambda _: 7; 1 / 0", "assert len([]) == 0; print('mine')"),
    ],
    ids=["stdout", "stdout closed", "descriptor", "timer", "environment", "builtins"],
)
async def test_what_a_failing_case_has_changed_stays_with_it(failing, other, box, boxes):
    _, found = await run(box, make(boxes, "", failing, other))
    assert found[1]["passed"] and found[1]["stdout"] == "mine\n", found[1]


async def test_a_fork_of_the_code_that_returns_speaks_for_nobody(box, boxes):
    code = "import os, time\nif os.fork() == 0: time.sleep(0.1)\ndef double(n): return n * n"
    _, found = await run(box, make(boxes, code, "assert double(2) == 4", "time.sleep(0.3); assert double(3) == 6"))
    assert reasons(found) == ["passed", "assertion", 2]


async def test_endless_records_of_those_left_behind_hold_up_nothing(box, boxes):
    result, found = await run(box, make(boxes, "", TOKEN_INSIDE + FLOOD, "", timeout=8))
    assert reasons(found) == ["ended_early", "passed", 2]
    assert not result.exit["timed_out"]


async def test_a_stop_of_process_1_is_no_time_of_a_case(box, boxes):
    begins = (
        "import os, time\nopen('/workspace/begun', 'w').close()\nwhile not os.path.exists('/workspace/go'): time.sleep(0.01)"
    )
    spec = make(boxes, "", Case(begins, "a", 4.0), "", timeout=60)
    subscription = box.link.subscribe(spec, spec.exec_id)
    await box.sh("until [ -e begun ]; do sleep 0.01; done")
    os.kill(box.process_1, signal.SIGSTOP)
    try:
        time.sleep(5.5)
    finally:
        os.kill(box.process_1, signal.SIGCONT)
    await box.run("touch", "go")
    result = await asyncio.wait_for(box.finish(spec.exec_id, subscription), 30)
    assert reasons(verdicts(result)) == ["passed", "passed", 2]
