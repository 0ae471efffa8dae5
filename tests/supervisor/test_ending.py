"""How sandboxes end, and what outlives a connection."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from aviato.server.link.ended import Ended, SandboxGone

pytestmark = pytest.mark.anyio


async def test_stopping_an_idle_one_takes_no_grace(box):
    begin = time.monotonic()
    assert await box.link.stop(10) == Ended(reason="stopped")
    assert time.monotonic() - begin < 0.5
    assert await box.link.stop(10) == box.link.ended()
    with pytest.raises(SandboxGone):
        await box.link.ping()
    with pytest.raises(SandboxGone):
        box.start("true")


async def test_stopping_gives_a_chance(box):
    exec_id, polite = box.start("sh", "-c", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done")
    _, rude = box.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done")
    for subscription in (polite, rude):
        while not any(frame.type == 3 for frame in subscription.drain()):
            await subscription.wait()
    begin = time.monotonic()
    stops = await asyncio.gather(box.link.stop(0.5), box.link.stop(0.5))
    assert 0.5 <= time.monotonic() - begin < 1.5
    assert stops[0] == stops[1] == Ended(reason="stopped")
    result = await box.finish(exec_id, polite)
    assert (result.returncode, result.stdout) == (0, "bye\n")
    with pytest.raises(SandboxGone) as caught:
        await box.finish("", rude)
    assert caught.value.ended.reason == "stopped"


async def test_what_an_ended_command_left_behind_is_asked_too(box):
    await box.sh("sleep 60 & setsid sleep 60 &")
    begin = time.monotonic()
    assert await box.link.stop(10) == Ended(reason="stopped")
    assert time.monotonic() - begin < 1


async def test_the_end_of_the_main_command_is_the_end(box):
    _, other = box.start("sleep", "60")
    exec_id, main = box.start("sh", "-c", "sleep 0.1; head -c 500000 /dev/zero; exit 4", main=True)
    result = await box.finish(exec_id, main)
    assert (result.returncode, len(result.stdout)) == (4, 500_000)
    assert await box.link.wait_ended() == Ended(reason="exited", returncode=4)
    with pytest.raises(SandboxGone):
        await box.finish("", other)
    assert box.backend.how_ended(box.id) == "exited"


async def test_the_lifetime(make_box):
    async with make_box(max_lifetime_seconds=0.3) as box:
        _, subscription = box.start("sleep", "60")
        begin = time.monotonic()
        assert (await box.link.wait_ended()).reason == "lifetime"
        assert time.monotonic() - begin < 1.5
        with pytest.raises(SandboxGone):
            await box.finish("", subscription)
        assert box.backend.how_ended(box.id) == "lifetime"


async def test_an_orphan_ends_itself(make_box):
    async with make_box(orphan_timeout_seconds=1.0) as box:
        await asyncio.sleep(1.5)
        await box.link.ping()  # An idle connection is not an orphan: the link speaks by itself.
        box.link.detach()
        deadline = time.monotonic() + 5
        while box.backend.how_ended(box.id) is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        assert box.backend.how_ended(box.id) == "orphaned"
        assert await box.backend.reconnect(box.id) is None


async def test_a_newer_connection_takes_over(box):
    exec_id, subscription = box.start("sh", "-c", "echo one; read line; echo two", stdin=True)
    while not any(frame.type == 3 for frame in subscription.drain()):
        await subscription.wait()
    newer = await box.backend.reconnect(box.id)
    assert newer.hello["execs"][exec_id]["state"] == "running"
    assert (await box.link.wait_ended()).reason == "lost"
    await newer.write_stdin(exec_id, b"\n", 0, True)
    assert newer.active_execs() == 1
    box.link = newer
    assert (await box.finish(exec_id, newer.subscribe(None, exec_id))).stdout == "one\ntwo\n"


async def test_while_nobody_is_connected_commands_run_on(box):
    exec_id, _ = box.start("sh", "-c", "echo one; sleep 0.2; echo two > /workspace/f; exit 9")
    await box.link.ping()
    box.link.detach()
    assert box.link.ended() is None
    await asyncio.sleep(0.5)
    box.link = await box.backend.reconnect(box.id)
    result = await box.finish(exec_id, box.link.subscribe(None, exec_id))
    assert (result.returncode, result.stdout) == (9, "one\n")


async def test_a_main_command_that_ended_meanwhile_waits_for_the_next_server(box):
    exec_id, _ = box.start("sh", "-c", "sleep 0.5; echo out; exit 6", main=True)
    await box.link.ping()
    box.link.detach()
    await asyncio.sleep(0.8)
    box.link = await box.backend.reconnect(box.id)
    while box.link.hello["execs"][exec_id]["state"] != "ended":
        box.link.detach()
        await asyncio.sleep(0.8)
        box.link = await box.backend.reconnect(box.id)
    assert box.link.hello["execs"][exec_id] == {"state": "ended", "stdout": 4, "stderr": 0, "main": True}
    result = await box.finish(exec_id, box.link.subscribe(None, exec_id))
    assert (result.returncode, result.stdout) == (6, "out\n")
    assert await box.link.wait_ended() == Ended(reason="exited", returncode=6)


async def test_a_killed_supervisor_is_lost(box):
    exec_id, subscription = box.start("sleep", "60")
    await box.link.ping()
    signal.pidfd_send_signal(box.backend._held[box.id].pidfd, signal.SIGKILL)
    assert (await box.link.wait_ended()).reason == "lost"
    with pytest.raises(SandboxGone):
        await box.finish(exec_id, subscription)
    assert box.backend.how_ended(box.id) is None
