"""What a server leaves to the next one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiohttp
import pytest

from aviato.wire.ids import new_exec_id

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
        assert backend.places == {kept} and service.places.admission.live == 1
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


async def test_a_half_made_start_is_lost_and_leaves_nothing(serving, folder, backend):
    backend.switches.create_waits = asyncio.Event()
    async with serving(folder, backend) as (_, client, _):
        sandbox_id = (await client.create())["sandbox_id"]
        while not backend.places:
            await asyncio.sleep(0.01)
    backend.switches.create_waits = None
    async with serving(folder, backend) as (_, client, _):
        assert (await client.wait(sandbox_id, "ended"))["status_reason"] == "lost"
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
