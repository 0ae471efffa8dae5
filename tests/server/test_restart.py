"""What a server leaves to the next one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from dataclasses import replace

import aiohttp
import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.service.execs import Execs
from aviato.wire.ids import new_exec_id, new_lease_id

pytestmark = pytest.mark.anyio


async def test_sandboxes_live_on_and_are_found_again(serving, folder, backend):
    async with serving(folder, backend) as (_, client, _):
        kept = (await client.running(tags=["t"]))["sandbox_id"]
        gone = (await client.running())["sandbox_id"]
        aged = (await client.running(detached=True))["sandbox_id"]
        stopped = (await client.running())["sandbox_id"]
        await client.call("DELETE", f"/v1/sandboxes/{stopped}", expect=200)
        lease_id = client.lease_id
    assert kept in backend.links
    del backend.links[gone], backend.links[aged]
    backend.left[aged] = "lifetime"
    backend.places.add("sb-unknown")
    async with serving(folder, backend) as (service, client, _):
        assert (await client.wait(kept, "running"))["status"] == "running"
        info = await client.wait(gone, "ended")
        assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("failed", "lost", True)
        assert (await client.wait(aged, "ended"))["status_reason"] == "lifetime"
        assert (await client.call("GET", f"/v1/sandboxes/{stopped}", expect=200))["status_reason"] == "stopped"
        assert backend.places == {kept} and service.slots.admission.live == 1
        assert lease_id in service.leases.held and kept in service.leases.held[lease_id].sandboxes
        frames = await client.exec(kept, "echo", "still here")
        assert frames[-1][1]["returncode"] == 0
        assert [s["sandbox_id"] for s in (await client.call("GET", "/v1/sandboxes?tag=t"))["sandboxes"]] == [kept]


async def test_a_queued_sandbox_is_queued_again(serving, folder, backend):
    async with serving(folder, backend, max_sandboxes=1) as (_, client, _):
        first = (await client.running())["sandbox_id"]
        second = (await client.create())["sandbox_id"]
    async with serving(folder, backend, max_sandboxes=1) as (_, client, _):
        assert (await client.wait(second, "running", timeout=0.1))["status"] == "pending"
        await client.call("DELETE", f"/v1/sandboxes/{first}", expect=200)
        assert (await client.wait(second, "running"))["status"] == "running"


async def test_what_was_stopped_stays_so_also_where_the_store_never_took_it(serving, folder, backend, monkeypatch):
    """Who stopped it was told that it has ended, and does not come again."""

    def fails(record):
        raise sqlite3.OperationalError("disk I/O error")

    async with serving(folder, backend, max_sandboxes=1) as (service, client, _):
        running = (await client.running())["sandbox_id"]
        queued = (await client.create())["sandbox_id"]
        monkeypatch.setattr(service.store, "save_sandbox", fails)
        for sandbox_id in (queued, running):
            assert (await client.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200))["status"] == "terminated"
    assert backend.places == {queued, running}
    async with serving(folder, backend, max_sandboxes=1) as (service, client, _):
        for sandbox_id in (queued, running):
            assert (await client.wait(sandbox_id, "ended"))["status_reason"] == "stopped"
        assert not backend.places and not service.registry.live


async def positions(client, names):
    return [(await client.call("GET", f"/v1/sandboxes/{name}", expect=200))["queue"]["position"] for name in names]


async def test_the_queue_is_the_same_after_a_restart_and_no_place_is_given_twice(serving, folder, backend):
    async with serving(folder, backend, max_sandboxes=2) as (_, client, _):
        holding = [(await client.running())["sandbox_id"] for _ in range(2)]
        many = [(await client.create())["sandbox_id"] for _ in range(4)]
        client.lease_id = new_lease_id()
        few = [(await client.create())["sandbox_id"] for _ in range(2)]
        gone = (await client.create())["sandbox_id"]
        await client.call("DELETE", f"/v1/sandboxes/{gone}", expect=200)
        assert await positions(client, [many[0], few[0], many[1], few[1], many[2], many[3]]) == [1, 2, 3, 4, 5, 6]
        for first, then in zip(holding, (many[0], few[0]), strict=True):
            await client.call("DELETE", f"/v1/sandboxes/{first}", expect=200)
            assert (await client.wait(then, "running"))["status"] == "running"
    # One that holds a place is younger than some that wait.
    async with serving(folder, backend, max_sandboxes=2) as (service, client, _):
        assert await positions(client, [many[1], few[1], many[2], many[3]]) == [1, 2, 3, 4]
        assert (service.slots.admission.live, service.slots.admission.waiting) == (2, 4)
        await client.call("DELETE", f"/v1/sandboxes/{few[0]}", expect=200)
        assert (await client.wait(many[1], "running"))["status"] == "running"
        assert (service.slots.admission.live, service.slots.admission.waiting) == (2, 3)


async def test_what_was_let_go_before_a_restart_is_released_after_it(serving, folder, backend):
    async with serving(folder, backend, max_sandboxes=1) as (_, client, _):
        first = (await client.running(releasable=True))["sandbox_id"]
        await client.call("POST", "/v1/acknowledgements", body={"let_go": [first], "execs": []}, expect=204)
        lease_id = client.lease_id
    async with serving(folder, backend, max_sandboxes=1) as (_, client, _):
        client.lease_id = lease_id
        second = (await client.create())["sandbox_id"]
        assert (await client.wait(second, "running", timeout=5))["status"] == "running"
        assert (await client.wait(first, "ended"))["status_reason"] == "released"


@pytest.mark.parametrize("left", [None, "orphaned"])
@pytest.mark.parametrize("command", [None, "hang"])
@pytest.mark.parametrize("has_place", [True, False])
async def test_a_start_that_was_cut_off_begins_again_unless_something_may_have_run(
    serving, folder, backend, command, has_place, left
):
    backend.switches.create_waits = asyncio.Event()
    async with serving(folder, backend) as (_, client, _):
        sandbox_id = (await client.create(**({} if command is None else {"command": command})))["sandbox_id"]
        while not backend.places:
            await asyncio.sleep(0.01)
    backend.switches.create_waits = None
    if not has_place:
        backend.places.clear()
    if left is not None:
        backend.left[sandbox_id] = left
    async with serving(folder, backend) as (_, client, _):
        if not has_place or (command is None and left is None):
            assert (await client.wait(sandbox_id, "running"))["status"] == "running"
            assert (await client.exec(sandbox_id, "echo", "x"))[-1][1]["returncode"] == 0
            return
        assert (await client.wait(sandbox_id, "ended"))["status_reason"] == (left or "lost")
        assert backend.places == set()


async def test_a_supervisor_that_was_never_told_its_environment_is_not_used(serving, folder, backend):
    async with serving(folder, backend) as (service, client, _):
        sandbox_id = (await client.running())["sandbox_id"]
        record = service.registry.live[sandbox_id].record
        service.store.save_sandbox(replace(record, status="pending", started_at=None))
    first = backend.links[sandbox_id]
    async with serving(folder, backend) as (_, client, _):
        assert (await client.wait(sandbox_id, "running"))["status"] == "running"
        assert backend.destroyed == [sandbox_id] and backend.links[sandbox_id] is not first
        assert (await client.exec(sandbox_id, "echo", "x"))[-1][1]["returncode"] == 0


async def test_a_restart_gives_a_heartbeat_lease_a_full_period_and_then_ends_it(serving, folder, backend):
    async with serving(folder, backend, lease=0.6) as (service, client, _):
        lease = service.leases.renew("ls-" + "0" * 26, lambda: None)
        assert lease.kind == "heartbeat"
        sandbox_id = (await client.create(detached=True))["sandbox_id"]
        box = service.registry.live[sandbox_id]
        service.leases.attach(lease, box)
        await client.wait(sandbox_id, "running")
        info = await client.wait(sandbox_id, "ended", timeout=5)
        assert (info["status_reason"], info["is_infrastructure"]) == ("lease_expired", True)
        assert not service.leases.held and not service.store.leases()


async def test_long_polls_and_streams_end_with_a_retryable_error_when_the_server_goes(serving, folder, backend):
    async with serving(folder, backend) as (service, client, path):
        sandbox_id = (await client.running())["sandbox_id"]
        poll = asyncio.create_task(client.call("GET", f"/v1/sandboxes/{sandbox_id}?wait=ended&timeout_seconds=60", expect=503))
        http = aiohttp.ClientSession(connector=aiohttp.UnixConnector(path))
        body = {"exec_id": new_exec_id(), "command": ["hang"]}
        stream = await http.post(f"http://x/v1/sandboxes/{sandbox_id}/execs", json=body)
        await asyncio.sleep(0.05)
        service.stop_waiting()
        error = (await poll)["error"]
        assert error["code"] == "UNAVAILABLE" and error["retryable"] and error["retry_delay_seconds"] is not None
        with pytest.raises(aiohttp.ClientError):
            await stream.read()
        await http.close()
        assert (await client.call("GET", f"/v1/sandboxes/{sandbox_id}?wait=ended", expect=503))["error"]["retryable"]
    assert sandbox_id in backend.links and backend.destroyed == []


async def test_a_server_that_cannot_reach_a_living_sandbox_says_so_and_ends_nothing(serving, folder, backend, monkeypatch):
    async with serving(folder, backend) as (_, client, _):
        sandbox_id = (await client.running(command="hang"))["sandbox_id"]
        done = new_exec_id()
        assert (await client.exec(sandbox_id, "echo", "x", exec_id=done))[-1][1]["returncode"] == 0
        stopped = (await client.running())["sandbox_id"]
        await client.call("DELETE", f"/v1/sandboxes/{stopped}", expect=200)

    async def cannot():
        raise SandboxUnavailableError("user namespaces: forbidden", reason="cannot_run", retryable=False)

    there = f"/v1/sandboxes/{sandbox_id}"
    with monkeypatch.context() as patch:
        patch.setattr(backend, "open", cannot)
        async with serving(folder, backend) as (_, client, _):
            errors = [
                await client.exec(sandbox_id, "echo", "x", expect=503),
                await client.exec(sandbox_id, "echo", "x", exec_id=done, expect=503),
            ]
            for method, path, body in (
                ("GET", "?wait=running", None),
                ("GET", "?wait=ended", None),
                ("POST", "/stop", {}),
                ("POST", "/stop", {"release": True}),
                ("DELETE", "", None),
                ("GET", "/logs?follow=true", None),
                ("GET", "/files/stat?path=/x", None),
                ("GET", "/ports/80", None),
            ):
                answer = await client.call(method, there + path, body=body, expect=503)
                errors.append(answer["error"])
            for error in errors:
                assert (error["code"], error["is_infrastructure"], error["retryable"]) == ("UNAVAILABLE", True, True), error
                assert "has not ended" in error["message"] and "namespaces: forbidden" in error["message"]
            # Of a command that is not on record nobody can say that it has not started.
            assert [error.get("started") for error in errors[:2]] == [None, True]
            assert (await client.call("GET", there, expect=200))["status"] == "running"
            listed = (await client.call("GET", "/v1/sandboxes", expect=200))["sandboxes"]
            assert [(one["sandbox_id"], one["status"]) for one in listed] == [(sandbox_id, "running")]
            assert (await client.wait(stopped, "ended"))["status_reason"] == "stopped"
            assert (await client.exec(stopped, "echo", "x", expect=409))["reason"] == "stopped"
    async with serving(folder, backend) as (_, client, _):
        assert (await client.exec(sandbox_id, "echo", "x"))[-1][1]["returncode"] == 0


_BODIES = {
    "not JSON": "{",
    "nothing": None,
    "another id": '{"sandbox_id": "sb-???"}',
    "a field that is wrong": '{"args": 5, "environment_variables": {"A": "hush"}}',
}


@pytest.mark.parametrize("body", _BODIES.values(), ids=_BODIES)
@pytest.mark.parametrize("runs", [True, False], ids=["running", "queued"])
async def test_a_record_that_cannot_be_read_concerns_its_sandbox_alone(serving, folder, backend, runs, body, caplog):
    async with serving(folder, backend, max_sandboxes=2) as (_, client, _):
        kept = (await client.running())["sandbox_id"]
        broken = (await client.running())["sandbox_id"]
        queued = (await client.create())["sandbox_id"]
    hurt = broken if runs else queued
    _edit(folder, "UPDATE sandboxes SET body = ? WHERE sandbox_id = ?", body, hurt)
    async with serving(folder, backend, max_sandboxes=2) as (service, client, _):
        info = await client.wait(hurt, "ended")
        assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("failed", "lost", True)
        assert "hush" not in info["message"] and "hush" not in caplog.text
        assert f"sandbox {hurt} cannot be taken up" in caplog.text
        error = await client.exec(hurt, "echo", "x", expect=409)
        assert (error["reason"], error["is_infrastructure"]) == ("lost", True)
        other = queued if runs else broken
        await client.wait(other, "running")
        for sandbox_id in (kept, other):
            assert (await client.exec(sandbox_id, "echo", "x"))[-1][1]["returncode"] == 0
        assert backend.places == {kept, other} and service.slots.admission.live == 2
        await client.call("DELETE", f"/v1/sandboxes/{kept}", expect=200)
        assert (await client.running())["status"] == "running"


@pytest.mark.parametrize(
    ("column", "value"), [("status", "newer"), ("status", "paused"), ("status", "failed"), ("tags", "x"), ("ports", "[1]")]
)
async def test_a_column_that_cannot_be_read_concerns_its_sandbox_alone(serving, folder, backend, column, value):
    async with serving(folder, backend) as (_, client, _):
        kept, hurt = [(await client.running())["sandbox_id"] for _ in range(2)]
    _edit(folder, f"UPDATE sandboxes SET {column} = ? WHERE sandbox_id = ?", value, hurt)
    async with serving(folder, backend) as (_, client, _):
        assert (await client.exec(kept, "echo", "x"))[-1][1]["returncode"] == 0
        info = await client.wait(hurt, "ended")
        assert (info["status_reason"], info["is_infrastructure"]) == ("lost", True)
        listed = (await client.call("GET", "/v1/sandboxes?include_stopped=true", expect=200))["sandboxes"]
        assert {one["sandbox_id"] for one in listed} == {kept, hurt} and backend.places == {kept}


async def test_any_failure_to_take_one_up_concerns_it_alone(serving, folder, backend, monkeypatch):
    async with serving(folder, backend) as (_, client, _):
        kept, hurt, late = [(await client.running())["sandbox_id"] for _ in range(3)]
    reconnect = backend.reconnect

    async def fails(sandbox_id):
        if sandbox_id == hurt:
            raise RuntimeError("a fault")
        return await reconnect(sandbox_id)

    monkeypatch.setattr(backend, "reconnect", fails)
    backend.links[late].hello = {}  # Fails when its place is held and its commands are looked for.
    async with serving(folder, backend) as (service, client, _):
        for sandbox_id in (hurt, late):
            info = await client.wait(sandbox_id, "ended")
            assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("failed", "lost", True)
        assert (await client.exec(kept, "echo", "x"))[-1][1]["returncode"] == 0
        await client.running()
        assert kept in backend.places and not {hurt, late} & backend.places and service.slots.admission.live == 2


async def test_one_of_another_protocol_is_given_up_at_once_and_its_ending_says_why(
    serving, folder, backend, monkeypatch, caplog
):
    async with serving(folder, backend) as (_, client, _):
        kept, newer = [(await client.running())["sandbox_id"] for _ in range(2)]
    asked, reconnect = [], backend.reconnect

    async def refuses(sandbox_id):
        asked.append(sandbox_id)
        if sandbox_id == newer:
            raise SandboxUnavailableError("it speaks 9, this server 1", reason="protocol_version", retryable=False)
        return await reconnect(sandbox_id)

    monkeypatch.setattr(backend, "reconnect", refuses)
    async with serving(folder, backend) as (_, client, _):
        info = await client.wait(newer, "ended")
        assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("failed", "lost", True)
        assert info["message"] == "the server could not take it up after a restart: it speaks 9, this server 1"
        assert (await client.exec(kept, "echo", "x"))[-1][1]["returncode"] == 0
    assert asked.count(newer) == 1 and "Traceback" not in caplog.text


async def test_fields_of_another_version_are_ignored_on_record_and_refused_in_a_request(serving, folder, backend, caplog):
    async with serving(folder, backend) as (_, client, _):
        sandbox_id = (await client.running(resources={"limits": {"processes": 9}}, annotations={"a": "b"}))["sandbox_id"]
        error = await client.create(newer=1, expect=400)
        assert "newer" in error["error"]["message"]
    more = "json_set(body, '$.newer', 1, '$.resources.limits.newer', json('[1]'))"
    _edit(folder, f"UPDATE sandboxes SET body = {more} WHERE sandbox_id = ?", sandbox_id)
    async with serving(folder, backend) as (service, client, _):
        assert (await client.exec(sandbox_id, "echo", "x"))[-1][1]["returncode"] == 0
        request = service.registry.live[sandbox_id].request
        assert (request.resources.limits.processes, request.annotations) == (9, {"a": "b"})
        assert "resources.limits.newer" in caplog.text
        assert json.loads(service.store.sandbox(sandbox_id).body)["newer"] == 1


def _edit(folder, statement, *values):
    db = sqlite3.connect(folder.store)
    with db:
        assert db.execute(statement, values).rowcount == 1
    db.close()


async def test_one_that_is_told_to_end_while_it_is_found_again_ends(serving, folder, backend, monkeypatch):
    async with serving(folder, backend) as (_, client, _):
        sandbox_id = (await client.running())["sandbox_id"]
        lease_id = client.lease_id
    restore = Execs.restore

    async def restoring(execs, sandbox, **how):
        await restore(execs, sandbox, **how)
        leases = sandbox.lifecycle._leases
        leases.close(lease_id)  # As one that expires just then.

    monkeypatch.setattr(Execs, "restore", restoring)
    async with serving(folder, backend) as (_, client, _):
        assert (await client.wait(sandbox_id, "ended"))["status_reason"] == "stopped"
        assert not backend.places
