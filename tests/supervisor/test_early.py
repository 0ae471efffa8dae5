"""Process 1 before Python, and where Python takes over: nobody outside may be able to tell which of them it was.

Each test runs twice, with sandboxes that begin in compiled code and with those that Python has from the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviato.server.backends.base import MountedFile
from aviato.server.supervisor import prepared
from aviato.wire.frames import FrameType
from aviato.wire.ids import new_exec_id
from tests.faults.figures import held
from tests.real_backend import EACH_WAY, open_by

pytestmark = pytest.mark.anyio

POLL, EPOLL = {"x86_64": ({"7", "271"}, {"232", "281"}), "aarch64": ({"73"}, {"22"})}.get(os.uname().machine, (set(), set()))
"""Numbers of the system calls by which compiled code waits, and Python."""
SOME_BYTES = 16 << 10
FEW_BYTES = 3 * os.sysconf("SC_PAGE_SIZE")
"""A page of its own, one for the errors of the C library, and one for the commands that are over."""


@pytest.fixture(params=EACH_WAY, scope="module")
async def backend(request, anyio_backend):
    async for opened in open_by(request.param):
        yield opened


def is_early(box):
    """Whether it is compiled code that waits in its process 1; None where that cannot be seen, or neither waits."""
    try:
        number = Path(f"/proc/{box.process_1}/syscall").read_text().split()[0]
    except PermissionError:
        return None
    return None if number not in POLL | EPOLL else number in POLL


async def rests(box, early):
    """Wait until it is at rest in the one or in the other; where sandboxes have Python from the start there is no choice."""
    if not POLL or os.geteuid() != 0:
        return
    async with asyncio.timeout(5):
        while is_early(box) is not (early and box.backend._native):
            await asyncio.sleep(0.01)


async def test_plain_commands_are_run(box):
    for number in range(200):
        result = await box.run("sh", "-c", f"echo out {number}; echo err >&2; exit {number % 7}")
        assert (result.stdout, result.stderr, result.returncode) == (f"out {number}\n", "err\n", number % 7)
        assert [frame.type for frame in result.frames if frame.type != FrameType.DATA] == [
            FrameType.ACCEPTED,
            FrameType.STARTED,
            FrameType.EXIT,
        ]


async def confirmed_at_the_end(box, *command, **options):
    """As `run`, with nothing confirmed before that."""
    exec_id, subscription = box.start(*command, **options)
    return await asyncio.wait_for(box.finish(exec_id, subscription, acknowledge=False), 30)


async def test_what_is_plain_needs_no_python(box):
    for _ in range(140):
        await confirmed_at_the_end(box, "sh", "-c", "echo a; echo b >&2; echo c > file", cwd="/tmp", env={"A": "b"}, timeout=10)
    await asyncio.sleep(0.25)  # Twice the time after which what they have left on disk is looked at.
    await box.link.ping()
    await rests(box, early=True)
    assert (await box.link.stop(1)).reason == "stopped"


async def held_at_rest(make_box):
    """Bytes of a sandbox that waits, and of one in which a command sleeps; None where Python has come in."""
    async with make_box() as idle, make_box() as working, make_box(), make_box():
        for box in (idle, working):
            assert (await box.run("true")).returncode == 0
        exec_id, _ = working.start("sleep", "60")
        for _ in range(20):
            # Half a second in, all looks at what a command may do are over, or find that it did nothing.
            await asyncio.sleep(0.5)
            held_bytes = [held(box.process_1).memory_bytes for box in (idle, working)]
            if not (is_early(idle) and is_early(working)) or max(held_bytes) <= FEW_BYTES:
                break
        early = is_early(idle) and is_early(working)
        await working.link.cancel(exec_id)
        return held_bytes if early else None


async def test_a_sandbox_that_waits_holds_few_pages(make_box, backend):
    """Of what its template has written to before and afterwards, too."""
    if not POLL or os.geteuid() != 0 or not backend._native:
        pytest.skip("a supervisor's memory is shown to root only, and with Python it is much")
    # On a busy machine a command may have taken so much time at its start that somebody has to look, and holds what that took.
    found = []
    while len(found) < 8 and not any(each and max(each) <= FEW_BYTES for each in found):
        found.append(await held_at_rest(make_box))
    assert any(each and max(each) <= FEW_BYTES for each in found), found


UNUSUAL = {
    "input": lambda box: box.run("cat", stdin=b"in\n"),
    "a terminal": lambda box: box.run("sh", "-c", "tty", terminal=(80, 24)),
    "much output": lambda box: box.run("head", "-c", "300000", "/dev/zero"),
    "a long one": lambda box: box.run("sh", "-c", "echo a; sleep 0.3; echo b"),
    "too late": lambda box: box.run("sh", "-c", "echo a; exec sleep 60", timeout=0.05),
    "someone left behind": lambda box: box.run("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo a"),
    "a pipe left open": lambda box: box.run("sh", "-c", "sleep 60 & echo a"),
    "not there": lambda box: box.run("nothing-of-that-name"),
    "a directory": lambda box: box.run("/etc"),
    "no directory": lambda box: box.run("true", cwd="/nowhere"),
    "not executable": lambda box: box.run("/etc/passwd"),
    "an empty word": lambda box: box.run(""),
    "a null byte": lambda box: box.run("echo", "a\0b"),
    "no environment": lambda box: box.run("true", env={"": "x"}),
    "a long word": lambda box: box.run("sh", "-c", "echo ${#1}", "sh", "x" * 100_000),
    "half a character": lambda box: box.run("printf", "%s", "\udcff"),
    "a surrogate": lambda box: box.run("printf", "%s", "\ud800"),
    "many variables": lambda box: box.run("sh", "-c", "env | grep -c ^V", env={f"V{i}": "" for i in range(3000)}),
    "killed": lambda box: box.run("sh", "-c", "kill -9 $$"),
    "of a signal": lambda box: box.run("sh", "-c", "kill -USR1 $$"),
    "its own tracer": lambda box: box.run(
        "python3", "-I", "-c", "import ctypes, os, signal\nctypes.CDLL(None).ptrace(0)\nos.kill(os.getpid(), signal.SIGSTOP)"
    ),
}
VARIES = ("duration_seconds", "cpu_seconds", "max_rss_bytes")


def told(result):
    """All that does not vary."""
    end = result.exit and {key: value for key, value in result.exit.items() if key not in VARIES}
    return end, result.error, result.stdout, result.stderr


@pytest.mark.parametrize("name", UNUSUAL)
async def test_all_others_are_as_in_python(pair, boxes, name):
    """And the plain ones after them."""
    said = []
    for backend in pair:
        async with boxes.make_box(backend, environment={"OF": "the sandbox"}) as box:
            await box.run("true")
            unusual = await UNUSUAL[name](box)
            after = await box.run("sh", "-c", "echo $OF")
            assert after.stdout == "the sandbox\n"
            said.append(json.dumps([told(unusual), told(after)], sort_keys=True, default=str))
    assert said[0] == said[1]


async def test_output_goes_on_where_python_takes_over(box):
    result = await box.run("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; echo -$i >&2; sleep 0.04; done")
    assert result.stdout == "".join(f"{i}\n" for i in range(1, 9))
    assert result.stderr == "".join(f"-{i}\n" for i in range(1, 9))
    assert result.exit["duration_seconds"] > 0.3
    await rests(box, early=False)


async def test_times_count_from_the_begin(box):
    begin = time.monotonic()
    result = await box.run("sleep", "60", timeout=0.3)
    assert result.exit["timed_out"] and result.returncode == 137
    assert 0.29 < result.exit["duration_seconds"] < time.monotonic() - begin < 2


async def test_what_comes_in_the_middle_of_a_command(box):
    exec_id, subscription = box.start("sh", "-c", "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.01; done")
    await asyncio.wait_for(subscription.wait(20), 5)
    other = await box.run("echo", "beside")
    await box.link.signal(exec_id, 10)
    result = await box.finish(exec_id, subscription)
    assert (other.stdout, result.stdout, result.returncode) == ("beside\n", "ready\ncaught\n", 3)


async def test_many_at_once(box):
    all_of_them = await asyncio.gather(*(box.run("sh", "-c", f"echo {i}; sleep 0.0{i % 10}") for i in range(40)))
    assert [result.stdout for result in all_of_them] == [f"{i}\n" for i in range(40)]


async def test_a_cancelled_one_is_killed_whole(box):
    exec_id, subscription = box.start("sh", "-c", "setsid sleep 60 & sleep 60")
    await asyncio.wait_for(subscription.wait(), 5)
    await box.link.cancel(exec_id)
    result = await box.finish(exec_id, subscription)
    assert (result.exit["cancelled"], result.returncode) == (True, 137)


async def test_an_id_runs_once(box):
    exec_id = new_exec_id()
    first, subscription = box.start("sh", "-c", "echo x | tee -a /tmp/once", exec_id=exec_id)
    result = await box.finish(first, subscription, acknowledge=False, done=False)
    again = await box.finish(
        *box.start("sh", "-c", "echo x | tee -a /tmp/once", exec_id=exec_id), acknowledge=False, done=False
    )
    other = await box.finish(*box.start("true", exec_id=exec_id), acknowledge=False, done=False)
    assert (result.stdout, again.stdout) == ("x\n", "x\n")
    assert again.exit == result.exit
    assert other.error["reason"] == "request_id_conflict"
    box.link.acknowledge(exec_id, 2, 0, True)
    over = await box.finish(*box.start("sh", "-c", "echo x | tee -a /tmp/once", exec_id=exec_id), acknowledge=False, done=False)
    assert over.error["code"] == "EXEC_NOT_FOUND"
    assert (await box.run("cat", "/tmp/once")).stdout == "x\n"


async def test_a_quiet_moment_leaves_all_that_is_needed(make_box):
    """Compiled code gives back what it does not need in order to wait."""
    async with make_box(environment={"OWN": "own"}, working_dir="/tmp") as box:
        confirmed, kept = new_exec_id(), new_exec_id()
        await box.finish(*box.start("echo", "confirmed", exec_id=confirmed), acknowledge=False)

        async def asked(exec_id):
            words = ["sh", "-c", "echo $OWN $GIVEN; head -c 9000 /dev/zero; pwd >&2"]
            started = box.start(*words, exec_id=exec_id, env={"GIVEN": "given"})
            return await box.finish(*started, acknowledge=False, done=False)

        async def gives_back():
            """Some pages of those that a command has taken."""
            await box.finish(*box.start("true"), acknowledge=False)
            less, deadline = held(box.process_1).memory_bytes - SOME_BYTES, time.monotonic() + 2
            while held(box.process_1).memory_bytes > less and time.monotonic() < deadline:
                await asyncio.sleep(0.02)
            return held(box.process_1).memory_bytes <= less

        first = await asked(kept)
        if POLL and os.geteuid() == 0 and box.backend._native:
            # On a busy machine it may have done so before anybody looked.
            assert any([await gives_back() for _ in range(3)]) and is_early(box)
        again = await asked(kept)
        assert (again.stdout, again.stderr, again.exit) == (first.stdout, first.stderr, first.exit)
        assert (again.stdout, again.stderr) == ("own given\n" + "\0" * 9000, "/tmp\n")
        over = await box.finish(*box.start("true", exec_id=confirmed), acknowledge=False, done=False)
        assert over.error["code"] == "EXEC_NOT_FOUND"
        assert (await box.run("sh", "-c", "echo $OWN $PWD")).stdout == "own /tmp\n"


async def test_a_later_server_finds_all_of_it(box, backend, boxes):
    exec_ids = []
    for number in range(3):
        exec_id, subscription = box.start("echo", str(number))
        await box.finish(exec_id, subscription, acknowledge=False, done=False)
        exec_ids.append(exec_id)
    box.link.acknowledge(exec_ids[1], 2, 0, True)
    running, subscription = box.start("sh", "-c", "echo begun; sleep 0.3; echo over")
    await asyncio.wait_for(subscription.wait(6), 5)
    await box.link.ping()
    box.link.detach()
    link = await backend.reconnect(box.id)
    later = boxes.Box(backend, link, box.id)
    assert set(link.hello["execs"]) == {exec_ids[0], exec_ids[2], running}
    assert link.hello["execs"][exec_ids[0]]["state"] == "ended"
    last = await later.finish(exec_ids[2], link.subscribe(None, exec_ids[2]))
    assert (last.stdout, last.returncode) == ("2\n", 0)
    result = await later.finish(running, link.subscribe(None, running))
    assert (result.stdout, result.returncode) == ("begun\nover\n", 0)


async def test_a_server_that_goes_while_nothing_runs(box, backend, boxes):
    assert (await box.run("true")).returncode == 0
    box.link.detach()
    link = await backend.reconnect(box.id)
    later = boxes.Box(backend, link, box.id)
    assert (await later.run("echo", "still here")).stdout == "still here\n"


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(("limit", "reason"), [("idle_timeout_seconds", "idle"), ("max_lifetime_seconds", "lifetime")])
async def test_its_time_is_over(make_box, limit, reason, used):
    async with make_box(**{limit: 0.5}) as box:
        begin = time.monotonic()
        if used:
            await box.run("true")
        assert (await asyncio.wait_for(box.link.wait_ended(), 5)).reason == reason
        assert 0.3 < time.monotonic() - begin < 2


async def test_use_puts_the_end_off(make_box):
    async with make_box(idle_timeout_seconds=0.6) as box:
        begin = used = time.monotonic()
        while used - begin < 1.4:
            used = time.monotonic()
            await box.run("true")
            await asyncio.sleep(0.1)
        assert (await asyncio.wait_for(box.link.wait_ended(), 5)).reason == "idle"
        assert time.monotonic() - used >= 0.6 and time.monotonic() - begin > 2


async def test_an_orphan_ends(make_box, backend):
    async with make_box(orphan_timeout_seconds=0.4) as box:
        await box.run("true")
        box.link.detach()
        async with asyncio.timeout(5):
            while backend.how_ended(box.id) != "orphaned":
                await asyncio.sleep(0.02)


async def test_short_commands_cannot_fill_the_disk(make_box):
    """Each is over before anybody looks; what they leave together is not."""
    async with make_box(limits={"disk": 8 << 20}) as box:
        for number in range(60):
            result = await box.run("sh", "-c", f"head -c 2000000 /dev/zero > {number}; sleep 0.02")
            if result.returncode == 137:
                break
        assert "limit of 8 MiB of disk" in result.stderr
        assert number < 30


async def test_those_who_stay_are_watched(make_box):
    async with make_box(limits={"processes": 20}) as box:
        result = await box.run("sh", "-c", "for i in 1 2 3 4 5; do sleep 60 >/dev/null 2>&1 & done; echo started")
        assert result.stdout == "started\n"
        await rests(box, early=False)
        assert (await box.run("sh", "-c", "ps ax | grep -c '[s]leep 60'")).stdout == "5\n"
        await box.link.cancel_all()
        assert (await box.run("sh", "-c", "ps ax | grep -c '[s]leep 60'")).stdout == "0\n"


async def begun(box, *command, **options):
    """A command, once it has started, and what is needed for its end."""
    started = box.start(*command, **options)
    await asyncio.wait_for(started[1].wait(), 5)
    return started


async def test_who_only_waits_needs_no_python(box):
    waiting = await begun(box, "sleep", "60")
    await asyncio.sleep(0.5)  # Five looks.
    await box.link.ping()
    await rests(box, early=True)
    await box.link.cancel(waiting[0])
    assert (await box.finish(*waiting)).exit["cancelled"]


WORKS = {
    "children": "os.fork() or time.sleep(60)\nos.fork()",
    "orphans": "if os.fork() == 0:\n os.fork() and os._exit(0)\n time.sleep(60)\nos.wait()",
    "threads": "import threading; threading.Thread(target=time.sleep, args=(60,)).start()",
    "files": "f = open('f', 'w')",
    "nameless files": "f = os.memfd_create('f')",
    "sockets": "import socket; s = socket.socketpair()",
    "memory": "x = b'x' * 40_000_000",
    "the processor": "while time.process_time() < 0.15: pass",
    "on disk": "open('f', 'wb').write(b'x' * 2_000_000)",
}


@pytest.mark.parametrize("what", WORKS)
async def test_who_has_more_is_watched(box, what):
    working = await begun(box, "python3", "-I", "-S", "-c", f"import os, time\n{WORKS[what]}\ntime.sleep(60)")
    await rests(box, early=False)
    await box.link.cancel(working[0])
    assert (await box.finish(*working)).exit["cancelled"]


LATER = {
    "disk": "while True:\n open(str(time.monotonic_ns()), 'wb').write(b'x' * 1_000_000)\n time.sleep(0.01)",
    "memory": "x = []\nwhile True: x.append(b'x' * 1_000_000); time.sleep(0.001)",
}


@pytest.mark.parametrize("limit", LATER)
async def test_who_begins_late_is_stopped_too(make_box, limit):
    async with make_box(limits={"disk": 20 << 20, "memory": 1 << 30}) as box:
        source = f"import os, time\ntime.sleep(0.4)\n{LATER[limit]}"
        exec_id, subscription = box.start("python3", "-I", "-S", "-c", source, timeout=30)
        result = await asyncio.wait_for(box.finish(exec_id, subscription), 40)
        assert result.returncode == 137 and not result.exit["timed_out"], (result.exit, result.stderr)


async def test_its_memory_is_told(box):
    result = await box.run("python3", "-I", "-c", "x = b'x' * 50_000_000")
    assert 50_000_000 < result.exit["max_rss_bytes"] < 80_000_000
    assert 0 < result.exit["cpu_seconds"] < 5


async def test_environment_and_directory(make_box):
    async with make_box(environment={"BOTH": "sandbox", "OF": "sandbox", "EMPTY": ""}, working_dir="deep") as box:
        await box.link.make_directory("/workspace/deep")
        result = await box.run("sh", "-c", "pwd; echo $BOTH $OF ${EMPTY-unset} $MINE", env={"BOTH": "command", "MINE": "a=b"})
        assert result.stdout == "/workspace/deep\ncommand sandbox a=b\n"
        assert (await box.run("pwd", cwd="/tmp")).stdout == "/tmp\n"
        await box.sh("mkdir bin; printf '#!/bin/sh\\necho mine' > bin/tool; chmod +x bin/tool")
        assert (await box.run("tool", env={"PATH": "/nowhere:bin"})).stdout == "mine\n"
        assert (await box.run("bin/tool")).stdout == "mine\n"
        assert (await box.run("tool", cwd="bin", env={"PATH": ""})).stdout == "mine\n"


async def test_control_groups_and_files_of_the_caller_go_through_python(make_box):
    async with make_box(mounted_files=(MountedFile(path="/data/f", content=b"mine"),)) as box:
        assert (await box.run("cat", "/data/f")).stdout == "mine"
        await rests(box, early=False)


SPEC = {"command": ["true"], "environment": {}, "working_dir": None, "stdin": False, "timeout_seconds": 1.0, "main": False}


def a_request(form: bytes, exec_id: str) -> bytes:
    spec = {"exec_id": exec_id, **SPEC}
    return form + json.dumps({"op": "exec", "exec_id": exec_id, "stdout": 0, "stderr": 0, "spec": spec}).encode()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.binary(max_size=200),
    numbers=st.tuples(*[st.integers(0, 40) | st.integers(0, 2**32 - 1)] * 4),
    seconds=st.floats(),
    right_size=st.booleans(),
)
async def test_it_survives_any_request(make_box, text, numbers, seconds, right_size):
    """Only its server can send such, which does not; a mistake there must not be the end of a sandbox."""
    async with make_box() as box:
        await box.run("true")
        size = 24 + len(text) if right_size else numbers[0]
        form = struct.pack("=IIIId", size, *numbers[1:], seconds) + text
        box.link._send(FrameType.REQUEST, a_request(form, new_exec_id()), stream=prepared.Form.COMMAND, channel=900)
        await asyncio.wait_for(box.link.ping(), 10)
        assert (await box.run("echo", "fine")).stdout == "fine\n"


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 100, -1])
async def test_a_request_in_two_pieces(box, cut):
    from aviato.wire.frames import encode

    exec_id = new_exec_id()
    subscription = box.link.subscribe(None, exec_id)  # For its channel: such an id is unknown.
    result = await box.finish(exec_id, subscription, done=False)
    assert result.error["code"] == "EXEC_NOT_FOUND"
    await box.run("true")
    channel = box.link._open(_Collector())
    spec = _spec(exec_id)
    frame = encode(FrameType.REQUEST, a_request(prepared.command(spec), exec_id), stream=prepared.Form.COMMAND, channel=channel)
    box.link._transport.write(frame[:cut])
    await asyncio.sleep(0.05)
    box.link._transport.write(frame[cut:])
    collector = box.link._channels[channel]
    async with asyncio.timeout(5):
        await collector.over.wait()
    assert collector.types == [FrameType.ACCEPTED, FrameType.STARTED, FrameType.EXIT]


def _spec(exec_id):
    from aviato.server.link.link import ExecSpec

    return ExecSpec(exec_id=exec_id, **SPEC)


class _Collector:
    """A channel of its own."""

    def __init__(self):
        self.types = []
        self.over = asyncio.Event()

    def frame(self, frame):
        self.types.append(frame.type)
        if frame.type in (FrameType.EXIT, FrameType.ERROR):
            self.over.set()
            return True
        return False

    def gone(self, ended):
        self.over.set()


async def unread(box, *command):
    """As `box.run`, of a command that nobody reads along; and how often something came from process 1 meanwhile."""
    spec = replace(_spec(new_exec_id()), command=list(command), timeout_seconds=None)
    heard = box.link.heard
    subscription = box.link.subscribe(spec, spec.exec_id, read_along=False)
    result = await asyncio.wait_for(box.finish(spec.exec_id, subscription), 30)
    return result, box.link.heard - heard


async def test_what_a_command_says_that_nobody_reads_along_comes_with_its_end(box):
    times = []
    for _ in range(10):
        result, heard = await unread(box, "sh", "-c", "echo a; sleep 0.02; echo b >&2; sleep 0.02; exit 3")
        assert (result.stdout, result.stderr, result.returncode) == ("a\n", "b\n", 3)
        types = [FrameType.ACCEPTED, FrameType.STARTED, FrameType.DATA, FrameType.DATA, FrameType.EXIT]
        assert [frame.type for frame in result.frames] == types
        times.append(heard)
    assert not box.backend._native or 1 in times  # On a busy machine it may have taken longer.


@pytest.mark.parametrize("command", ["exec sleep 60", "sleep 0.04; head -c 30000 /dev/zero; sleep 60"])
async def test_it_is_told_in_time_that_it_has_begun_though_nobody_reads_along(box, command):
    spec = replace(_spec(new_exec_id()), command=["sh", "-c", command], timeout_seconds=None)
    subscription, begin = box.link.subscribe(spec, spec.exec_id, read_along=False), time.monotonic()
    found = []
    while FrameType.STARTED not in found or ("head" in command and FrameType.DATA not in found):
        await asyncio.wait_for(subscription.wait(), 5)
        found += [frame.type for frame in subscription.drain()]
    assert found[:2] == [FrameType.ACCEPTED, FrameType.STARTED] and time.monotonic() - begin < 2
    await box.link.cancel(spec.exec_id)


@pytest.mark.parametrize(
    "command", ["head -c 300000 /dev/zero", "echo a; sleep 0.3; echo b", "sleep 0.01 & echo a", "sleep 60 & echo a"]
)
async def test_nothing_is_lost_of_what_nobody_reads_along(box, command):
    """Whatever makes Python take over in its middle."""
    result, _ = await unread(box, "sh", "-c", command)
    types = [frame.type for frame in result.frames]
    assert types[:2] == [FrameType.ACCEPTED, FrameType.STARTED] and types.count(FrameType.STARTED) == 1
    assert result.stdout == ("\0" * 300_000 if "head" in command else "a\nb\n" if "sleep 0.3" in command else "a\n")


async def test_another_one_beside_what_nobody_reads_along(box):
    task = asyncio.create_task(unread(box, "sh", "-c", "echo a; sleep 0.06; echo b"))
    await asyncio.sleep(0.02)
    assert (await box.run("echo", "beside")).stdout == "beside\n"
    result, _ = await task
    types = [frame.type for frame in result.frames]
    assert types[:2] == [FrameType.ACCEPTED, FrameType.STARTED] and result.stdout == "a\nb\n"


async def test_a_server_that_does_not_read(box, boxes):
    """What the socket does not take is kept."""
    wanted = "x" * 60_000
    for _ in range(3):
        transport = box.link._transport
        transport.pause_reading()
        started = [box.start("sh", "-c", f"head -c {len(wanted)} /dev/zero | tr '\\0' x") for _ in range(1)]
        await asyncio.sleep(0.1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(box.link.ping(), 0.05)
        transport.resume_reading()
        for exec_id, subscription in started:
            assert (await box.finish(exec_id, subscription, acknowledge=False)).stdout == wanted


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({}, True),
        ({"command": ["a", "b c", "\udcff"]}, True),
        ({"environment": {"A": "b=c"}}, True),
        ({"working_dir": "/x"}, True),
        ({"main": True}, False),
        ({"stdin": True}, False),
        ({"stdin": True, "input": ""}, False),
        ({"terminal": (80, 24)}, False),
        ({"cases": {}}, False),
        ({"command": ["a\0b"]}, False),
        ({"command": ["\ud800"]}, False),
        ({"environment": {"A=": "b"}}, False),
        ({"environment": {"": "b"}}, False),
        ({"environment": {"A": "b\0"}}, False),
        ({"working_dir": "a\0"}, False),
        ({"command": ["x" * prepared.MOST_BYTES]}, False),
        ({"exec_id": "x" * 32}, False),
    ],
)
def test_what_is_plain(changes, plain):
    from aviato.server.link.link import ExecSpec

    form = prepared.command(ExecSpec(**{"exec_id": "ex-1", **SPEC, **changes}))
    assert bool(form) is plain
    if plain:
        size, words, variables, flags, seconds = struct.unpack_from("=IIIId", form)
        assert (size, seconds) == (len(form), 1.0)
        strings = form[24:].split(b"\0")[:-1]
        assert len(strings) == 2 + words + variables
        assert bool(strings[1]) is bool(flags)
