"""Sandboxes that another server of the same backend has: taken over whole, by one of those who ask, and never begun anew."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from aviato import AsyncClient
from aviato.exceptions import SandboxUnavailableError
from aviato.server.callers import Caller
from aviato.server.link.ended import SandboxGone
from aviato.server.operations import table
from aviato.server.service import recovery
from aviato.server.service.replicas import read_record, record_text
from aviato.server.state_dir import StateDirectory
from aviato.server.store import SandboxRecord
from aviato.wire.frames import FrameDecoder, FrameType
from aviato.wire.ids import new_exec_id, new_sandbox_id
from tests.base_roots import share

pytestmark = pytest.mark.anyio


class Cluster:
    """What the backends of several servers share.

    Attributes:
        links: to each process 1, of the server that has it.
        records: by the ids of sandboxes.
    """

    def __init__(self):
        self.links, self.records = {}, {}


@pytest.fixture
def member(backend):
    """Makes backends of one cluster."""
    fake = type(backend)

    class Member(fake):
        shares_sandboxes = True

        def __init__(self, cluster):
            super().__init__()
            self.cluster = cluster
            self.reconnect_error = None
            self.taken = []
            self.looks_for = asyncio.Event()
            self.looks_for.set()

        async def create(self, spec):
            link = await super().create(spec)
            self.cluster.links[spec.sandbox_id] = link
            self.cluster.records[spec.sandbox_id] = spec.record, [file.content for file in spec.mounted_files]
            return link

        async def record_elsewhere(self, sandbox_id):
            await self.looks_for.wait()
            return self.cluster.records.get(sandbox_id)

        async def take_over(self, sandbox_id):
            self.taken.append(sandbox_id)
            return sandbox_id in self.cluster.records

        async def reconnect(self, sandbox_id):
            if self.reconnect_error is not None:
                raise self.reconnect_error
            older = self.cluster.links.get(sandbox_id)
            if older is None:
                return None
            link = type(older)(self, _Spec(sandbox_id))
            link.execs, link.active, link.files = older.execs, older.active, older.files
            link.hello = {"execs": {exec_id: {} for exec_id in older.active}, "configured": True}
            older.end("taken")
            self.links[sandbox_id] = self.cluster.links[sandbox_id] = link
            self.places.add(sandbox_id)
            return link

        async def destroy(self, sandbox_id):
            self.cluster.links.pop(sandbox_id, None)
            self.cluster.records.pop(sandbox_id, None)
            await super().destroy(sandbox_id)

        async def place_ids(self):
            return list(self.cluster.links)

    return Member


def decode(data):
    """Frames as `(type name, payload)`."""
    return [(FrameType(frame.type).name, frame.payload) for frame in FrameDecoder().feed(data)]


def test_a_record_says_nothing_of_what_stands_beside_it():
    """Files that are mounted are large, and a Secret of Kubernetes is not: they stand in it once."""
    content = bytes(range(256)) * 64
    text = base64.b64encode(content).decode()
    body = {"mounted_files": [{"mount_path": "/a", "file_content": text}, {"mount_path": "/b", "file_content": ""}]}
    record = SandboxRecord(
        sandbox_id="sb-1", created_at=1.0, status_updated_at=2.0, body_hash="h", begun=True, body=json.dumps(body)
    )
    kept = record_text(record)
    assert text[:64] not in kept and len(kept) < 2000
    again = read_record(kept, [content, b""])
    assert json.loads(again.body) == body and again.but(body=record.body) == record
    assert read_record(kept, [content]) is None
    # One that a version before has left has them twice.
    assert read_record(json.dumps({**json.loads(kept), "body": record.body}), [content, b""]) == again


class _Spec:
    def __init__(self, sandbox_id):
        self.sandbox_id = sandbox_id


@pytest.fixture
async def two(serving, member, tmp_path):
    """Two servers of one cluster, by their clients."""
    cluster = Cluster()

    @asynccontextmanager
    async def one(name):
        path = tmp_path / name
        path.mkdir(mode=0o711)
        share(path)
        backend = member(cluster)
        async with serving(StateDirectory(str(path)), backend) as (service, client, socket_path):
            await service.ready()
            client.service, client.backend, client.path = service, backend, socket_path
            yield client

    async with one("a") as a, one("b") as b:
        yield a, b


async def test_a_client_that_comes_to_another_server_brings_what_it_has(two, tmp_path):
    """It asks for none of them: without it the first server would let them end by the lease that nobody renews there."""
    a, b = two
    address = tmp_path / "address"
    address.symlink_to(a.path)
    async with AsyncClient(base_url=f"unix:{address}") as client:
        sandboxes = [await client.sandbox() for _ in range(3)]
        made = {sandbox.sandbox_id for sandbox in sandboxes}
        assert made <= set(a.service.registry.live)
        (tmp_path / "next").symlink_to(b.path)
        (tmp_path / "next").rename(address)
        await a.sessions.close(0.1)
        async with asyncio.timeout(60):
            while not made <= set(b.service.registry.live):
                await asyncio.sleep(0.05)
            while made & set(a.service.registry.live):  # It hears of that from the links that end.
                await asyncio.sleep(0.01)
        assert not made & set(a.service.registry.live)


async def test_all_who_ask_at_once_have_it(two):
    a, b = two
    made = await a.running(detached=True)
    b.backend.looks_for.clear()
    looking = [asyncio.create_task(b.call("GET", f"/v1/sandboxes/{made['sandbox_id']}", expect=200)) for _ in range(2)]
    running = [asyncio.create_task(b.exec(made["sandbox_id"], "echo", "on")) for _ in range(3)]
    await asyncio.sleep(0.1)
    held = asyncio.Event()
    reconnect = b.backend.reconnect

    async def slow(sandbox_id):
        held.set()
        await asyncio.sleep(0.3)
        return await reconnect(sandbox_id)

    b.backend.reconnect = slow
    b.backend.looks_for.set()
    await held.wait()
    running.append(asyncio.create_task(b.exec(made["sandbox_id"], "echo", "on")))
    for task in running:
        assert ("DATA", b"on\n") in await task
    for task in looking:
        assert (await task)["status"] == "running"


async def test_a_key_takes_over_nobody_else_s(two, monkeypatch):
    """It is told what it is told of an id that there is not, and the other server goes on."""
    a, b = two
    made = await a.running(detached=True)
    path = f"/v1/sandboxes/{made['sandbox_id']}"
    with monkeypatch.context() as as_other:
        as_other.setattr(table, "CALLER", SimpleNamespace(get=lambda: Caller(tenant="other")))
        unknown = await b.call("GET", f"/v1/sandboxes/{new_sandbox_id()}", expect=404)
        for method, way in (("GET", path), ("DELETE", path), ("POST", f"{path}/execs/cancel")):
            assert (await b.call(method, way, expect=404))["error"]["code"] == unknown["error"]["code"]
        assert b.backend.taken == [] and made["sandbox_id"] in a.service.registry.live
    assert (await b.call("GET", path, expect=200))["status"] == "running"
    assert b.backend.taken == [made["sandbox_id"]]


async def test_one_that_cannot_be_reached_just_then_is_neither_lost_nor_begun_anew(two, monkeypatch):
    """It has run: what is in it would be missing, and nobody would know."""
    monkeypatch.setattr(recovery, "RECONNECT_SECONDS", 0.3)
    a, b = two
    made = await a.running(detached=True)
    b.backend.reconnect_error = SandboxUnavailableError("the network is gone", reason="unreachable")
    error = await b.exec(made["sandbox_id"], "echo", "on", expect=503)
    assert (error["reason"], error["is_infrastructure"], error["retryable"]) == ("unreachable", True, True)
    b.backend.reconnect_error = None
    assert ("DATA", b"on\n") in await b.exec(made["sandbox_id"], "echo", "on")
    assert made["sandbox_id"] not in b.backend.specs, "it was begun anew"
    assert b.backend.destroyed == []


async def test_one_that_has_gone_is_lost_and_never_begun_anew(two):
    a, b = two
    made = await a.running(detached=True)
    del b.backend.cluster.links[made["sandbox_id"]]
    error = await b.exec(made["sandbox_id"], "echo", "on", expect=409)
    assert (error["reason"], error["is_infrastructure"]) == ("lost", True)
    assert made["sandbox_id"] not in b.backend.specs, "it was begun anew"


async def test_one_that_another_server_takes_while_it_starts_is_not_destroyed(two):
    a, b = two
    taken = asyncio.Event()

    async def gone(sandbox):
        await taken.wait()
        raise SandboxGone(sandbox.link.ended())

    a.service.lifecycle._egress.attach = gone
    made = await a.create(detached=True)
    while made["sandbox_id"] not in a.backend.cluster.links:
        await asyncio.sleep(0.01)
    assert (await b.wait(made["sandbox_id"], "running"))["status"] == "running"
    taken.set()
    async with asyncio.timeout(60):
        while made["sandbox_id"] in a.service.registry.live:
            await asyncio.sleep(0.01)
    assert a.backend.destroyed == []
    assert ("DATA", b"on\n") in await b.exec(made["sandbox_id"], "echo", "on")


async def test_one_that_is_handed_over_while_the_store_takes_nothing_holds_up_nobody(two, monkeypatch):
    a, b = two
    made = await a.running(detached=True)

    def full(sandbox_id):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(a.service.store, "forget_sandbox", full)
    stopping = asyncio.create_task(a.wait(made["sandbox_id"], "ended"))
    await asyncio.sleep(0.05)
    assert (await b.wait(made["sandbox_id"], "running"))["status"] == "running"
    async with asyncio.timeout(60):
        while made["sandbox_id"] in a.service.registry.live:
            await asyncio.sleep(0.01)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)


async def test_a_detached_command_is_not_killed_where_another_server_has_its_sandbox(two, monkeypatch):
    """That does not know which commands are: one that nobody reads may be meant so."""
    monkeypatch.setattr("aviato.server.service.execs.ABANDONED_SECONDS", 0.1)
    a, b = two
    made = await a.running(detached=True)
    exec_id = new_exec_id()
    body = {"exec_id": exec_id, "command": ["hang"], "detach": True}
    (await a.http.post(f"{a.base}/v1/sandboxes/{made['sandbox_id']}/execs", json=body)).close()
    link = a.backend.cluster.links[made["sandbox_id"]]
    while exec_id not in link.execs:
        await asyncio.sleep(0.01)
    assert (await b.wait(made["sandbox_id"], "running"))["status"] == "running"
    await asyncio.sleep(0.5)
    assert not b.backend.cluster.links[made["sandbox_id"]].execs[exec_id].over


async def test_what_is_kept_of_a_detached_command_is_there_when_its_sandbox_comes_back(two):
    a, b = two
    made = await a.running(detached=True)
    path, exec_id = f"/v1/sandboxes/{made['sandbox_id']}", new_exec_id()
    (await a.http.post(f"{a.base}{path}/execs", json={"exec_id": exec_id, "command": ["hang"], "detach": True})).close()
    links = a.backend.cluster.links
    while exec_id not in links[made["sandbox_id"]].execs:
        await asyncio.sleep(0.01)
    links[made["sandbox_id"]].execs[exec_id].write(b"first\n")
    while not any(ack[1] for ack in links[made["sandbox_id"]].acknowledged):
        await asyncio.sleep(0.01)
    run = links[made["sandbox_id"]].execs[exec_id]
    run.frames = [frame for frame in run.frames if frame.type != FrameType.DATA]  # As process 1 has it no more.
    for server in (b, a):
        assert (await server.call("GET", path, expect=200))["status"] == "running"
    links[made["sandbox_id"]].execs[exec_id].write(b"second\n")
    links[made["sandbox_id"]].execs[exec_id].exit(0)
    await asyncio.sleep(0.5)  # What was to be taken away is.
    frames = decode(await a.call("GET", f"{path}/execs/{exec_id}?stdout=0&stderr=0&reader_id=r", expect=200))
    assert b"".join(payload for kind, payload in frames if kind == "DATA") == b"first\nsecond\n"
