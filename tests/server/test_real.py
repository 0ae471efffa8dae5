"""The server with the real local backend: nothing blocks its loop, nothing is left."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from aviato.server.backends.local import backend as local
from aviato.server.backends.registry import make_backend
from aviato.server.executor import fix_threads
from aviato.server.images.resolved import ResolvedImage
from aviato.wire.ids import new_exec_id, new_reset_id, new_sandbox_id, new_snapshot_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def tmp_path(passable_path):
    return passable_path


@pytest.fixture
def backend(folder):
    return make_backend("local", directory=Path(folder.path))


def output_of(frames):
    return b"".join(payload for kind, payload in frames if kind == "DATA")


async def test_create_exec_files_logs_stop(server):
    sandbox_id = (await server.running(environment_variables={"WHO": "world"}, working_dir="/tmp"))["sandbox_id"]
    frames = await server.exec(sandbox_id, "sh", "-c", 'echo "hello $WHO"; pwd; exit 3')
    assert output_of(frames) == b"hello world\n/tmp\n" and frames[-1][1]["returncode"] == 3
    files = f"/v1/sandboxes/{sandbox_id}/files"
    data = os.urandom(3 << 20)
    await server.call("PUT", f"{files}?path=/tmp/a/b&mode=600", data=io.BytesIO(data), expect=204)
    async with server.http.get(f"{server.base}{files}?path=/tmp/a/b") as response:
        assert await response.read() == data
    stat = await server.call("GET", f"{files}/stat?path=/tmp/a/b", expect=200)
    assert (stat["size_bytes"], stat["mode"] & 0o777, stat["type"]) == (len(data), 0o600, "file")
    await server.call("POST", f"{files}/directory?path=/tmp/a/c", expect=204)
    listed = await server.call("GET", f"{files}/list?path=/tmp/a", expect=200)
    assert [item["path"].rpartition("/")[2] for item in listed["files"]] == ["b", "c"]
    await server.call("DELETE", f"{files}?path=/tmp/a&recursive=true", expect=204)
    error = (await server.call("GET", f"{files}?path=/tmp/a/b", expect=422))["error"]
    assert (error["code"], error["reason"], error["filepath"]) == ("FILE", "no_such_file", "/tmp/a/b")
    await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    assert os.listdir(server.service.folder.sandboxes) == []


async def test_an_upload_that_is_cut_leaves_the_old_file(server):
    sandbox_id = (await server.running())["sandbox_id"]
    files = f"/v1/sandboxes/{sandbox_id}/files?path=/tmp/f"
    await server.call("PUT", files, data=b"old", expect=204)

    async def cut():
        yield b"new" * 1000
        raise OSError("cut")

    with pytest.raises(OSError):
        await server.call("PUT", files, data=cut())
    assert await server.call("GET", files, expect=200) == b"old"


async def test_stdin_signal_cancel_and_a_dropped_connection_that_is_resumed(server):
    sandbox_id = (await server.running())["sandbox_id"]
    exec_id = new_exec_id()
    url = f"/v1/sandboxes/{sandbox_id}/execs"
    body = {"exec_id": exec_id, "command": ["cat"], "stdin": True}
    response = await server.http.post(server.base + url, json=body)
    await server.call("POST", f"{url}/{exec_id}/stdin?offset=0", data=b"first ", expect=204)
    first = await response.content.readany()
    response.close()
    await server.call("POST", f"{url}/{exec_id}/stdin?offset=0", data=b"first ", expect=204)
    await server.call("POST", f"{url}/{exec_id}/stdin?offset=6&eof=1", data=b"second", expect=204)
    raw = await server.call("GET", f"{url}/{exec_id}?stdout=0", expect=200)
    assert b"first " in raw and b"second" in raw and first
    sleeper = new_exec_id()
    task = asyncio.create_task(server.exec(sandbox_id, "sleep", "60", exec_id=sleeper))
    await asyncio.sleep(0.1)
    await server.call("POST", f"{url}/{sleeper}/signal", body={"signal": 15}, expect=204)
    assert (await task)[-1][1]["signal"] == 15
    other = new_exec_id()
    task = asyncio.create_task(server.exec(sandbox_id, "sleep", "60", exec_id=other))
    await asyncio.sleep(0.1)
    await server.call("POST", f"{url}/{other}/cancel", expect=204)
    assert (await task)[-1][1]["cancelled"] is True


async def test_a_snapshot_that_a_reset_overtakes_is_told_so(server, monkeypatch):
    """Between two of its steps the sandbox goes on in another place, and the process 1 that it was about to ask ends."""
    sandbox_id = (await server.running(image="host"))["sandbox_id"]
    await server.exec(sandbox_id, "sh", "-c", "echo x >/tmp/x")
    moves, sandbox = server.service.snapshots._moves, server.service.registry.live[sandbox_id]
    before, begin = sandbox.link, moves.begin

    async def overtaken(*arguments):
        await server.call("PUT", f"/v1/sandboxes/{sandbox_id}/resets/{new_reset_id()}", body={}, expect=200)
        await asyncio.wait_for(before.wait_ended(), 60)
        return await begin(*arguments)

    monkeypatch.setattr(moves, "begin", overtaken)
    path = f"/v1/sandboxes/{sandbox_id}/snapshots/{new_snapshot_id()}"
    error = (await asyncio.wait_for(server.call("PUT", path, body={}), 60))["error"]
    assert (error["code"], error["reason"], error["is_infrastructure"]) == ("EXECUTION", "reset", False)
    assert (await server.exec(sandbox_id, "true"))[-1][1]["returncode"] == 0


async def test_a_reset_whose_image_is_another_one_by_then_is_refused(server, monkeypatch):
    """Somebody removed it just before the backend took it, and its name means another one."""
    sandbox_id = (await server.running())["sandbox_id"]
    other = ResolvedImage(reference="tag", kind="oci", image_id="sha256:other")
    monkeypatch.setattr(server.service.backend, "image_in", lambda place_id: other)
    await server.call("PUT", f"/v1/sandboxes/{sandbox_id}/resets/{new_reset_id()}", body={}, expect=422)
    info = await server.wait(sandbox_id, "ended")
    assert info["status_reason"] == "image_pull_failed" and "removed meanwhile" in info["message"]
    new = await server.running()
    assert new["image_id"] == "sha256:other", "one that begins takes what is there"


async def test_the_main_commands_output_and_end(server):
    sandbox_id = (await server.create(command="sh", args=["-c", "echo out; echo err >&2; exit 5"]))["sandbox_id"]
    logs = await server.call("GET", f"/v1/sandboxes/{sandbox_id}/logs?follow=1", expect=200)
    assert sorted(logs.split()) == [b"err", b"out"]
    info = await server.wait(sandbox_id, "ended")
    assert (info["status"], info["returncode"], info["status_reason"]) == ("failed", 5, "exited")


async def test_a_main_command_that_cannot_start_fails_the_sandbox(server):
    sandbox_id = (await server.create(command="/no/such/program"))["sandbox_id"]
    info = await server.wait(sandbox_id, "ended")
    assert (info["status"], info["returncode"], info["is_infrastructure"]) == ("failed", 127, False)


async def test_the_loop_never_blocks_and_health_answers_while_fifty_creates_run(server):
    with blockbuster_ctx(scanned_modules=["aviato.server"]) as blocking:
        allow_what_is_measured(blocking)
        slowest = 0.0
        creates = [asyncio.create_task(server.running()) for _ in range(50)]
        while not all(task.done() for task in creates):
            before = time.perf_counter()
            await server.call("GET", "/v1/health", expect=200)
            slowest = max(slowest, time.perf_counter() - before)
        names = [task.result()["sandbox_id"] for task in creates]
        frames = await asyncio.gather(*(server.exec(name, "true") for name in names))
        assert all(each[-1][1]["returncode"] == 0 for each in frames)
        await server.call("GET", "/v1/sandboxes?include_stopped=true", expect=200)
        await asyncio.gather(*(server.call("DELETE", f"/v1/sandboxes/{name}", expect=200) for name in names))
    # Not the time itself: that no health call waited for the creates. What blocks is found by blockbuster.
    assert slowest < 1


def allow_what_is_measured(blocking):
    """The store's writes: 0.02 ms into the page cache, less than a hop to a thread. See `store/database.py`."""
    for name, function in blocking.functions.items():
        if name.startswith("sqlite3."):
            function.can_block_in("aviato/server/store/database.py", STORE_CALLS)


