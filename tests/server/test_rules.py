"""The rules of the service, over HTTP and a backend without processes."""

from __future__ import annotations

import asyncio

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.service.main_command import MainCommand
from aviato.wire.ids import new_exec_id, new_lease_id, new_sandbox_id, new_snapshot_id

pytestmark = pytest.mark.anyio


async def test_create_exec_list_stop(server):
    created = await server.create(tags=["a", "b"], annotations={"k": "v"})
    assert created["status"] == "running"  # This backend makes one at once.
    sandbox_id = created["sandbox_id"]
    info = await server.wait(sandbox_id, "running")
    assert info["status"] == "running" and info["startup_seconds"] > 0 and info["limits"]["processes"]["strength"] == "hard"
    frames = await server.exec(sandbox_id, "echo", "hello")
    assert [kind for kind, _ in frames] == ["ACCEPTED", "STARTED", "DATA", "EXIT"]
    assert frames[1][1]["startup_seconds"] == info["startup_seconds"]
    page = await server.call("GET", "/v1/sandboxes?tag=a&tag=b&status=running", expect=200)
    assert [item["sandbox_id"] for item in page["sandboxes"]] == [sandbox_id]
    assert not (await server.call("GET", "/v1/sandboxes?tag=a&tag=c", expect=200))["sandboxes"]
    info = await server.call("POST", f"/v1/sandboxes/{sandbox_id}/stop", body={}, expect=200)
    assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("terminated", "stopped", False)
    assert server.backend.places == set()
    again = await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    assert again == info
    error = await server.exec(sandbox_id, "echo", expect=409)
    assert (error["code"], error["reason"], error["started"]) == ("SANDBOX_NOT_RUNNING", "stopped", False)


async def test_a_quick_exec_is_one_response_with_its_length_and_a_slow_one_a_stream_of_the_same_frames(server):
    sandbox_id = (await server.running())["sandbox_id"]
    url = f"{server.base}/v1/sandboxes/{sandbox_id}/execs"
    async with server.http.post(url, json={"exec_id": new_exec_id(), "command": ["echo", "x"]}) as response:
        assert response.content_length is not None
        assert response.headers["Aviato-Wire"] == "1" and response.headers["Aviato-Server-Pid"].isdigit()
    async with server.http.post(url, json={"exec_id": new_exec_id(), "command": ["sleep", "0.1"]}) as response:
        assert response.content_length is None
        assert (await response.read())[-1:] == b"}"


async def test_create_joins_by_id_and_refuses_another_body(server):
    first = await server.create(tags=["x"])
    joined = await server.create(sandbox_id=first["sandbox_id"], tags=["x"], expect=200)
    assert joined["created_at"] == first["created_at"]
    error = await server.create(sandbox_id=first["sandbox_id"], tags=["y"], expect=409)
    assert error["error"]["code"] == "REQUEST_ID_CONFLICT"
    await server.call("DELETE", f"/v1/sandboxes/{first['sandbox_id']}", expect=200)
    ended = await server.create(sandbox_id=first["sandbox_id"], tags=["x"], expect=200)
    assert ended["status"] == "terminated"


async def test_a_repeat_of_one_that_has_ended_is_refused_nothing(server):
    """Nobody looks first whether an id is new; what then does not fit a new one must not keep a repeat from its answer."""
    body = {"sandbox_id": new_sandbox_id(), "lease_id": server.lease_id, "tags": ["a"], "annotations": {"k": "v", "l": "w"}}
    created = await server.call("POST", "/v1/sandboxes", body=body, expect=201)
    await server.call("POST", f"/v1/sandboxes/{created['sandbox_id']}/stop", body={}, expect=200)
    turned = {**body, "annotations": {"l": "w", "k": "v"}}
    assert (await server.call("POST", "/v1/sandboxes", body=turned, expect=200))["status"] == "terminated"
    server.service.slots.admission.queue_bound = 0
    assert (await server.call("POST", "/v1/sandboxes", body=body, expect=200))["status"] == "terminated"
    await server.call("POST", "/v1/sandboxes", body={**body, "tags": ["b"]}, expect=409)
    await server.call("POST", "/v1/sandboxes", body={**body, "sandbox_id": new_sandbox_id()}, expect=429)
    assert not server.service.registry.live and not server.service.slots.admission.live


async def test_exec_joins_by_id_and_refuses_another_body(server):
    sandbox_id = (await server.running())["sandbox_id"]
    exec_id = new_exec_id()
    first = await server.exec(sandbox_id, "echo", "once", exec_id=exec_id)
    assert await server.exec(sandbox_id, "echo", "once", exec_id=exec_id) == first
    assert (await server.exec(sandbox_id, "echo", "twice", exec_id=exec_id, expect=409))["code"] == "REQUEST_ID_CONFLICT"
    ack = {"execs": [{"sandbox_id": sandbox_id, "exec_id": exec_id, "stdout": 5, "done": True}]}
    await server.call("POST", "/v1/acknowledgements", body=ack, expect=204)
    assert server.backend.links[sandbox_id].active_execs() == 0


