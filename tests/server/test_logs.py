"""The output of main commands."""

from __future__ import annotations

import asyncio
import os

import pytest

from aviato.server.service.output import ring as ring_module
from aviato.server.service.output.main_output import MainOutput

pytestmark = pytest.mark.anyio


def make(directory):
    return MainOutput(str(directory), "sb-x")


async def text(output, follow=False, tail_lines=None):
    return b"".join([piece async for piece in output.read(follow=follow, begin=await output.begin(tail_lines))])


LINES = b"one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("tail", "expected"),
    [(None, LINES), (0, b""), (1, b"three\n"), (2, b"two\nthree\n"), (3, LINES), (99, LINES)],
)
async def test_tail_lines(tmp_path, tail, expected):
    output = make(tmp_path)
    await output.append([(1, 0, LINES)])
    assert await text(output, tail_lines=tail) == expected
    await output.append([(2, 0, b"half")])
    assert (await text(output, tail_lines=1)) == b"half"
    assert (await text(output, tail_lines=2)) == b"three\nhalf"
    output.finish()


async def test_only_the_last_part_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(ring_module, "SEGMENT_BYTES", 1000)
    monkeypatch.setattr(ring_module, "KEPT_BYTES", 2000)
    output = make(tmp_path)
    everything = b"".join(b"%05d\n" % number for number in range(2000))
    for start in range(0, len(everything), 170):
        await output.append([(1, start, everything[start : start + 170])])
    assert await text(output) == everything[-2000:]
    assert await text(output, tail_lines=3) == everything[-18:]
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 4500
    output.finish()
    output.remove()
    assert list(tmp_path.iterdir()) == []


async def test_followers_get_what_comes_at_once(tmp_path):
    output = make(tmp_path)
    await output.append([(1, 0, b"old\n")])
    seen: list[bytes] = []

    async def follow():
        async for piece in output.read(follow=True, begin=await output.begin(None)):
            seen.append(piece)  # noqa: PERF401  looked at while it grows

    tasks = [asyncio.create_task(follow()) for _ in range(2)]
    await asyncio.sleep(0.02)
    await output.append([(1, 4, b"new\n"), (2, 0, b"err\n")])
    await asyncio.sleep(0.02)
    assert b"".join(seen) == b"old\n" * 2 + b"new\nerr\n" * 2
    output.finish()
    await asyncio.gather(*tasks)


async def test_a_restart_goes_on_where_the_state_says(tmp_path):
    output = make(tmp_path)
    await output.append([(1, 0, b"aaaa"), (2, 0, b"bb")])
    output.finish()
    with open(tmp_path / "sb-x.0", "ab") as file:
        file.write(b"written but not counted")
    again = make(tmp_path)
    await again.open()
    assert (again.total, again.offsets) == (6, {1: 4, 2: 2})
    await again.append([(1, 4, b"cc")])
    assert await text(again) == b"aaaabbcc"
    again.finish()


async def test_over_http(server):
    sandbox_id = (await server.create(command="echo", args=["hello"]))["sandbox_id"]
    assert await server.call("GET", f"/v1/sandboxes/{sandbox_id}/logs?follow=true", expect=200) == b"hello\n"
    await server.wait(sandbox_id, "ended")
    assert await server.call("GET", f"/v1/sandboxes/{sandbox_id}/logs?tail_lines=1", expect=200) == b"hello\n"
    main = "ex-" + sandbox_id[3:]
    assert (await server.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{main}"))["error"]["code"] == "SANDBOX_NOT_RUNNING"
    silent = (await server.running())["sandbox_id"]
    assert await server.call("GET", f"/v1/sandboxes/{silent}/logs?follow=true", expect=200) == b""
    await server.call("DELETE", f"/v1/sandboxes/{silent}", expect=200)
    kept = os.listdir(server.service.folder.output)
    assert all(name.startswith(sandbox_id) for name in kept) and kept


async def test_the_main_command_is_no_exec_of_anyones(server):
    sandbox_id = (await server.running(command="hang"))["sandbox_id"]
    main = "ex-" + sandbox_id[3:]
    assert (await server.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{main}", expect=404))["error"][
        "code"
    ] == "EXEC_NOT_FOUND"
    assert (await server.exec(sandbox_id, "echo", exec_id=main, expect=409))["code"] == "REQUEST_ID_CONFLICT"
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/execs/{main}/cancel", expect=404)
