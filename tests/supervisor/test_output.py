"""Windows, acknowledgement, resuming, and what a flood does to others."""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import suppress

import pytest

from aviato.exceptions import SandboxFileError
from aviato.wire.frames import WIDE_WINDOW_BYTES, FrameType

pytestmark = pytest.mark.anyio

WINDOW = 1 << 20


async def collect(box, boxes, subscription, size):
    """Read without acknowledging until so much has come, and nothing more does."""
    return await collect_more(boxes.Result(""), subscription, size)


async def collect_more(result, subscription, size):
    while len(result.streams[1]) < size:
        result.take(await asyncio.wait_for(anext(subscription), 5))
    while True:
        try:
            await asyncio.wait_for(subscription.wait(), 0.3)
        except TimeoutError:
            return result
        for frame in subscription.drain():
            result.take(frame)


async def test_three_megabytes_whole(box):
    result = await box.sh("head -c 3000000 /dev/zero; echo end >&2")
    assert len(result.stdout) == result.exit["stdout_bytes_total"] == 3_000_000
    assert result.stderr == "end\n"
    offsets = [frame.offset for frame in result.frames if frame.type == FrameType.DATA and frame.stream == 1]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)


async def test_large_output_is_the_same_bytes(box):
    """Through a ring, and a pipe that has grown."""
    program = "import random, sys; r, out = random.Random(5), sys.stdout.buffer\n"
    program += "for n in range(400): out.write(r.randbytes(r.randrange(90_000)))"
    result = await box.run("python3", "-c", program)
    pick = random.Random(5)
    assert result.streams[1] == b"".join(pick.randbytes(pick.randrange(90_000)) for _ in range(400))


async def test_a_full_window_stops_its_stream_and_not_the_other(box, boxes):
    script = "(sleep 0.1; echo other >&2) & head -c 3000000 /dev/zero; wait"
    exec_id, subscription = box.start("sh", "-c", script)
    result = await collect(box, boxes, subscription, WINDOW)
    assert len(result.streams[1]) == WINDOW
    assert result.stderr == "other\n"
    box.link.acknowledge(exec_id, 1000, 0, False)
    result.take(await asyncio.wait_for(anext(subscription), 5))
    await asyncio.sleep(0.1)
    assert len(result.streams[1]) <= WINDOW + 1000
    box.link.acknowledge(exec_id, len(result.streams[1]), 0, False)
    rest = await box.finish(exec_id, subscription)
    assert rest.exit["stdout_bytes_total"] == 3_000_000


async def test_the_window_grows_for_who_confirms(box, boxes):
    """Not before as much was confirmed; so nobody holds much of what nobody reads."""
    for program in ("head -c 20000000 /dev/zero", "python3 -c 'for n in range(5000): print(\"x\" * 4000, flush=True)'"):
        exec_id, subscription = box.start("sh", "-c", program)
        result = await collect(box, boxes, subscription, WINDOW)
        while len(result.streams[1]) < WIDE_WINDOW_BYTES:
            before = len(result.streams[1])
            assert before % WINDOW == 0
            box.link.acknowledge(exec_id, before, 0, False)
            result = await collect_more(result, subscription, before + WINDOW)
            assert len(result.streams[1]) == before + WINDOW
        box.link.acknowledge(exec_id, WIDE_WINDOW_BYTES, 0, False)
        result = await collect_more(result, subscription, 2 * WIDE_WINDOW_BYTES)
        assert len(result.streams[1]) == 2 * WIDE_WINDOW_BYTES
        box.link.acknowledge(exec_id, 2 * WIDE_WINDOW_BYTES - 5, 0, False)
        rest = await box.finish(exec_id, subscription)
        assert rest.exit["stdout_bytes_total"] in (20_000_000, 5000 * 4001)


async def test_resuming_by_offset(box, boxes):
    exec_id, subscription = box.start("sh", "-c", "printf 0123456789; read line; printf abcdef", stdin=True)
    first = boxes.Result(exec_id)
    while first.stdout != "0123456789":
        first.take(await asyncio.wait_for(anext(subscription), 5))
    second = box.link.subscribe(None, exec_id, stdout=4)
    assert [frame async for frame in subscription] == []
    assert subscription.replaced
    await box.link.write_stdin(exec_id, b"\n", 0, True)
    result = await box.finish(exec_id, second)
    assert result.stdout == "456789abcdef"
    assert next(frame.offset for frame in result.frames if frame.type == FrameType.DATA) == 4
    assert result.exit["stdout_bytes_total"] == 16


async def test_who_attaches_ahead_of_the_output_has_a_whole_window_from_there(box, boxes):
    """What lies before it is confirmed by that, wherever the window was full on the way there."""
    begin = 2 * WINDOW - 1000
    exec_id, first = box.start("sh", "-c", f"read line; head -c {4 * WINDOW} /dev/zero", stdin=True)
    assert (await asyncio.wait_for(anext(first), 5)).type == FrameType.ACCEPTED
    ahead = box.link.subscribe(None, exec_id, stdout=begin)
    await box.link.write_stdin(exec_id, b"\n", 0, True)
    result = await collect(box, boxes, ahead, WINDOW)
    assert len(result.streams[1]) == WINDOW
    box.link.acknowledge(exec_id, begin + WINDOW, 0, False)
    rest = await box.finish(exec_id, ahead)
    assert WINDOW + len(rest.streams[1]) == 4 * WINDOW - begin
    assert rest.exit["stdout_bytes_total"] == 4 * WINDOW