async def test_a_stream_is_resumed_by_offset(server):
    sandbox_id = (await server.running())["sandbox_id"]
    exec_id = new_exec_id()
    await server.exec(sandbox_id, "echo", "hello", exec_id=exec_id)
    frames = await server.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}?stdout=2", expect=200)
    assert b"llo" in frames and b"hello" not in frames
    error = await server.call("GET", f"/v1/sandboxes/{sandbox_id}/execs/{new_exec_id()}", expect=404)
    assert error["error"]["code"] == "EXEC_NOT_FOUND"


async def test_an_exec_waits_for_its_pending_sandbox_and_can_be_cancelled_there(server):
    server.backend.switches.create_waits = asyncio.Event()
    sandbox_id = (await server.create())["sandbox_id"]
    kept, given_up = new_exec_id(), new_exec_id()
    runs = asyncio.create_task(server.exec(sandbox_id, "echo", "late", exec_id=kept))
    dropped = asyncio.create_task(server.exec(sandbox_id, "echo", "never", exec_id=given_up))
    while len(server.service.execs.feeds) < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.03)
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/execs/{given_up}/cancel", expect=204)
    frames = await dropped
    assert [kind for kind, _ in frames] == ["ACCEPTED", "ERROR"] and frames[-1][1]["code"] == "CANCELLED"
    server.backend.switches.create_waits.set()
    frames = await runs
    assert [kind for kind, _ in frames] == ["ACCEPTED", "STARTED", "DATA", "EXIT"]
    assert given_up not in server.backend.links[sandbox_id].execs


async def test_a_cancel_that_overtakes_its_command_holds(server):
    sandbox_id = (await server.running())["sandbox_id"]
    exec_id = new_exec_id()
    await server.call("POST", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}/cancel")
    error = await server.exec(sandbox_id, "echo", "x", exec_id=exec_id, expect=409)
    assert error["code"] == "CANCELLED"
    assert exec_id not in server.backend.links[sandbox_id].execs


async def test_an_error_before_the_first_frame_has_a_status(server):
    sandbox_id = (await server.running())["sandbox_id"]
    error = await server.exec(sandbox_id, "echo", working_dir="relative", expect=400)
    assert "working_dir" in error["field_violations"]
    assert (await server.exec(new_sandbox_id(), "echo", expect=404))["code"] == "SANDBOX_NOT_FOUND"
    frames = await server.exec(sandbox_id, "nodir")
    assert [kind for kind, _ in frames] == ["ACCEPTED", "ERROR"] and frames[-1][1]["filepath"] == "/nodir"


@pytest.mark.parametrize(
    ("returncode", "status", "code"), [(0, "completed", "SANDBOX_NOT_RUNNING"), (3, "failed", "SANDBOX_FAILED")]
)
async def test_the_end_of_the_main_command_ends_the_sandbox(server, returncode, status, code):
    sandbox_id = (await server.create(command="exit", args=[str(returncode)]))["sandbox_id"]
    info = await server.wait(sandbox_id, "ended")
    assert (info["status"], info["status_reason"], info["returncode"]) == (status, "exited", returncode)
    assert info["is_infrastructure"] is False
    assert (await server.exec(sandbox_id, "echo", expect=409))["code"] == code


async def test_a_lost_supervisor_is_infrastructure_and_says_whether_the_command_had_started(server):
    sandbox_id = (await server.running())["sandbox_id"]
    running = asyncio.create_task(server.exec(sandbox_id, "hang"))
    while not server.backend.links[sandbox_id].execs:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.03)
    server.backend.links[sandbox_id].end("lost")
    kind, error = (await running)[-1]
    assert kind == "ERROR" and (error["code"], error["reason"]) == ("SANDBOX_FAILED", "lost")
    assert error["is_infrastructure"] is True and error["started"] is True
    info = await server.wait(sandbox_id, "ended")
    assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("failed", "lost", True)


async def test_what_a_supervisor_left_behind_tells_why_it_is_gone(server):
    sandbox_id = (await server.running(max_lifetime_seconds=100))["sandbox_id"]
    server.backend.left[sandbox_id] = "lifetime"
    server.backend.links[sandbox_id].end("lost")
    info = await server.wait(sandbox_id, "ended")
    assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("terminated", "lifetime", False)


