"""Commands as most are: short, alone, read by nobody meanwhile; and whatever else may come while one runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import replace

import pytest

from aviato.server.backends.base import MountedFile
from aviato.wire.frames import FrameType
from aviato.wire.ids import new_exec_id

pytestmark = pytest.mark.anyio


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


TRACED = "import ctypes, os, signal\nctypes.CDLL(None).ptrace(0)\nos.kill(os.getpid(), signal.SIGSTOP)"
UNUSUAL = {
    "input": (lambda box: box.run("cat", stdin=b"in\n"), 0, "in\n", ""),
    "a terminal": (lambda box: box.run("sh", "-c", "tty", terminal=(80, 24)), 0, "/dev/pts/0\r\n", ""),
    "much output": (lambda box: box.run("head", "-c", "300000", "/dev/zero"), 0, "\0" * 300_000, ""),
    "a long one": (lambda box: box.run("sh", "-c", "echo a; sleep 0.3; echo b"), 0, "a\nb\n", ""),
    "too late": (lambda box: box.run("sh", "-c", "echo a; exec sleep 60", timeout=0.05), 137, "a\n", ""),
    "someone left behind": (lambda box: box.run("sh", "-c", "sleep 60 >/dev/null 2>&1 & echo a"), 0, "a\n", ""),
    "a pipe left open": (lambda box: box.run("sh", "-c", "sleep 60 & echo a"), 0, "a\n", ""),
    "not there": (lambda box: box.run("nothing-of-that-name"), 127, "", "nothing-of-that-name: command not found\n"),
    "a directory": (lambda box: box.run("/etc"), 126, "", "/etc: Is a directory\n"),
    "no directory": (lambda box: box.run("true", cwd="/nowhere"), "no_such_file", "", ""),
    "not executable": (lambda box: box.run("/etc/passwd"), 126, "", "/etc/passwd: Permission denied\n"),
    "an empty word": (lambda box: box.run(""), 127, "", "'': command not found\n"),
    "a null byte": (lambda box: box.run("echo", "a\0b"), 126, "", "echo: Invalid argument\n"),
    "no environment": (lambda box: box.run("true", env={"": "x"}), 0, "", ""),
    "a long word": (lambda box: box.run("sh", "-c", "echo ${#1}", "sh", "x" * 100_000), 0, "100000\n", ""),
    "half a character": (lambda box: box.run("printf", "%s", "\udcff"), 0, "\ufffd", ""),
    "a surrogate": (lambda box: box.run("printf", "%s", "\ud800"), "invalid", "", ""),
    "many variables": (
        lambda box: box.run("sh", "-c", "env | grep -c ^V", env={f"V{i}": "" for i in range(3000)}),
        *(0, "3000\n", ""),
    ),
    "killed": (lambda box: box.run("sh", "-c", "kill -9 $$"), 137, "", ""),
    "of a signal": (lambda box: box.run("sh", "-c", "kill -USR1 $$"), 138, "", ""),
    "its own tracer": (lambda box: box.run("python3", "-I", "-c", TRACED), 137, "", ""),
}


@pytest.mark.parametrize("name", UNUSUAL)
async def test_others_come_to_what_a_shell_would_say(make_box, name):
    """And the plain ones after them."""
    call, expected, stdout, stderr = UNUSUAL[name]
    async with make_box(environment={"OF": "the sandbox"}) as box:
        await box.run("true")
        result = await call(box)
        said = result.returncode if result.error is None else result.error["reason"]
        assert (said, result.stdout, result.stderr) == (expected, stdout, stderr), result.error
        assert (await box.run("sh", "-c", "echo $OF")).stdout == "the sandbox\n"


async def test_output_comes_as_it_is_written(box):
    result = await box.run("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo $i; echo -$i >&2; sleep 0.04; done")
    assert result.stdout == "".join(f"{i}\n" for i in range(1, 9))
    assert result.stderr == "".join(f"-{i}\n" for i in range(1, 9))
    assert result.exit["duration_seconds"] > 0.3


async def test_times_count_from_the_begin(box):
    begin = time.monotonic()
    result = await box.run("sleep", "60", timeout=0.3)
    assert result.exit["timed_out"] and result.returncode == 137
    assert 0.29 < result.exit["duration_seconds"] < time.monotonic() - begin < 2


async def test_what_comes_in_the_middle_of_a_command(box):
    exec_id, subscription = box.start("sh", "-c", "trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.01; done")
    async with asyncio.timeout(20):
        while not any(frame.payload == b"ready\n" for frame in subscription._frames):
            await asyncio.sleep(0.005)
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
    """Process 1 gives back what it does not need in order to wait."""
    async with make_box(environment={"OWN": "own"}, working_dir="/tmp") as box:
        confirmed, kept = new_exec_id(), new_exec_id()
        await box.finish(*box.start("echo", "confirmed", exec_id=confirmed), acknowledge=False)

        async def asked(exec_id):
            words = ["sh", "-c", "echo $OWN $GIVEN; head -c 9000 /dev/zero; pwd >&2"]
            started = box.start(*words, exec_id=exec_id, env={"GIVEN": "given"})
            return await box.finish(*started, acknowledge=False, done=False)

        first = await asked(kept)
        await asyncio.sleep(0.3)  # It gives back 0.1 s after a request.
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
        assert (await box.run("sh", "-c", "ps ax | grep -c '[s]leep 60'")).stdout == "5\n"
        await box.link.cancel_all()
        assert (await box.run("sh", "-c", "ps ax | grep -c '[s]leep 60'")).stdout == "0\n"


async def begun(box, *command, **options):
    """A command, once it has started, and what is needed for its end."""
    started = box.start(*command, **options)
    await asyncio.wait_for(started[1].wait(), 5)
    return started


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


async def test_beside_files_of_the_caller(make_box):
    async with make_box(mounted_files=(MountedFile(path="/data/f", content=b"mine"),)) as box:
        assert (await box.run("cat", "/data/f")).stdout == "mine"


SPEC = {"command": ["true"], "environment": {}, "working_dir": None, "stdin": False, "timeout_seconds": 1.0, "main": False}


def a_request(exec_id: str) -> bytes:
    spec = {"exec_id": exec_id, **SPEC}
    return json.dumps({"op": "exec", "exec_id": exec_id, "stdout": 0, "stderr": 0, "spec": spec}).encode()


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 100, -1])
async def test_a_request_in_two_pieces(box, cut):
    from aviato.wire.frames import encode

    exec_id = new_exec_id()
    subscription = box.link.subscribe(None, exec_id)  # For its channel: such an id is unknown.
    result = await box.finish(exec_id, subscription, done=False)
    assert result.error["code"] == "EXEC_NOT_FOUND"
    await box.run("true")
    channel = box.link._open(_Collector())
    frame = encode(FrameType.REQUEST, a_request(exec_id), channel=channel)
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
    assert 1 in times  # On a busy machine it may have taken longer.


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
    """However it ends, and whenever."""
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
