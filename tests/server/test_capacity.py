"""Queue, places and the release of let-go sandboxes."""

from __future__ import annotations

import asyncio

import pytest

from aviato.wire.ids import new_exec_id, new_sandbox_id

pytestmark = pytest.mark.anyio


@pytest.fixture
async def small(serving, folder, backend):
    async with serving(folder, backend, max_sandboxes=2) as (service, client, _):
        client.service, client.backend = service, backend
        yield client


async def status_of(client, sandbox_id):
    return (await client.call("GET", f"/v1/sandboxes/{sandbox_id}", expect=200))["status"]


async def test_beyond_capacity_sandboxes_wait_in_order_and_say_where(small):
    running = [(await small.running())["sandbox_id"] for _ in range(2)]
    waiting = [(await small.create())["sandbox_id"] for _ in range(3)]
    queues = [(await small.call("GET", f"/v1/sandboxes/{name}", expect=200))["queue"] for name in waiting]
    assert [queue["position"] for queue in queues] == [1, 2, 3]
    assert queues[0]["live"] == queues[0]["limit"] == 2
    assert list(queues[0]["holders"].values()) == [2] and next(iter(queues[0]["holders"])).startswith("pid ")
    info = await small.wait(waiting[0], "running", timeout=0.05)
    assert info["status"] == "pending" and info["queue"]["position"] == 1
    await small.call("DELETE", f"/v1/sandboxes/{waiting[0]}", expect=200)
    await small.call("DELETE", f"/v1/sandboxes/{running[0]}", expect=200)
    assert (await small.wait(waiting[1], "running"))["status"] == "running"
    assert (await small.call("GET", f"/v1/sandboxes/{waiting[2]}", expect=200))["queue"]["position"] == 1
    health = await small.call("GET", "/v1/health", expect=200)
    assert (health["live_sandboxes"], health["pending_sandboxes"], health["max_sandboxes"]) == (2, 1, 2)


async def test_a_full_queue_refuses_with_a_delay(small):
    small.service.slots.admission.queue_bound = 0
    async with small.http.post(
        f"{small.base}/v1/sandboxes", json={"sandbox_id": new_sandbox_id(), "detached": True}
    ) as response:
        assert response.status == 429 and int(response.headers["Retry-After"]) >= 1
        error = (await response.json())["error"]
    assert error["code"] == "RESOURCE_EXHAUSTED" and error["retry_delay_seconds"] > 0 and error["is_infrastructure"]
    assert not small.service.registry.live


async def let_go(client, *sandbox_ids, execs=()):
    await client.call("POST", "/v1/acknowledgements", body={"let_go": list(sandbox_ids), "execs": list(execs)}, expect=204)


def ack(sandbox_id, exec_id):
    return {"sandbox_id": sandbox_id, "exec_id": exec_id, "done": True}


async def test_the_oldest_let_go_sandbox_is_released_when_its_place_is_needed(small):
    old = (await small.running(releasable=True))["sandbox_id"]
    young = (await small.running(releasable=True))["sandbox_id"]
    await let_go(small, young, old)
    assert {await status_of(small, old), await status_of(small, young)} == {"running"}
    third = await small.running()
    assert third["status"] == "running"
    info = await small.wait(old, "ended")
    assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("terminated", "released", True)
    assert await status_of(small, young) == "running"


async def test_what_may_still_be_used_is_not_released(small):
    kept = (await small.running(releasable=True))["sandbox_id"]
    busy = (await small.running(releasable=True))["sandbox_id"]
    exec_id = new_exec_id()
    await small.exec(busy, "echo", "x", exec_id=exec_id)
    await let_go(small, busy)
    third = (await small.create())["sandbox_id"]
    await asyncio.sleep(0.05)
    assert await status_of(small, third) == "pending", "its result was not acknowledged yet"
    await let_go(small, execs=[ack(busy, exec_id)])
    assert (await small.wait(third, "running"))["status"] == "running"
    assert (await small.wait(busy, "ended"))["status_reason"] == "released"
    assert await status_of(small, kept) == "running"


async def test_a_cancelled_command_does_not_keep_its_sandbox(small):
    sandbox_ids = [(await small.running(releasable=True))["sandbox_id"] for _ in range(2)]
    for sandbox_id, reads_on in zip(sandbox_ids, (False, True), strict=True):
        exec_id = new_exec_id()
        reader = asyncio.create_task(small.exec(sandbox_id, "hang", exec_id=exec_id))
        while not small.service.registry.live[sandbox_id].execs:
            await asyncio.sleep(0.01)
        if not reads_on:
            reader.cancel()
            await asyncio.sleep(0.05)
        await small.call("POST", f"/v1/sandboxes/{sandbox_id}/execs/{exec_id}/cancel", expect=204)
        if reads_on:
            assert (await reader)[-1][1]["cancelled"] is True
            await let_go(small, execs=[ack(sandbox_id, exec_id)])
    await let_go(small, *sandbox_ids)
    for _ in range(2):
        assert (await small.wait((await small.create())["sandbox_id"], "running", timeout=5))["status"] == "running"


async def test_neither_detached_ones_nor_those_of_no_session_nor_main_commands_are_released(small):
    with_main = (await small.running(releasable=True, command="hang"))["sandbox_id"]
    plain = (await small.running())["sandbox_id"]
    await let_go(small, with_main, plain, new_sandbox_id())
    third = (await small.create())["sandbox_id"]
    await asyncio.sleep(0.05)
    assert await status_of(small, third) == "pending"


async def test_a_whole_batch_that_is_let_go_at_once_passes_through_two_places(small):
    async def episode(number):
        sandbox_id = (await small.create(releasable=True))["sandbox_id"]
        exec_id = new_exec_id()
        frames = await small.exec(sandbox_id, "echo", str(number), exec_id=exec_id)
        await let_go(small, sandbox_id, execs=[ack(sandbox_id, exec_id)])
        return frames[-1][1]["returncode"]

    assert await asyncio.gather(*(episode(number) for number in range(64))) == [0] * 64
    assert small.service.slots.admission.live <= 2 and small.service.slots.admission.waiting == 0