async def test_a_start_that_fails_says_why(server):
    server.backend.switches.create_error = SandboxUnavailableError("no namespaces here: do X")
    sandbox_id = (await server.create())["sandbox_id"]
    info = await server.wait(sandbox_id, "running")
    assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("failed", "start_failed", True)
    assert "do X" in info["message"] and server.backend.places == set()
    error = await server.exec(sandbox_id, "echo", expect=409)
    assert error["code"] == "SANDBOX_FAILED" and "do X" in error["message"]


async def test_stop_in_mid_start_leaves_nothing(server):
    server.backend.switches.create_waits = asyncio.Event()
    sandbox_id = (await server.create())["sandbox_id"]
    waiting = asyncio.create_task(server.exec(sandbox_id, "echo", expect=None))
    while not server.backend.places:
        await asyncio.sleep(0.01)
    info = await server.call("POST", f"/v1/sandboxes/{sandbox_id}/stop", body={}, expect=200)
    assert (info["status"], info["status_reason"]) == ("terminated", "stopped")
    assert server.backend.places == set() and server.service.slots.admission.live == 0
    error = await waiting
    error = error if isinstance(error, dict) else error[-1][1]
    assert error["code"] == "SANDBOX_NOT_RUNNING" and error["started"] is False


async def test_a_sandbox_that_does_not_stop_is_taken_away(server, monkeypatch):
    monkeypatch.setattr("aviato.server.service.lifecycle.STOP_SLACK_SECONDS", 0.1)
    monkeypatch.setattr("aviato.server.service.lifecycle.OUTPUT_SECONDS", 0.1)
    sandbox_id = (await server.running())["sandbox_id"]
    server.backend.links[sandbox_id].stubborn = True
    body = {"graceful_shutdown_seconds": 0}
    info = await server.call("POST", f"/v1/sandboxes/{sandbox_id}/stop", body=body, expect=200)
    assert info["status_reason"] == "stopped" and server.backend.places == set()


async def test_one_that_is_given_up_twice_ends_once(server, monkeypatch):
    async def drained(main, sandbox, seconds):
        await asyncio.sleep(0.3)

    monkeypatch.setattr(MainCommand, "drained", drained)
    sandbox_id = (await server.running())["sandbox_id"]
    sandbox = server.service.registry.live[sandbox_id]
    for _ in range(3):
        server.service.lifecycle.force(sandbox)
        await asyncio.sleep(0.05)
    assert (await server.wait(sandbox_id, "ended"))["status_reason"] == "lost"
    assert server.service.slots.admission.live == 0


async def test_one_whose_link_ended_just_before_it_is_given_up_ends(server, monkeypatch):
    async def drained(main, sandbox, seconds):
        await asyncio.sleep(0.3)

    monkeypatch.setattr(MainCommand, "drained", drained)
    sandbox_id = (await server.running())["sandbox_id"]
    sandbox = server.service.registry.live[sandbox_id]
    server.backend.links[sandbox_id].end("lost")
    await asyncio.sleep(0.05)
    server.service.lifecycle.force(sandbox)
    assert (await server.wait(sandbox_id, "ended"))["status_reason"] == "lost"
    assert server.service.slots.admission.live == 0


async def test_a_main_command_whose_output_cannot_be_understood_ends_its_sandbox(server, monkeypatch):
    async def keep(*arguments):
        raise ValueError("no frame")

    monkeypatch.setattr("aviato.server.service.main_command.keep", keep)
    sandbox_id = (await server.create(command="echo"))["sandbox_id"]
    info = await server.wait(sandbox_id, "ended")
    assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("failed", "lost", True)
    assert server.service.slots.admission.live == 0


async def test_a_place_that_resists_removal_frees_its_slot_and_is_tried_again(server):
    sandbox_id = (await server.running())["sandbox_id"]
    server.backend.switches.destroy_error = OSError("busy")
    await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    assert server.service.slots.admission.live == 0 and server.service.lifecycle.leftovers.keys() == {sandbox_id}
    server.backend.switches.destroy_error = None
    await server.service.lifecycle.destroy(sandbox_id)
    assert server.service.lifecycle.leftovers == {}


async def test_closing_a_lease_stops_its_sandboxes_only(server):
    mine = (await server.running())["sandbox_id"]
    detached = (await server.running(detached=True))["sandbox_id"]
    other = (await server.running(lease_id=new_lease_id()))["sandbox_id"]
    await server.call("DELETE", f"/v1/leases/{server.lease_id}", expect=200)
    assert (await server.wait(mine, "ended"))["status_reason"] == "stopped"
    for sandbox_id in (detached, other):
        assert (await server.call("GET", f"/v1/sandboxes/{sandbox_id}", expect=200))["status"] == "running"


