"""Claims of places that are ready, over HTTP and a backend without processes: how they are answered, and what goes before."""

from __future__ import annotations

import asyncio
import time

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.capabilities import Capability
from aviato.server.images.resolved import ResolvedImage
from aviato.server.service import warm_pools
from aviato.wire.ids import new_pool_id, new_sandbox_id

pytestmark = pytest.mark.anyio


@pytest.fixture
def backend(backend):
    backend.capabilities, backend.claim = backend.capabilities | {Capability.POOLS}, lambda spec, link: None
    return backend


async def pool_of(server, size, service=None):
    """A pool that is full."""
    pool_id = new_pool_id()
    body = {"size": size, "sandbox": {"sandbox_id": new_sandbox_id()}}
    await server.call("PUT", f"/v1/pools/{pool_id}", body=body, expect=200)
    pool = (service or server.service).warm_pools._own[pool_id]
    await eventually(lambda: len(pool.ready) == size)
    return pool


async def eventually(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_a_claim_is_answered_as_running(server):
    pool = await pool_of(server, 1)
    claimed = await server.create(pool_id=pool.pool_id)
    assert claimed["status"] == "running" and claimed["started_at"] and claimed["startup_seconds"] > 0
    # What a wait would have said, and what a repeat of the create says.
    assert claimed == await server.wait(claimed["sandbox_id"], "running")
    assert claimed == await server.create(sandbox_id=claimed["sandbox_id"], pool_id=pool.pool_id, expect=200)
    frames = await server.exec(claimed["sandbox_id"], "echo", "hello")
    assert [kind for kind, _ in frames] == ["ACCEPTED", "STARTED", "DATA", "EXIT"]


async def test_several_claims_at_once(server):
    pool = await pool_of(server, 2)
    server.backend.switches.create_waits = asyncio.Event()
    answers = await asyncio.gather(*(server.create(pool_id=pool.pool_id) for _ in range(4)))
    assert sorted(answer["status"] for answer in answers) == ["pending", "pending", "running", "running"]
    server.backend.switches.create_waits.set()
    for answer in answers:
        assert (await server.wait(answer["sandbox_id"], "running"))["status"] == "running"


@pytest.mark.parametrize("runs", [False, True], ids=["before its first turn", "in the turn in which it runs"])
async def test_a_claim_that_is_told_to_end_in_that_moment(server, monkeypatch, runs):
    pool = await pool_of(server, 1)
    begin = server.service.lifecycle.begin

    def begin_and_end(sandbox):
        begin(sandbox)
        if runs:
            sandbox.on_run.append(lambda: sandbox.ask_to_end("stopped"))
        else:
            sandbox.ask_to_end("stopped")

    monkeypatch.setattr(server.service.lifecycle, "begin", begin_and_end)
    claimed = await server.create(pool_id=pool.pool_id)
    assert claimed["status"] in ("terminating", "terminated") and (claimed["started_at"] is not None) is runs
    ended = await server.wait(claimed["sandbox_id"], "ended")
    assert (ended["status"], ended["status_reason"]) == ("terminated", "stopped")
    again = await server.create(sandbox_id=claimed["sandbox_id"], pool_id=pool.pool_id, expect=200)
    assert again["status"] == "terminated"


async def test_a_claim_that_fails(server):
    pool = await pool_of(server, 1)

    def fail(spec, link):
        raise SandboxUnavailableError("its process 1 is gone", reason="start_failed")

    server.backend.claim = fail
    claimed = await server.create(pool_id=pool.pool_id)
    assert claimed["status"] != "running" and claimed["started_at"] is None
    ended = await server.wait(claimed["sandbox_id"], "running")
    assert ended["status"] == "failed" and "process 1 is gone" in ended["message"]


async def test_another_server_knows_where_it_is(serving, folder, backend):
    async with serving(folder, backend) as (service, client, _):
        pool = await pool_of(client, 1, service)
        claimed = await client.create(pool_id=pool.pool_id, detached=True)
        assert claimed["status"] == "running"
        place_id = service.registry.record(claimed["sandbox_id"]).place_id
    async with serving(folder, backend) as (service, client, _):
        again = await client.create(sandbox_id=claimed["sandbox_id"], pool_id=pool.pool_id, detached=True, expect=200)
        assert (again["status"], again["started_at"]) == ("running", claimed["started_at"])
        assert service.registry.record(claimed["sandbox_id"]).place_id == place_id


@pytest.mark.parametrize("is_on_its_way", [False, True])
async def test_a_pool_whose_image_is_another_one_by_now(server, backend, monkeypatch, is_on_its_way):
    """As where a tag was pulled anew: nobody is given the image of before, and the next ones are ready again."""
    meant = "a"

    def resolve_image(reference, *, fallback=None):
        return ResolvedImage(reference="tag", kind="oci", image_id=meant, layers=(meant,))

    monkeypatch.setattr(backend, "resolve_image", resolve_image)
    begun, go = asyncio.Event(), asyncio.Event()

    async def warm_up(link, commands):
        begun.set()
        await go.wait()

    monkeypatch.setattr(warm_pools, "warm_up", warm_up)
    if not is_on_its_way:
        go.set()
    pool_id = new_pool_id()
    body = {"size": 1, "sandbox": {"sandbox_id": new_sandbox_id()}}
    await server.call("PUT", f"/v1/pools/{pool_id}", body=body, expect=200)
    pool = server.service.warm_pools._own[pool_id]
    await begun.wait()
    if not is_on_its_way:
        await eventually(lambda: pool.ready)
    old = set(backend.specs)
    meant = "b"
    server.service.warm_pools.tick()
    go.set()
    await eventually(lambda: old <= set(backend.destroyed))
    server.service.warm_pools.tick()
    await eventually(lambda: pool.ready)
    claimed = await server.create(pool_id=pool_id)
    assert claimed["status"] == "running" and claimed["was_ready"]
    assert backend.specs[server.service.registry.record(claimed["sandbox_id"]).place_id].image.image_id == "b"


async def test_an_image_is_the_same_by_each_of_its_names(server, backend, monkeypatch):
    """A grade and a reset ask by the id of what was asked for by a tag."""

    def resolve_image(reference, *, fallback=None):
        return ResolvedImage(reference=reference, kind="oci", image_id="sha256:a", layers=("a",))

    monkeypatch.setattr(backend, "resolve_image", resolve_image)
    pool_id = new_pool_id()
    await server.call(
        "PUT", f"/v1/pools/{pool_id}", body={"size": 1, "sandbox": {"sandbox_id": new_sandbox_id(), "image": "tag"}}, expect=200
    )
    await eventually(lambda: server.service.warm_pools._own[pool_id].ready)
    claimed = await server.create(pool_id=pool_id, image="sha256:a")
    assert claimed["was_ready"] and claimed["image"] == "sha256:a"


async def test_a_first_command_goes_before_what_fills_a_pool(server, monkeypatch):
    monkeypatch.setattr(warm_pools, "BREATH_SECONDS", 0.5)
    few, many = await pool_of(server, 1), await pool_of(server, 4)
    made = len(server.backend.specs)
    claimed = await server.create(pool_id=many.pool_id)
    await server.exec(claimed["sandbox_id"], "sleep", "0.1")
    assert len(server.backend.specs) == made
    await eventually(lambda: len(many.ready) == 4)
    # One that has less than half is filled at once.
    monkeypatch.setattr(warm_pools, "BREATH_SECONDS", 1000.0)
    assert (await server.create(pool_id=few.pool_id))["status"] == "running"
    await eventually(lambda: len(few.ready) == 1)


async def test_a_pool_that_nobody_takes_from_keeps_fewer_and_all_again_from_the_next_claim_on(server, monkeypatch):
    pool = await pool_of(server, 8)
    pools = server.service.warm_pools
    monkeypatch.setattr(warm_pools, "UNUSED_SECONDS", 0.0)
    kept = []
    for _ in range(5):
        pools.tick()
        kept.append(len(pool.ready))
    assert kept == [4, 2, 1, 1, 1]
    monkeypatch.setattr(warm_pools, "UNUSED_SECONDS", 600.0)
    assert (await server.create(pool_id=pool.pool_id))["status"] == "running"
    await eventually(lambda: len(pool.ready) == 8)
    pools.tick()
    assert len(pool.ready) == 8


async def test_a_pool_without_a_word_of_its_client_goes(server, monkeypatch):
    pool = await pool_of(server, 2)
    places = [warm.place_id for warm in pool.ready]
    claimed = await server.create(pool_id=pool.pool_id)
    body = {"size": 2, "sandbox": pool.request.model_dump(exclude_defaults=True) | {"sandbox_id": new_sandbox_id()}}
    monkeypatch.setattr(warm_pools, "KEPT_SECONDS", 0.0)
    await server.call("PUT", f"/v1/pools/{pool.pool_id}", body=body, expect=200)
    server.service.warm_pools.tick()
    assert server.service.warm_pools.kept == 0 and not server.service.warm_pools.is_used
    await eventually(lambda: places[1] in server.backend.destroyed)
    assert (await server.wait(claimed["sandbox_id"], "running"))["status"] == "running"
    # Whoever asks by its id has one that starts as any other.
    late = await server.create(pool_id=pool.pool_id)
    assert (await server.wait(late["sandbox_id"], "running"))["was_ready"] is False


async def test_what_is_on_its_way_for_too_long_is_given_up(server, backend, monkeypatch):
    """As any other start: else it would be in its cluster for good, and its pool would never try again."""
    monkeypatch.setattr(warm_pools, "AGAIN_SECONDS", 0.0)
    backend.start_seconds, backend.switches.create_waits = 0.05, asyncio.Event()
    pool_id = new_pool_id()
    body = {"size": 1, "sandbox": {"sandbox_id": new_sandbox_id()}}
    await server.call("PUT", f"/v1/pools/{pool_id}", body=body, expect=200)
    pool = server.service.warm_pools._own[pool_id]
    await eventually(lambda: pool.message is not None and backend.destroyed)
    assert "took longer than 0.05 s" in pool.message
    backend.switches.create_waits.set()
    server.service.warm_pools.tick()
    await eventually(lambda: pool.ready and pool.message is None)


async def test_what_is_made_of_another_image_than_was_asked_for_is_handed_out_to_nobody(server, monkeypatch):
    """Somebody removed the image just before, and its name means another one by then."""
    made = []

    def image_in(place_id):
        made.append(place_id)
        image_id = "sha256:other" if len(made) == 1 else "sha256:asked"
        return ResolvedImage(reference="tag", kind="oci", image_id=image_id)

    asked = ResolvedImage(reference="tag", kind="oci", image_id="sha256:asked")
    monkeypatch.setattr(server.backend, "resolve_image", lambda reference, **more: asked)
    monkeypatch.setattr(server.backend, "image_in", image_in)
    pool = await pool_of(server, 1)
    assert len(made) >= 2 and [warm.place_id for warm in pool.ready] == made[1:2]
    await eventually(lambda: made[0] not in server.backend.links)