STORE_CALLS = {"add_sandbox", "save_sandbox", "sandbox", "save_execs", "exec", "save_lease", "remove_lease"}
STORE_CALLS |= {"purge", "living", "leases"}


async def test_nothing_is_left_after_stops_and_disconnects_at_any_moment(server):
    async def one(number):
        sandbox_id = new_sandbox_id()
        task = asyncio.create_task(server.create(sandbox_id=sandbox_id, expect=None))
        await task
        exec_task = asyncio.create_task(server.exec(sandbox_id, "sleep", "30", expect=None))
        await asyncio.sleep(0.002 * (number % 12))
        if number % 2:
            exec_task.cancel()
        await server.call("POST", f"/v1/sandboxes/{sandbox_id}/stop", body={"graceful_shutdown_seconds": 0}, expect=200)
        await asyncio.gather(exec_task, return_exceptions=True)

    async def measure():
        await asyncio.sleep(0.2)
        tasks = len(asyncio.all_tasks())
        return len(os.listdir("/proc/self/fd")), threading.active_count(), tasks

    fix_threads(asyncio.get_running_loop())
    first = (await server.running())["sandbox_id"]  # What all sandboxes share has been made, and is held open.
    await server.call("POST", f"/v1/sandboxes/{first}/stop", body={}, expect=200)
    await asyncio.gather(*(one(number) for number in range(24)))
    await asyncio.to_thread(server.service.store.checkpoint)  # The first, by the clock, opens a file for good.
    before = await measure()
    for _ in range(2):
        await asyncio.gather(*(one(number) for number in range(24)))
    deadline = time.monotonic() + 10
    after = await measure()
    while any(now > then for now, then in zip(after, before, strict=True)):
        assert time.monotonic() < deadline, (before, after)
        after = await measure()
    assert os.listdir(server.service.folder.sandboxes) == [] and os.listdir(server.service.folder.trash) == []
    assert server.service.slots.admission.live == 0 and not server.service.registry.live
    assert not server.service.execs.feeds


async def test_one_whose_process_1_is_slow_after_a_restart_is_not_lost(serving, folder, monkeypatch):
    """It lives: on a machine that is busy with thousands of others it has not had its turn yet."""
    monkeypatch.setattr(local, "RECONNECT_SECONDS", 0.5)
    directory = Path(folder.path)
    async with serving(folder, make_backend("local", directory=directory)) as (service, client, _):
        sandbox_id = (await client.running(detached=True))["sandbox_id"]
        await client.exec(sandbox_id, "sh", "-c", "echo kept >/tmp/f")
        pidfd = os.dup(service.backend._held[sandbox_id].pidfd)
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(1.5, signal.pidfd_send_signal, pidfd, signal.SIGCONT)
    async with serving(folder, make_backend("local", directory=directory)) as (_, client, _):
        assert output_of(await client.exec(sandbox_id, "cat", "/tmp/f")) == b"kept\n"
        await client.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    os.close(pidfd)