async def test_a_backend_that_keeps_no_images_says_so(server):
    for method, path, body in (
        ("POST", "/v1/images/pull", {"reference": "debian:12"}),
        ("GET", "/v1/images", None),
        ("GET", "/v1/images/inspect?reference=debian:12", None),
        ("POST", "/v1/images/remove", {"reference": "debian:12"}),
        ("POST", "/v1/images/prune", {}),
        ("POST", "/v1/images/pin", {"reference": "debian:12"}),
        ("GET", "/v1/images/export?reference=debian:12", None),
        ("POST", "/v1/images/push", {"reference": "debian:12"}),
    ):
        error = (await server.call(method, path, body=body, expect=400))["error"]
        assert error["code"] == "VALIDATION" and "the backend 'fake' does not have 'image_store'" in error["message"]
    path = f"/v1/sandboxes/{(await server.running())['sandbox_id']}/snapshots/{new_snapshot_id()}"
    error = (await server.call("PUT", path, body={}, expect=400))["error"]
    assert error["code"] == "VALIDATION" and "the backend 'fake' does not have 'snapshots'" in error["message"]
    assert (await server.call("GET", "/v1/snapshots", expect=200)) == {"snapshots": []}


async def test_bad_requests_name_the_field(server):
    for body, field in [
        ({"sandbox_id": "sb-x", "detached": True}, "sandbox_id"),
        ({"sandbox_id": new_sandbox_id()}, "lease_id"),
        ({"sandbox_id": new_sandbox_id(), "detached": True, "snapshot": "s"}, "snapshot"),
        ({"sandbox_id": new_sandbox_id(), "detached": True, "working_dir": "here"}, "working_dir"),
        ({"sandbox_id": new_sandbox_id(), "detached": True, "max_lifetime_seconds": -1}, "max_lifetime_seconds"),
        ({"sandbox_id": new_sandbox_id(), "detached": True, "args": ["x"]}, "args"),
    ]:
        error = (await server.call("POST", "/v1/sandboxes", body=body, expect=400))["error"]
        assert error["code"] == "VALIDATION" and any(field in name for name in error["field_violations"]), error
    error = (await server.create(image="nope", expect=422))["error"]
    assert error["code"] == "IMAGE" and "there is host" in error["message"]
    error = (await server.call("POST", "/v1/sandboxes", body="x" * (17 << 20), expect=413))["error"]
    assert error["code"] == "VALIDATION"
    assert (await server.call("GET", "/v1/nothing", expect=404))["error"]["reason"] == "http"
    error = (await server.call("GET", "/v1/health", headers={"Aviato-Wire": "99"}, expect=426))["error"]
    assert (error["code"], error["reason"]) == ("UNAVAILABLE", "wire_version") and "'99'" in error["message"]


@pytest.mark.parametrize("detached", [True, False])
async def test_a_dropped_command_of_a_detached_sandbox_is_killed_unless_it_is_read_again(server, monkeypatch, detached):
    # Long enough for a busy machine to read it again, where that decides.
    monkeypatch.setattr("aviato.server.service.execs.ABANDONED_SECONDS", 2.0 if detached else 0.1)
    sandbox_id = (await server.running(detached=detached))["sandbox_id"]
    url = f"{server.base}/v1/sandboxes/{sandbox_id}/execs"

    async def drop(exec_id):
        response = await server.http.post(url, json={"exec_id": exec_id, "command": ["hang"]})
        response.close()
        while server.service.execs.feeds:
            await asyncio.sleep(0.005)

    dropped, resumed = new_exec_id(), new_exec_id()
    await drop(dropped)
    await drop(resumed)
    again = await server.http.get(f"{url}/{resumed}")
    execs = server.backend.links[sandbox_id].execs
    while detached and not execs[dropped].over:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert execs[dropped].over is detached and not execs[resumed].over
    again.close()


async def test_a_dropped_command_is_killed_though_its_process_1_cannot_be_reached_just_then(server, monkeypatch):
    monkeypatch.setattr("aviato.server.service.execs.ABANDONED_SECONDS", 0.1)
    sandbox_id = (await server.running(detached=True))["sandbox_id"]
    link, cuts = server.backend.links[sandbox_id], 0
    cancel = link.cancel

    async def cut_off(exec_id):
        nonlocal cuts
        cuts += 1
        if cuts < 3:
            raise SandboxGone(Ended(reason="cut"))
        await cancel(exec_id)

    link.cancel = cut_off
    exec_id = new_exec_id()
    url = f"{server.base}/v1/sandboxes/{sandbox_id}/execs"
    (await server.http.post(url, json={"exec_id": exec_id, "command": ["hang"]})).close()
    async with asyncio.timeout(60):
        while not (exec_id in link.execs and link.execs[exec_id].over):
            await asyncio.sleep(0.01)
    assert cuts == 3