async def test_acknowledged_bytes_are_a_gap(box):
    exec_id, subscription = box.start("sh", "-c", "printf 0123456789")
    await box.finish(exec_id, subscription, acknowledge=False, done=False)
    box.link.acknowledge(exec_id, 6, 0, False)
    result = await box.finish(exec_id, box.link.subscribe(None, exec_id))
    gap = next(frame for frame in result.frames if frame.type == FrameType.GAP)
    assert json.loads(gap.payload) == {"from_offset": 0, "to_offset": 6}
    assert (gap.stream, result.stdout) == (1, "6789")


async def test_nobody_listens(box):
    exec_id, subscription = box.start("sh", "-c", "echo one; sleep 0.2; echo two; exit 5")
    subscription.close()
    assert [frame async for frame in subscription] == []
    await asyncio.sleep(0.4)
    result = await box.finish(exec_id, box.link.subscribe(None, exec_id))
    assert (result.returncode, result.stdout) == (5, "one\ntwo\n")


async def test_a_flood_does_not_hold_others_back(box):
    floods = [box.start("yes") for _ in range(3)]
    tasks = [asyncio.create_task(box.finish(*flood)) for flood in floods]
    await asyncio.sleep(0.2)
    waits = []
    for _ in range(20):
        begin = time.monotonic()
        assert (await box.run("true")).returncode == 0
        waits.append(time.monotonic() - begin)
    assert sorted(waits)[10] < 0.25
    for exec_id, _ in floods:
        await box.link.cancel(exec_id)
    for result in await asyncio.gather(*tasks):
        assert result.exit["cancelled"]
        assert result.returncode == 137
        assert len(result.streams[1]) == result.exit["stdout_bytes_total"] > WINDOW


async def test_children_left_behind_live_on_and_may_write(box):
    begin = time.monotonic()
    script = (
        "(while :; do echo noise || echo failed > /workspace/pipe; date +%s%N > /workspace/alive; sleep 0.02; done) & echo done"
    )
    result = await box.sh(script)
    assert 0.1 <= time.monotonic() - begin < 10
    assert result.stdout.startswith("done\n") or "noise" in result.stdout
    seen = set()
    async with asyncio.timeout(20):
        while len(seen) < 3:  # One may be nothing, between its opening and the time that is written.
            with suppress(SandboxFileError):  # Nor need there be any yet.
                seen.add(await box.get("/workspace/alive"))
            await asyncio.sleep(0.01)
    await box.link.cancel(result.exec_id)
    last = await box.get("/workspace/alive")
    await asyncio.sleep(0.2)
    assert await box.get("/workspace/alive") == last
    assert "pipe" not in (await box.run("ls", "/workspace")).stdout


async def test_a_background_child_without_pipes_costs_no_wait(box):
    took = []
    while len(took) < 20 and not any(seconds < 0.09 for seconds in took):  # A busy machine takes longer now and then.
        begin = time.monotonic()
        await box.sh("sleep 30 >/dev/null 2>&1 </dev/null & true")
        took.append(time.monotonic() - begin)
    assert min(took) < 0.09


async def test_what_was_in_the_pipe_at_exit_is_read_even_past_the_window(box):
    source = "import fcntl,os\nfcntl.fcntl(1, 1031, 1 << 20)\nos.write(1, b'x' * 1500000)"
    exec_id, subscription = box.start("python3", "-c", source + "\nos.write(1, b'y' * 500000)")
    await asyncio.sleep(0.5)
    result = await box.finish(exec_id, subscription)
    assert len(result.streams[1]) == result.exit["stdout_bytes_total"] == 2_000_000


async def test_a_pipe_that_is_emptied_from_inside_ends_all_the_same(box, boxes):
    """Who opens his pipe again by /proc can read what he wrote: the result must not wait for bytes that are gone."""
    script = """
import os, time
if os.fork() == 0:
    own = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
    time.sleep(1)
    while True:
        try:
            os.read(own, 1 << 20)
        except BlockingIOError:
            time.sleep(0.01)
os.set_blocking(1, False)
until = time.monotonic() + 0.5
while time.monotonic() < until:
    try:
        os.write(1, b"x" * 4096)
    except BlockingIOError:
        time.sleep(0.01)
"""
    exec_id, subscription = box.start("python3", "-I", "-c", script)
    result = await collect(box, boxes, subscription, WINDOW)
    await asyncio.sleep(2)
    box.link.acknowledge(exec_id, WINDOW, 0, False)
    async with asyncio.timeout(5):
        async for frame in subscription:
            result.take(frame)
    assert (result.returncode, result.exit["stdout_bytes_total"]) == (0, len(result.streams[1]))
    await box.link.cancel(exec_id)
