"""What is kept of ended sandboxes, how much and for how long. Cuts and restarts are in `tests/faults/test_results.py`."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from aviato.server.backends.registry import make_backend
from aviato.server.link.link import Process1Link
from aviato.server.service import live_sandbox
from aviato.server.service.output import retained_results
from aviato.server.service.output.recorded_output import RecordedOutput
from aviato.server.service.output.retained_results import Result, RetainedResults
from aviato.wire.frames import FrameType
from aviato.wire.ids import new_exec_id, new_sandbox_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def tmp_path(passable_path):
    return passable_path


@pytest.fixture
def backend(folder):
    return make_backend("local", directory=Path(folder.path))


@pytest.fixture
def kept(tmp_path):
    return RetainedResults(str(tmp_path))


EXIT = json.dumps({"returncode": 4}).encode()


async def test_what_is_recorded_is_not_kept_a_second_time(server, folder, monkeypatch):
    """Where process 1 ended before it heard that the server has all of it."""
    acknowledge = Process1Link.acknowledge

    def unheard(link, exec_id, stdout, stderr, done):
        if not done:
            acknowledge(link, exec_id, stdout, stderr, done)

    monkeypatch.setattr(Process1Link, "acknowledge", unheard)
    sandbox_id = (await server.running())["sandbox_id"]
    exec_id = new_exec_id()
    await server.exec(sandbox_id, "echo", "hi", exec_id=exec_id, detach=True)
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/stop", body={}, expect=200)
    assert not server.service.results.has(sandbox_id, exec_id) and not os.listdir(folder.results)
    assert b"hi\n" in await server.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}", expect=200)


async def test_what_a_full_disk_could_not_record_is_kept(server, monkeypatch):
    monkeypatch.setattr(RecordedOutput, "_put", lambda output, name, content: False)
    sandbox_id = (await server.running())["sandbox_id"]
    exec_id = new_exec_id()
    await server.exec(sandbox_id, "echo", "hi", exec_id=exec_id, detach=True)
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/stop", body={}, expect=200)
    assert server.service.results.has(sandbox_id, exec_id)


async def test_what_was_confirmed_before_or_with_the_stop_is_not_kept(server, folder):
    """The usual way: no file is made of what a client has."""
    made = await server.running()
    sandbox_id = made["sandbox_id"]
    with_stop, before, never = [new_exec_id() for _ in range(3)]
    for exec_id in (with_stop, before, never):
        await server.exec(sandbox_id, "echo", "hi", exec_id=exec_id)
    ack = {"execs": [{"sandbox_id": sandbox_id, "exec_id": before, "stdout": 3, "done": True}]}
    await server.call("POST", "/v1/acknowledgements", body=ack, expect=204)
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/stop", body={"received": [with_stop]}, expect=200)
    found = [server.service.results.has(sandbox_id, exec_id) for exec_id in (with_stop, before, never)]
    assert found == [False, False, True] and os.listdir(folder.results) == [sandbox_id]
    answer = await server.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{never}?stdout=1", expect=200)
    assert b"i\n" in answer and b"hi" not in answer
    for exec_id in (with_stop, before):
        error = await server.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}", expect=409)
        assert error["error"]["reason"] == "stopped"
    # Too late for process 1, and in time for what was kept.
    ack = {"execs": [{"sandbox_id": sandbox_id, "exec_id": never, "stdout": 3, "done": True}]}
    await server.call("POST", "/v1/acknowledgements", body=ack, expect=204)
    assert not os.listdir(folder.results)


async def test_what_was_confirmed_too_late_for_a_supervisor_that_ends_is_not_kept(server, folder, monkeypatch):
    """It ends by itself, so that it has left its results behind before anybody could tell it that one has arrived."""
    made = await server.running(command="sh", args=["-c", "while [ ! -e /tmp/end ]; do sleep 0.05; done"])
    sandbox_id = made["sandbox_id"]
    confirmed, never = new_exec_id(), new_exec_id()
    await server.exec(sandbox_id, "echo", "hi", exec_id=confirmed)
    link = server.service.registry.live[sandbox_id].link
    monkeypatch.setattr(link, "_send_acks", lambda: None)
    ack = {"execs": [{"sandbox_id": sandbox_id, "exec_id": confirmed, "stdout": 3, "done": True}]}
    await server.call("POST", "/v1/acknowledgements", body=ack, expect=204)
    await server.exec(sandbox_id, "touch", "/tmp/end", exec_id=never)
    await server.wait(sandbox_id, "ended")
    assert [server.service.results.has(sandbox_id, exec_id) for exec_id in (confirmed, never)] == [False, True]


async def test_of_a_living_sandbox_only_the_latest_confirmations_are_remembered(server):
    sandbox_id = (await server.running())["sandbox_id"]
    box = server.service.registry.live[sandbox_id]
    exec_ids = [new_exec_id() for _ in range(live_sandbox.UNDER_WAY + 5)]
    for exec_id in exec_ids:
        box.confirm(exec_id)
    assert list(box.confirmed) == exec_ids[5:]


async def test_a_sandbox_leaves_so_much_behind_and_the_newest_of_it(server):
    """Of a million bytes each, 24 results fit, in base64."""
    made = await server.running()
    sandbox_id, exec_ids = made["sandbox_id"], [new_exec_id() for _ in range(30)]
    for exec_id in exec_ids:
        await server.exec(sandbox_id, "head", "-c", "1000000", "/dev/zero", exec_id=exec_id)
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/stop", body={}, expect=200)
    kept = [server.service.results.has(sandbox_id, exec_id) for exec_id in exec_ids]
    assert kept == [False] * kept.index(True) + [True] * (30 - kept.index(True)) and 20 < sum(kept) < 30


async def test_only_so_many_and_so_much_is_kept(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(retained_results, "MOST_SANDBOXES", 3)
    ids = [new_sandbox_id() for _ in range(5)]
    for sandbox_id in ids:
        kept.offer(sandbox_id, "ex-1", Result(EXIT, (0, b"x"), (0, b"")))
    assert [kept.has(sandbox_id, "ex-1") for sandbox_id in ids] == [False, False, True, True, True]
    kept.save()
    assert sorted(os.listdir(tmp_path)) == sorted(ids[2:])
    monkeypatch.setattr(retained_results, "MOST_BYTES", 1000)
    kept.offer(ids[0], "ex-1", Result(EXIT, (0, bytes(2000)), (0, b"")))
    assert [kept.has(sandbox_id, "ex-1") for sandbox_id in ids] == [True, False, False, False, False]
    assert not os.listdir(tmp_path)


async def test_it_is_kept_for_a_time(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(retained_results, "KEPT_SECONDS", 0.0)
    kept.offer(new_sandbox_id(), "ex-1", Result(EXIT, (0, b"x"), (0, b"")))
    kept.save()
    assert os.listdir(tmp_path)
    kept.expire()
    assert not os.listdir(tmp_path) and not kept._left


async def test_what_is_on_disk_is_read_as_it_was_written(kept, tmp_path):
    """Whatever was printed; and what no result is, or half of one, is passed over."""
    sandbox_id, exec_id = new_sandbox_id(), new_exec_id()
    hostile = b'\n{"exec_id": "ex-2"}\n\xff\x00{"reason": "lifetime"}\n'
    kept.offer(sandbox_id, exec_id, Result(EXIT, (7, hostile), (0, b"")))
    kept.save()
    with (tmp_path / sandbox_id).open("ab") as file:
        file.write(b'["no object"]\n{"reason": "stopped"}\n{"exec_id": "ex-')
    (tmp_path / new_sandbox_id()).write_bytes(b"nothing that can be read")
    again = RetainedResults(str(tmp_path))
    again.restore()
    assert os.listdir(tmp_path) == [sandbox_id]
    found = await again.load(sandbox_id, exec_id)
    assert found is not None and (found.stdout, json.loads(found.exit)) == ((7, hostile), {"returncode": 4})
    frames = found.frames(exec_id, (0, 0))
    assert [frame.type for frame in frames] == [
        *(FrameType.ACCEPTED, FrameType.STARTED, FrameType.GAP, FrameType.DATA, FrameType.EXIT)
    ]
    again.confirm(sandbox_id, exec_id)
    assert not os.listdir(tmp_path)


async def test_what_a_killed_server_had_kept_is_kept_once(kept, tmp_path, backend):
    """It was killed between keeping it and removing its place, or in the middle of a line."""
    sandbox_id, linked, offered = new_sandbox_id(), new_exec_id(), new_exec_id()
    place = Path(backend._directories.path(sandbox_id))
    place.mkdir(parents=True)
    line = json.dumps({"exec_id": linked, "exit": {"returncode": 4}, "output": [[0, "eHh4"], [0, ""]]})
    (place / "note").write_text(f'{{"reason": "stopped"}}\n{line}\n')
    for _ in range(3):
        await kept.gather(sandbox_id, partial(backend.leave_results, sandbox_id))
        assert (tmp_path / sandbox_id).stat().st_size == (place / "note").stat().st_size
        assert kept._size_bytes == len(line) + 1
    again = RetainedResults(str(tmp_path))
    (tmp_path / sandbox_id).unlink()
    (tmp_path / sandbox_id).write_text('{"exec_id": "ex-0')
    again.restore()
    await again.gather(sandbox_id, partial(backend.leave_results, sandbox_id))
    with (tmp_path / sandbox_id).open("ab") as file:
        file.write(b'{"exec_id": "ex-0')
    again.offer(sandbox_id, offered, Result(EXIT, (0, b"y"), (0, b"")))
    again.save()
    last = RetainedResults(str(tmp_path))
    last.restore()
    assert [(await last.load(sandbox_id, one)).stdout[1] for one in (linked, offered)] == [b"xxx", b"y"]
