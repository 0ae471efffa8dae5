"""One request for a sandbox, its one command and its end: on the real backend."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import threading
from pathlib import Path

import pytest

from aviato.server import reaper
from aviato.server.backends.local import backend as backend_module
from aviato.server.backends.registry import make_backend
from aviato.server.link.link import Process1Link
from aviato.server.service import batch_cleanup, runs
from aviato.wire.frames import FrameDecoder
from aviato.wire.ids import new_exec_id, new_sandbox_id

pytestmark = pytest.mark.anyio

CHANGES_ITS_TREE = ("touch", "/workspace/f")
"""So that its place is taken away at its end, and not left to the next one."""


@pytest.fixture
def tmp_path(passable_path):
    return passable_path


@pytest.fixture
def backend(folder):
    return make_backend("local", directory=Path(folder.path))


def request_of(server, *command, **fields):
    sandbox = {"sandbox_id": new_sandbox_id(), "lease_id": server.lease_id}
    return {"sandbox": sandbox, "command": {"exec_id": new_exec_id(), "command": list(command), **fields}}


async def run(server, body, expect=200):
    return await server.call("POST", "/v1/runs", body=body, expect=expect)


async def gone(server, sandbox_id):
    ended = await server.wait(sandbox_id, "ended")
    assert (ended["status"], ended["status_reason"]) == ("terminated", "stopped")
    assert not server.service.registry.live


async def test_the_sandbox_ends_with_the_answer(server):
    body = request_of(server, "sh", "-c", "cat; sleep 0.4; exit 3", stdin=True, input="aGVsbG8=")
    answer = await run(server, body)
    assert b"hello" in answer and b'"returncode":3' in answer.replace(b" ", b"")
    await gone(server, body["sandbox"]["sandbox_id"])
    # What comes late gets the result, until that is confirmed, and then finds an end; it runs nothing again.
    again = await run(server, body)
    assert b"hello" in again and b'"returncode":3' in again.replace(b" ", b"")
    sandbox_id, exec_id = body["sandbox"]["sandbox_id"], body["command"]["exec_id"]
    confirmed = {"execs": [{"sandbox_id": sandbox_id, "exec_id": exec_id, "stdout": 5, "done": True}]}
    await server.call("POST", "/v1/acknowledgements", body=confirmed, expect=204)
    assert (await run(server, body, expect=409))["error"]["reason"] == "stopped"
    other = {**body, "sandbox": {**body["sandbox"], "tags": ["other"]}}
    assert (await run(server, other, expect=409))["error"]["code"] == "REQUEST_ID_CONFLICT"


async def test_who_feeds_it_hears_at_once_that_it_has_begun(server, monkeypatch):
    """Nothing of it waits for its end, which waits for the input."""
    said, subscribe = {}, Process1Link.subscribe

    def noted(self, spec, exec_id, *offsets, **more):
        said[exec_id] = more["read_along"]
        return subscribe(self, spec, exec_id, *offsets, **more)

    monkeypatch.setattr(Process1Link, "subscribe", noted)
    fed, given = request_of(server, "cat", stdin=True), request_of(server, "cat", stdin=True, input="aGVsbG8=")
    sandbox_id, exec_id = fed["sandbox"]["sandbox_id"], fed["command"]["exec_id"]
    async with server.http.post(server.base + "/v1/runs", json=fed) as response:
        while b"started_at" not in await response.content.readany():
            pass
        await server.call("POST", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}/stdin?eof=true", expect=204)
        assert b'"returncode":0' in (await response.content.read()).replace(b" ", b"")
    assert b"hello" in await run(server, given)
    assert said == {exec_id: True, given["command"]["exec_id"]: False}


async def test_who_feeds_a_command_of_a_sandbox_that_stays_hears_at_once_that_it_has_begun(server, monkeypatch):
    monkeypatch.setattr("aviato.server.operations.exec_stream.HOLD_BACK_SECONDS", 30.0)
    sandbox_id, exec_id = (await server.running())["sandbox_id"], new_exec_id()
    path = f"/v1/sandboxes/{sandbox_id}/execs"
    body = {"exec_id": exec_id, "command": ["cat"], "stdin": True}
    async with asyncio.timeout(20), server.http.post(server.base + path, json=body) as response:
        while b"started_at" not in await response.content.readany():
            pass
        await server.call("POST", f"{path}/{exec_id}/stdin?eof=true", expect=204)
        assert b'"returncode":0' in (await response.content.read()).replace(b" ", b"")


async def test_repeated_while_it_runs_it_runs_once(server):
    body = request_of(server, "sh", "-c", "echo once; sleep 1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.6):
            await run(server, body)
    answer = await run(server, body)
    assert answer.count(b"once") == 1 and b'"returncode":0' in answer.replace(b" ", b"")
    await gone(server, body["sandbox"]["sandbox_id"])


async def test_a_result_waits_for_a_caller_who_was_cut_off_but_not_for_ever(server, monkeypatch):
    body = request_of(server, "sh", "-c", "sleep 0.5; yes | head -c 600000")
    sandbox_id, exec_id = body["sandbox"]["sandbox_id"], body["command"]["exec_id"]
    monkeypatch.setattr(runs, "LEFT_SECONDS", 0.3)
    data = io.BytesIO(json.dumps(body).encode())
    async with server.http.post(server.base + "/v1/runs", data=data) as response:
        await response.content.read(1000)
    path = f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}"
    await asyncio.sleep(0.5)
    ended = await asyncio.wait_for(server.call("GET", f"{path}?stdout=0"), 20)
    assert ended.count(b"y") > 200_000 and b"returncode" in ended
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/stop", body={}, expect=200)


async def test_one_whose_caller_does_not_come_back_ends_once_its_command_has(server, monkeypatch):
    """Nobody reads how it ended; the result is there for a while longer, and its sandbox holds no place."""
    monkeypatch.setattr(runs, "LEFT_SECONDS", 0.2)
    body = request_of(server, "sh", "-c", "sleep 0.5; echo late")
    sandbox_id, exec_id = body["sandbox"]["sandbox_id"], body["command"]["exec_id"]
    async with server.http.post(server.base + "/v1/runs", data=io.BytesIO(json.dumps(body).encode())):
        pass
    await asyncio.wait_for(gone(server, sandbox_id), 10)
    result = await server.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}")
    assert b"late" in result and b'"returncode":0' in result.replace(b" ", b"")


async def test_one_that_is_cancelled_by_a_caller_who_is_gone_ends(server, monkeypatch):
    monkeypatch.setattr(runs, "LEFT_SECONDS", 0.2)
    body = request_of(server, "sleep", "60")
    sandbox_id, exec_id = body["sandbox"]["sandbox_id"], body["command"]["exec_id"]
    async with server.http.post(server.base + "/v1/runs", data=io.BytesIO(json.dumps(body).encode())):
        pass
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}/cancel", expect=204)
    await asyncio.wait_for(gone(server, sandbox_id), 10)


async def test_a_result_waits_for_the_caller_of_an_earlier_server_but_not_for_ever(serving, folder, monkeypatch):
    """The result may have reached its caller in the last moment of that server: then nobody comes back or asks for the end."""
    async with serving(folder, make_backend("local", directory=Path(folder.path))) as (_, client, _):
        body = request_of(client, "sh", "-c", "sleep 0.3")
        sandbox_id = body["sandbox"]["sandbox_id"]
        async with client.http.post(client.base + "/v1/runs", data=io.BytesIO(json.dumps(body).encode())):
            pass
    monkeypatch.setattr(runs, "LEFT_SECONDS", 0.2)
    async with serving(folder, make_backend("local", directory=Path(folder.path))) as (service, client, _):
        ended = await client.wait(sandbox_id, "ended")
        assert (ended["status"], ended["status_reason"]) == ("terminated", "stopped")
        assert not service.registry.live


async def test_one_whose_sandbox_dies_before_it_is_told_that_it_has_begun_may_have(server):
    """That is told with its end, if that is soon: who hears that it never began may let it run again."""
    body = request_of(server, "sleep", "60")
    sandbox_id = body["sandbox"]["sandbox_id"]
    task = asyncio.create_task(run(server, body, expect=None))
    while (box := server.service.registry.live.get(sandbox_id)) is None or box.link is None or not box.link.active_execs():
        await asyncio.sleep(0)
    signal.pidfd_send_signal(server.backend._held[sandbox_id].pidfd, signal.SIGKILL)
    answer = await task
    *before, error = [json.dumps(answer)] if isinstance(answer, dict) else [str(frame) for frame in FrameDecoder().feed(answer)]
    assert '"started":true' in error.replace(" ", "") and len(before) < 2  # Not the frame that says that it has begun.


async def test_of_a_command_that_is_refused_no_sandbox_is_left(server):
    body = request_of(server, "true", working_dir="here")
    assert (await run(server, body, expect=400))["error"]["code"] == "VALIDATION"
    await gone(server, body["sandbox"]["sandbox_id"])


async def test_cancelled_before_it_began_it_leaves_no_sandbox(server):
    body = request_of(server, "sleep", "60")
    sandbox_id, exec_id = body["sandbox"]["sandbox_id"], body["command"]["exec_id"]
    task = asyncio.create_task(run(server, body, expect=None))
    while sandbox_id not in server.service.registry.live:
        await asyncio.sleep(0)
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}/cancel", expect=204)
    await task
    await gone(server, sandbox_id)


async def test_a_cancel_during_which_its_sandbox_ends_is_done(server, monkeypatch):
    """As where its end has come to whoever runs it first, who has no use for the sandbox any more."""
    body = request_of(server, "sleep", "60")
    sandbox_id, exec_id = body["sandbox"]["sandbox_id"], body["command"]["exec_id"]
    cancel = Process1Link.cancel

    async def late(link, exec_id):
        await server.service.sandboxes.stop(sandbox_id, 0)
        await cancel(link, exec_id)

    monkeypatch.setattr(Process1Link, "cancel", late)
    task = asyncio.create_task(run(server, body, expect=None))
    while not (found := server.service.registry.live.get(sandbox_id)) or not found.ready.is_set():
        await asyncio.sleep(0.005)
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}/cancel", expect=204)
    await task
    await gone(server, sandbox_id)


async def test_what_it_writes_down_is_whole_at_the_end(server):
    body = request_of(server, "true")
    sandbox_id = body["sandbox"]["sandbox_id"]
    await run(server, body)
    await gone(server, sandbox_id)
    record = server.service.registry.store.sandbox(sandbox_id)
    assert record.begun and record.started_at is not None and record.ended_at >= record.started_at
    slow = request_of(server, "sleep", "2")
    task = asyncio.create_task(run(server, slow))
    deadline = asyncio.get_running_loop().time() + 10
    while True:
        listed = await server.call("GET", "/v1/sandboxes?status=running", expect=200)
        if listed["sandboxes"]:
            break
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
    await task
    await gone(server, slow["sandbox"]["sandbox_id"])


async def test_ends_are_put_on_record_together_before_their_places_go(server, backend, monkeypatch):
    """Of a place that is gone and an end that is not on record a later server would make another sandbox."""
    store, saved = server.service.registry.store, []
    save = store.save_sandboxes

    def noted(records):
        there = set(backend._directories.ids())
        saved.append([record.sandbox_id in there and record.ended_at is not None for record in records])
        save(records)

    monkeypatch.setattr(store, "save_sandboxes", noted)
    monkeypatch.setattr(batch_cleanup, "TOGETHER_SECONDS", 0.5)
    bodies = [request_of(server, "true") for _ in range(5)]
    await asyncio.gather(*(run(server, body) for body in bodies))
    assert server.service.slots.admission.live <= 5 and len(server.service.registry.live) == 5
    for body in bodies:
        await server.wait(body["sandbox"]["sandbox_id"], "ended")
    assert len(saved) < 5 and sum(map(len, saved)) == 5 and all(map(all, saved))
    assert not backend._directories.ids() and not backend._held and not server.service.registry.live
    assert server.service.slots.admission.live == 0 and not server.service.lifecycle.leftovers


async def test_a_place_is_free_once_its_sandbox_is_dead(server, monkeypatch):
    monkeypatch.setattr(batch_cleanup, "TOGETHER_SECONDS", 60.0)
    monkeypatch.setattr(reaper, "capacity", lambda room: 1)
    server.service.slots.admission.limit = 1
    for _ in range(3):
        await asyncio.wait_for(run(server, request_of(server, "true")), 10)
    assert len(server.service.registry.live) == 3


async def test_a_server_that_goes_leaves_nothing_of_what_was_dead(serving, folder, monkeypatch):
    monkeypatch.setattr(batch_cleanup, "TOGETHER_SECONDS", 60.0)
    backend = make_backend("local", directory=Path(folder.path))
    async with serving(folder, backend) as (service, client, _):
        body = request_of(client, "true")
        await run(client, body)
        while not all(box.is_dead for box in service.registry.live.values()):
            await asyncio.sleep(0.01)
        assert backend._directories.ids()
    assert not backend._directories.ids()
    async with serving(folder, make_backend("local", directory=Path(folder.path))) as (service, client, _):
        assert not service.registry.live
        assert (await client.wait(body["sandbox"]["sandbox_id"], "ended"))["status_reason"] == "stopped"


async def test_one_that_does_not_die_when_it_is_killed_is_taken_away_all_the_same(server, backend, monkeypatch):
    monkeypatch.setattr(backend, "kill", lambda sandbox_id: True)
    monkeypatch.setattr(reaper, "STOP_SLACK_SECONDS", 0.1)
    body = request_of(server, "true")
    await run(server, body)
    await asyncio.wait_for(gone(server, body["sandbox"]["sandbox_id"]), 10)
    assert not backend._directories.ids()


async def test_what_resists_is_left_for_later(server, backend, monkeypatch):
    monkeypatch.setattr(backend._directories, "remove", refuse)
    body = request_of(server, *CHANGES_ITS_TREE)
    sandbox_id = body["sandbox"]["sandbox_id"]
    await run(server, body)
    await gone(server, sandbox_id)
    assert server.service.lifecycle.leftovers.keys() == {sandbox_id} and not server.service.idle
    monkeypatch.undo()
    await server.service.lifecycle.destroy(sandbox_id)
    assert not server.service.lifecycle.leftovers and not backend._held and not backend._directories.ids()


def refuse(sandbox_id):
    raise OSError(16, "busy")


async def test_what_resisted_with_others_is_asked_again_alone(server, backend, monkeypatch):
    """Who asks for its end while many are on their way waits for them, and looks what became of it."""
    asked = threading.Event()

    def resist(self, dead):
        assert asked.wait(10)
        return []

    monkeypatch.setattr(backend_module.LocalBackend, "_remove_places", resist)
    body = request_of(server, *CHANGES_ITS_TREE)
    sandbox_id = body["sandbox"]["sandbox_id"]
    await run(server, body)
    while sandbox_id not in backend._destroying:
        await asyncio.sleep(0.01)
    ending = asyncio.create_task(backend.destroy(sandbox_id))
    await asyncio.sleep(0)
    asked.set()
    await ending
    assert not backend._held and not backend._directories.ids()


async def test_one_that_breaks_off_holds_up_no_other(server, monkeypatch, caplog):
    monkeypatch.setattr(batch_cleanup, "TOGETHER_SECONDS", 0.5)
    bodies = [request_of(server, "true") for _ in range(3)]
    broken = bodies[0]["sandbox"]["sandbox_id"]

    forget = server.service.leases.forget

    def breaks_off(sandbox):
        assert sandbox.sandbox_id != broken, "armed by a test"
        forget(sandbox)

    monkeypatch.setattr(server.service.leases, "forget", breaks_off)
    await asyncio.gather(*(run(server, body) for body in bodies))
    await asyncio.gather(*(server.wait(body["sandbox"]["sandbox_id"], "ended") for body in bodies))

    def said():  # by the server: a client of tests before may say that its server is gone
        return [record.message for record in caplog.records if record.name.startswith("aviato.server")]

    async with asyncio.timeout(20):  # An end is on record before its place is gone, and what follows comes behind that.
        while server.service.registry.live or not said():
            await asyncio.sleep(0.01)
    assert said() == [f"what follows the end of sandbox {broken} broke off"]
