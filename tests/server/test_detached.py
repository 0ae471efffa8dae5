"""What is kept of detached commands: rings, their bounds, and what the next server finds."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.service import detached as detached_module
from aviato.server.service.output import recorded_output as recorded_output_module
from aviato.server.service.output import ring as ring_module
from aviato.server.service.output.recorded_output import RecordedOutput
from aviato.server.service.output.ring import Ring
from aviato.system.threads import in_thread
from aviato.wire.frames import FrameType
from aviato.wire.ids import new_exec_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(ring_module, "SEGMENT_BYTES", 1000)
    monkeypatch.setattr(ring_module, "KEPT_BYTES", 2000)


def numbers(end):
    return b"".join(b"%05d\n" % number for number in range(end // 6))


def everything(ring, position=0):
    found = []
    while position < ring.end:
        position, data = ring.read(position, ring.end)
        found.append((position, data))
        position += len(data)
    return found


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_ring_keeps_the_last_part_at_its_offsets(tmp_path, small):
    ring, text = Ring(str(tmp_path), "stdout"), numbers(9000)
    for start in range(0, len(text), 170):
        ring.write(start, text[start : start + 170])
    assert (ring.end, ring.first) == (9000, 7000)
    [(begin, _), *_] = parts = everything(ring, 5)
    assert begin <= ring.first and b"".join(data for _, data in parts) == text[begin:]
    assert ring.pushed_out(5) and ring.pushed_out(6999) and not ring.pushed_out(7000)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == ring.kept_bytes <= 3000
    ring.write(8990, text[8990:] + b"new")  # What is there already comes again after a cut.
    assert ring.end == 9003 and b"".join(data for _, data in everything(ring, 8994)) == text[8994:] + b"new"


def test_a_ring_is_found_again(tmp_path, small):
    ring, text = Ring(str(tmp_path), "stdout"), numbers(4200)
    ring.write(0, text)
    ring.close()
    again = Ring(str(tmp_path), "stdout")
    again.load()
    assert (again.end, again.kept_bytes) == (ring.end, ring.kept_bytes)
    again.write(again.end, b"more")
    assert everything(again)[-1][1] == text[4000:] + b"more"


def test_what_the_disk_does_not_take_is_a_gap_that_is_not_the_tasks(tmp_path, small, monkeypatch, caplog):
    ring, write, free = Ring(str(tmp_path), "stdout"), os.write, 150

    def full(fd, data):
        nonlocal free
        if free <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(fd, data[:free])
        free -= count
        return count

    monkeypatch.setattr(ring_module.os, "write", full)
    for start in range(0, 500, 100):
        ring.write(start, b"x" * 100)
    free = 10_000
    ring.write(500, b"y" * 100)
    assert everything(ring) == [(0, b"x" * 150), (500, b"y" * 100)]
    assert not ring.pushed_out(150) and len(caplog.records) == 1
    assert len(list(tmp_path.iterdir())) == 2
    again = Ring(str(tmp_path), "stdout")
    again.load()
    assert everything(again) == [(0, b"x" * 150), (500, b"y" * 100)]
    for start in range(600, 6000, 100):
        ring.write(start, b"z" * 100)
    assert ring.pushed_out(150)


async def test_a_stuck_reader_costs_a_second_and_one_without_credit_nothing(tmp_path):
    loop = asyncio.get_running_loop()
    output = RecordedOutput(str(tmp_path))
    output.make()
    stuck, blocked = output.read((0, 0)), output.read((0, 0))
    size, begin = 1 << 20, loop.time()
    await output.append([(1, 0, b"x" * size)])
    while blocked._may_send(1):
        await blocked.wait()
        blocked.drain()
    for offset in range(size, 30 * size, size):
        await output.append([(1, offset, b"x" * size)])
    assert 0.9 < loop.time() - begin < 5
    stuck.close()
    begin = loop.time()
    for offset in range(30 * size, 60 * size, size):
        await output.append([(1, offset, b"x" * size)])
    assert loop.time() - begin < 0.9
    output.close()
    assert output.unread.is_set() is False
    blocked.close()
    assert output.unread.is_set()


def kept(server, sandbox_id):
    return sorted(path.name for path in (Path(server.service.folder.execs) / sandbox_id).glob("*"))


async def begin(server, sandbox_id, *command):
    exec_id = new_exec_id()
    return exec_id, await server.exec(sandbox_id, *command, exec_id=exec_id, detach=True)


async def taken(client, sandbox_id, exec_id):
    """Its result has arrived."""
    body = {"execs": [{"sandbox_id": sandbox_id, "exec_id": exec_id, "done": True}]}
    await client.call("POST", "/v1/acknowledgements", body=body, expect=204)


async def test_only_the_newest_results_are_kept(server, monkeypatch):
    monkeypatch.setattr(detached_module, "MOST_RESULTS", 3)
    sandbox_id = (await server.running())["sandbox_id"]
    running, _ = await asyncio.wait_for(begin(server, sandbox_id, "sleep", "0.3"), 5)
    ids = [(await begin(server, sandbox_id, "echo", str(number)))[0] for number in range(5)]
    await until(lambda: kept(server, sandbox_id) == sorted([*ids[-2:], running]) or kept(server, sandbox_id) == ids[-3:])
    path = f"/v1/sandboxes/{sandbox_id}/execs"
    assert ids[0] not in server.service.registry.live[sandbox_id].execs
    assert b"4\n" in await server.call("GET", f"{path}/{ids[4]}?reader_id=a", expect=200)
    monkeypatch.setattr(detached_module, "MOST_RESULT_BYTES", 3)
    last, _ = await begin(server, sandbox_id, "echo", "many bytes")
    await until(lambda: kept(server, sandbox_id) == [last])
    await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    await taken(server, sandbox_id, last)
    await until(lambda: not os.listdir(server.service.folder.execs))


async def test_of_an_ended_sandbox_each_result_goes_when_it_was_taken(server):
    sandbox_id = (await server.running())["sandbox_id"]
    ids = [(await begin(server, sandbox_id, "echo", str(number)))[0] for number in range(3)]
    await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    await taken(server, sandbox_id, ids[1])
    await until(lambda: kept(server, sandbox_id) == [ids[0], ids[2]])
    assert b"2\n" in await server.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{ids[2]}?reader_id=a", expect=200)
    for exec_id in (ids[0], ids[2]):
        await taken(server, sandbox_id, exec_id)
    await until(lambda: not os.listdir(server.service.folder.execs))


async def test_it_begins_without_its_reader_and_one_that_cannot_begin_is_forgotten(server):
    server.service.slots.admission.limit = 0
    sandbox_id = (await server.create())["sandbox_id"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(begin(server, sandbox_id, "echo", "alone"), 0.1)
    [exec_id] = server.service.registry.live[sandbox_id].execs
    server.service.slots.admission.limit = 1
    server.service.slots.update()
    await server.wait(sandbox_id, "running")
    frames = await server.exec(sandbox_id, "echo", "alone", exec_id=exec_id, detach=True)
    assert (b"alone\n" in [payload for _, payload in frames], frames[-1][1]["returncode"]) == (True, 0)
    conflict = await server.exec(sandbox_id, "echo", "other", exec_id=exec_id, detach=True, expect=409)
    assert conflict["code"] == "REQUEST_ID_CONFLICT"
    missing = new_exec_id()
    frames = await server.exec(sandbox_id, "nodir", exec_id=missing, detach=True)
    assert frames[-1][1]["code"] == "FILE"
    await until(lambda: kept(server, sandbox_id) == [exec_id])
    assert missing not in server.service.registry.live[sandbox_id].execs


async def test_who_asks_for_it_before_it_is_begun_does_not_take_it_away(server):
    sandbox_id = (await server.running())["sandbox_id"]
    exec_id = new_exec_id()
    box = server.service.registry.live[sandbox_id]
    early = server.service.execs.resume(sandbox_id, exec_id, (0, 0), "early")
    frames = await server.exec(sandbox_id, "echo", "mine", exec_id=exec_id, detach=True)
    assert frames[-1][1]["returncode"] == 0
    with pytest.raises(Exception, match="no ex-"):
        while not early.over:
            await early.next(5)
    early.close()
    assert box.execs[exec_id].recorded is not None


async def test_what_is_left_of_unknown_sandboxes_is_taken_away(serving, folder, backend):
    backend.stop_runners = False
    async with serving(folder, backend) as (service, client, _):
        sandbox_id = (await client.running(detached=True))["sandbox_id"]
        exec_id, frames = await begin(client, sandbox_id, "echo", "x")
        stray = Path(service.folder.execs) / ("sb-" + "0" * 26)
        stray.mkdir()
        assert frames[-1][0] == FrameType.EXIT.name
    async with serving(folder, backend) as (service, client, _):
        again = await client.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}", expect=200)
        assert b"x\n" in again and not stray.exists()
        await client.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    async with serving(folder, backend) as (service, client, _):
        # Nobody has said that it has arrived.
        path = f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}?reader_id=a"
        assert b"x\n" in await client.call("GET", path, expect=200)
        await taken(client, sandbox_id, exec_id)
        await until(lambda: not os.listdir(service.folder.execs))


async def test_a_reader_that_stands_still_keeps_no_disk_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_output_module, "UNREAD_SECONDS", 0.2)
    output = RecordedOutput(str(tmp_path))
    output.make()
    stuck = output.read((0, 0))
    await output.append([(1, 0, b"x" * (3 << 20))])
    while stuck._may_send(1):
        await stuck.wait()
        stuck.drain()
    output.lose(Ended(reason="stopped"))
    going = output.read((0, 0))
    seen = 0
    removal = asyncio.create_task(output.until_read())
    while seen < 3 << 20:  # Slow, but not still: it gets all of it.
        await going.wait()
        seen += sum(len(frame.payload) for frame in going.drain() if frame.type == FrameType.DATA)
        going.acknowledge(seen, 0)
        await asyncio.sleep(0.03)
    assert not removal.done()
    await asyncio.wait_for(removal, 5)
    await stuck.wait()
    [gap] = stuck.drain()
    assert (gap.type, json.loads(gap.payload)) == (
        FrameType.GAP,
        {"from_offset": 1 << 20, "to_offset": 3 << 20, "is_infrastructure": False},
    )
    for reader in (stuck, going):
        await reader.wait()
        with pytest.raises(SandboxGone):
            reader.drain()


async def test_who_is_behind_when_the_sandbox_ends_gets_the_rest(server):
    sandbox_id = (await server.running())["sandbox_id"]
    exec_id = new_exec_id()
    frames = asyncio.create_task(server.exec(sandbox_id, "hang", exec_id=exec_id, detach=True))
    await until(lambda: exec_id in server.backend.links[sandbox_id].execs)
    run = server.backend.links[sandbox_id].execs[exec_id]
    for _ in range(40):
        run.write(b"x" * (64 << 10))
    state = server.service.registry.live[sandbox_id].execs[exec_id]
    await until(lambda: state.recorded.offsets[1] == 40 << 16)
    await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    for confirmed in range(1 << 18, 41 << 16, 1 << 18):
        ack = {"sandbox_id": sandbox_id, "exec_id": exec_id, "stdout": confirmed}
        await server.call("POST", "/v1/acknowledgements", body={"execs": [ack]}, expect=204)
    frames = await asyncio.wait_for(frames, 5)
    assert sum(len(payload) for kind, payload in frames if kind == "DATA") == 40 << 16
    assert frames[-1][0] == "ERROR"


async def test_ids_and_offsets_that_cannot_be(server):
    sandbox_id = (await server.running())["sandbox_id"]
    path = f"/v1/sandboxes/{sandbox_id}/execs"
    for bad in ("../" + new_exec_id(), new_exec_id() + "\n", "ex-" + "/" * 26, "", new_exec_id().upper()):
        body = {"exec_id": bad, "command": ["echo", "x"], "detach": True}
        error = await server.call("POST", path, body=body, expect=400)
        assert error["error"]["code"] == "VALIDATION"
    for bad in ("..%2F..%2Fstore.db", "%2e%2e", "ex-%00", "x" * 4000):
        error = await server.call("GET", f"{path}/{bad}", expect=404)
        assert error["error"]["code"] in ("EXEC_NOT_FOUND", "NOT_FOUND", "VALIDATION", "SANDBOX_NOT_FOUND"), error
    exec_id, _ = await begin(server, sandbox_id, "echo", "x")
    for query in (
        "stdout=-1",
        "stderr=x",
        f"stdout={2**63}",
        "stdout=1.5",
        "reader_id=../x",
        "reader_id=" + "a" * 65,
        "more=1",
    ):
        error = await server.call("GET", f"{path}/{exec_id}?{query}", expect=400)
        assert error["error"]["code"] == "VALIDATION"
    assert kept(server, sandbox_id) == [exec_id]
    assert os.listdir(server.service.folder.execs) == [sandbox_id]
    assert list(server.service.registry.live[sandbox_id].execs) == [exec_id]


async def test_the_next_server_begins_what_the_last_one_had_only_made_room_for(serving, folder, backend):
    backend.stop_runners = False
    async with serving(folder, backend) as (_, client, _):
        sandbox_id = (await client.running(detached=True))["sandbox_id"]
        ended, _ = await begin(client, sandbox_id, "echo", "x")
    exec_id = new_exec_id()
    output = RecordedOutput(os.path.join(folder.execs, sandbox_id, exec_id), ["echo", "mine"])
    output.make()
    output.load()
    assert (output.accepted, output.started) == (True, False)
    backend.links[sandbox_id].acknowledged.clear()
    async with serving(folder, backend) as (_, client, _):
        await until(lambda: (ended, 2, 0, True) in backend.links[sandbox_id].acknowledged)
        found = []
        async with asyncio.timeout(10):
            while not any(kind == "EXIT" for kind, _ in found):  # As a client does, which has seen no start.
                found = await client.exec(sandbox_id, "echo", "mine", exec_id=exec_id, detach=True)
                assert found[-1][0] == "EXIT" or "STARTED" not in [kind for kind, _ in found], found
        assert b"mine\n" in [payload for _, payload in found]
        assert json.loads(Path(output.directory, "command").read_bytes()) == ["echo", "mine"]
        await until(lambda: os.path.exists(os.path.join(output.directory, "exit")))


async def test_a_removal_under_way_takes_nothing_of_the_next_attempt(server, monkeypatch):
    sandbox_id = (await server.running())["sandbox_id"]
    exec_id = new_exec_id()
    go = asyncio.Event()

    async def slow(function, *arguments, **more):
        if function is shutil.rmtree:
            await go.wait()
        return await in_thread(function, *arguments, **more)

    monkeypatch.setattr(detached_module, "in_thread", slow)
    assert (await server.exec(sandbox_id, "nodir", exec_id=exec_id, detach=True))[-1][0] == "ERROR"
    del server.backend.links[sandbox_id].execs[exec_id]
    again = asyncio.create_task(server.exec(sandbox_id, "echo", "again", exec_id=exec_id, detach=True))
    await asyncio.sleep(0.05)
    go.set()
    assert (await asyncio.wait_for(again, 5))[-1][1]["returncode"] == 0
    await until(lambda: not server.service.detached._removals)
    await until(lambda: os.path.exists(os.path.join(server.service.folder.execs, sandbox_id, exec_id, "exit")))


async def test_what_nobody_reads_after_a_restart_is_killed_in_time(serving, folder, backend, monkeypatch):
    backend.stop_runners = False
    exec_ids = {name: new_exec_id() for name in ("left", "read", "detached")}
    async with serving(folder, backend) as (_, client, _):
        sandbox_id = (await client.running(detached=True))["sandbox_id"]
        url = f"{client.base}/v1/sandboxes/{sandbox_id}/execs"
        for name, exec_id in exec_ids.items():
            body = {"exec_id": exec_id, "command": ["hang"], "detach": name == "detached"}
            response = await client.http.post(url, json=body)
            response.close()
        link = backend.links[sandbox_id]
        await until(lambda: set(exec_ids.values()) <= set(link.execs))  # It is answered before it has begun.
    monkeypatch.setattr("aviato.server.service.execs.ABANDONED_SECONDS", 3.0)
    link.hello = {"execs": {exec_id: {"state": "running"} for exec_id in exec_ids.values()}}
    async with serving(folder, backend) as (_, client, _):
        reading = await client.http.get(f"{url}/{exec_ids['read']}?reader_id=other")
        await until(lambda: link.execs[exec_ids["left"]].over)
        await asyncio.sleep(0.2)
        assert not link.execs[exec_ids["read"]].over
        assert not link.execs[exec_ids["detached"]].over
        reading.close()
