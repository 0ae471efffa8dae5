"""A machine that has no time for process 1, and a server that does not read: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter

import pytest

from aviato.wire.frames import FrameType, encode

pytestmark = pytest.mark.anyio


async def stand_still(box, seconds):
    """As a machine that has no time for a process."""
    pid = box.process_1
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_variables_come_in_one_order(make_box):
    async with make_box(environment={"B": "sandbox", "A": "sandbox"}) as box:
        change = {"Z": "new", "A": "command", "Y": ""}
        early = await box.run("env", env=change)
        await box.run("cat", stdin=b"another kind")
        assert early.stdout.endswith("B=sandbox\nA=command\nZ=new\nY=\n")
        assert (await box.run("env", env=change)).stdout == early.stdout


async def test_a_command_that_ended_in_time_while_nobody_looked(box):
    started = box.start("sh", "-c", "echo begun; sleep 0.1; exit 3", timeout=1.5)
    await asyncio.wait_for(started[1].wait(6), 60)
    await stand_still(box, 1.7)
    result = await box.finish(*started)
    assert (result.returncode, result.exit["timed_out"], result.stdout) == (3, False, "begun\n")


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("strace"), reason="strace holds process 1 up, as root")
async def test_a_command_that_ended_in_time_while_process_1_stood_still_behind_another_event(box, tmp_path):
    """It has looked for what happened, stands still, and goes on once the command's time is over."""
    delay = ["-e", "trace=epoll_wait", "-e", "inject=epoll_wait:delay_exit=2500000:when=1"]
    started = box.start("sh", "-c", "echo begun; sleep 0.5; exit 3", timeout=2.0)
    await asyncio.wait_for(started[1].wait(6), 60)
    log = tmp_path / "strace"
    tracer = await asyncio.create_subprocess_exec("strace", "-p", str(box.process_1), "-o", str(log), *delay, stderr=-1)
    try:
        await asyncio.wait_for(tracer.stderr.readline(), 60)  # It is attached.
        box.link.acknowledge(started[0], 6, 0, False)
        assert (await box.finish(*started)).returncode == 3
        assert "DELAYED" in log.read_text()
    finally:
        tracer.terminate()
        await tracer.wait()


@pytest.mark.parametrize("seconds", [1.5, 3.0])
async def test_a_server_that_spoke_meanwhile_is_heard(make_box, seconds):
    async with make_box(orphan_timeout_seconds=1.0) as box:
        await box.run("true")
        await stand_still(box, seconds)
        assert (await box.run("echo", "here")).stdout == "here\n"


async def test_a_ping_is_answered_once(box):
    """Also the one whose answer the socket has no room for."""
    answers = Counter()

    class Collector:
        def frame(self, frame):
            answers[frame.channel] += 1
            return False

        def gone(self, ended):
            pass

    await box.run("true")
    box.link._transport.pause_reading()
    channels = [box.link._open(Collector()) for _ in range(3000)]
    for channel in channels:
        ping = encode(FrameType.REQUEST, b'{"op":"ping"}', channel=channel)
        box.link._transport.write(ping)
    await asyncio.sleep(0.2)  # Whatever it has no room for waits.
    box.link._transport.resume_reading()
    await box.link.ping()
    assert answers == dict.fromkeys(channels, 1)
    for channel in channels:
        del box.link._channels[channel]
