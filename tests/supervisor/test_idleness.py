"""A sandbox that nobody uses ends itself; what runs and what is called keeps it."""

from __future__ import annotations

import asyncio
import time

import pytest

pytestmark = pytest.mark.anyio


async def until_ended(box, seconds=10):
    begin = time.monotonic()
    ended = await asyncio.wait_for(box.link.wait_ended(), seconds)
    return ended.reason, time.monotonic() - begin


async def test_unused_it_ends(make_box):
    async with make_box(idle_timeout_seconds=0.4) as box:
        reason, seconds = await until_ended(box)
        assert (reason, box.backend.how_ended(box.id)) == ("idle", "idle")
        assert 0.3 < seconds < 2


async def test_a_command_keeps_it_and_what_it_left_behind_does_not(make_box):
    async with make_box(idle_timeout_seconds=0.4) as box:
        result = await box.sh("sleep 60 & exec sleep 1.2")
        assert result.returncode == 0
        reason, seconds = await until_ended(box)
        assert reason == "idle"
        assert 0.2 < seconds < 2


async def test_the_main_command_keeps_it(make_box):
    async with make_box(idle_timeout_seconds=0.3) as box:
        exec_id, main = box.start("sleep", "1", main=True)
        assert (await box.finish(exec_id, main)).returncode == 0
        assert (await until_ended(box))[0] == "exited"


async def test_calls_keep_it_and_the_server_s_own_do_not(make_box):
    async with make_box(idle_timeout_seconds=0.6) as box:
        await box.put("/tmp/file", b"x" * 3_000_000)
        for _ in range(4):
            await asyncio.sleep(0.3)
            assert len(await box.get("/tmp/file")) == 3_000_000
        begin = time.monotonic()
        while box.link.ended() is None and time.monotonic() - begin < 5:
            await box.link.ping()
            await asyncio.sleep(0.1)
        assert box.link.ended().reason == "idle"
        assert 0.5 < time.monotonic() - begin < 3


async def test_a_transfer_that_stands_still_keeps_it(make_box):
    async with make_box(idle_timeout_seconds=0.3) as box:

        async def chunks():
            yield b"begin"
            await asyncio.sleep(1)
            yield b" end"

        await box.link.write_file("/tmp/file", chunks())
        assert await box.get("/tmp/file") == b"begin end"
        await box.put("/tmp/large", b"x" * 3_000_000)
        reader = box.link.read_file("/tmp/large")
        await reader.opened()
        await asyncio.sleep(1)
        assert sum([len(piece) async for piece in reader]) == 3_000_000
        assert (await until_ended(box))[0] == "idle"


async def test_a_result_that_waits_to_be_fetched_keeps_it(make_box):
    async with make_box(idle_timeout_seconds=0.3) as box:
        exec_id, subscription = box.start("true")
        await box.finish(exec_id, subscription, done=False)
        await asyncio.sleep(1)
        assert box.link.ended() is None
        box.link.acknowledge(exec_id, 0, 0, True)
        assert (await until_ended(box))[0] == "idle"


async def test_it_ends_without_a_server(make_box):
    async with make_box(idle_timeout_seconds=0.5) as box:
        box.link.detach()
        deadline = time.monotonic() + 5
        while box.backend.how_ended(box.id) is None and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        assert box.backend.how_ended(box.id) == "idle"
