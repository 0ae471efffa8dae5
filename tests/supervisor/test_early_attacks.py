"""What hostile code, a slow machine and a slow server could make of process 1 before Python; both ways, as in `test_early`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from dataclasses import replace

import pytest

from aviato.server.supervisor import prepared
from aviato.wire.frames import FrameType, encode
from tests.supervisor.test_early import backend, confirmed_at_the_end, is_early, rests

__all__ = ["backend"]

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
        early = await confirmed_at_the_end(box, "env", env=change)
        await box.run("cat", stdin=b"Python, from now on")
        assert early.stdout.endswith("B=sandbox\nA=command\nZ=new\nY=\n")
        assert (await box.run("env", env=change)).stdout == early.stdout


LEFT = {
    "files in memory": "head -c 2000000 /dev/zero > /dev/shm/file",
    "shared memory": "ipcmk -M 65536 >/dev/null",
    "messages": "ipcmk -Q >/dev/null",
}


@pytest.mark.parametrize("what", LEFT)
async def test_what_short_commands_leave_in_memory_is_looked_at(backend, make_box, monkeypatch, what):
    """No process shows it, and many of them could leave much where no control group limits it."""
    monkeypatch.setattr(backend, "_facts", replace(backend._facts, groups=()))
    async with make_box(limits={"memory": 1 << 30}) as box:
        await confirmed_at_the_end(box, "true")
        await rests(box, early=True)
        assert (await confirmed_at_the_end(box, "sh", "-c", LEFT[what])).stderr == ""
        await asyncio.sleep(0.25)  # Twice the time after which it is.
        await rests(box, early=False)


async def test_who_had_others_work_for_it_is_looked_at(box):
    """What those have taken is not in the time that it has run itself."""
    started = box.start("sh", "-c", "head -c 1 /dev/zero | cat; exec sleep 0.5")
    await asyncio.wait_for(started[1].wait(20), 5)
    await rests(box, early=False)
    assert (await box.finish(*started)).returncode == 0


async def test_a_command_that_ended_in_time_while_nobody_looked(box):
    started = box.start("sh", "-c", "echo begun; sleep 0.1; exit 3", timeout=1.5)
    await asyncio.wait_for(started[1].wait(6), 5)
    await stand_still(box, 1.7)
    result = await box.finish(*started)
    assert (result.returncode, result.exit["timed_out"], result.stdout) == (3, False, "begun\n")


@pytest.mark.parametrize("seconds", [1.5, 3.0])
async def test_a_server_that_spoke_meanwhile_is_heard(make_box, seconds):
    async with make_box(orphan_timeout_seconds=1.0) as box:
        await confirmed_at_the_end(box, "true")
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

    await confirmed_at_the_end(box, "true")
    box.link._transport.pause_reading()
    channels = [box.link._open(Collector()) for _ in range(3000)]
    for channel in channels:
        ping = encode(FrameType.REQUEST, b'{"op":"ping"}', stream=prepared.Form.PING, channel=channel)
        box.link._transport.write(ping)
    while is_early(box):  # It stops to be where it has no room.
        await asyncio.sleep(0.01)
    box.link._transport.resume_reading()
    await box.link.ping()
    assert answers == dict.fromkeys(channels, 1)
    for channel in channels:
        del box.link._channels[channel]
