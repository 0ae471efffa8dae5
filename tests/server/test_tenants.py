"""What a key sees of others, which is nothing, and what it may use."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import sqlite3
from contextlib import asynccontextmanager

import aiohttp
import pytest

from aviato.server.backends.capabilities import Capability
from aviato.server.connections.guard import Guard, hash_key
from aviato.server.connections.listening import Listeners, listen_tcp, listen_unix
from aviato.server.front import Front
from aviato.server.operations import OPERATIONS
from aviato.server.service import Service
from aviato.server.service.exec_records import RECORD_DELAY_SECONDS
from aviato.server.settings import ServerSettings
from aviato.wire.ids import new_exec_id, new_lease_id, new_pool_id, new_reset_id, new_sandbox_id, new_snapshot_id
from aviato.wire.sandboxes import CreateSandbox
from tests.server.frames import Session

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["http", "session"], autouse=True)
def carrier(request, monkeypatch):
    """What brings requests: whoever may do a thing by one may do it by the other."""
    monkeypatch.setattr(Tenant, "carrier", request.param)


class Tenant:
    """The API with one key; without one it is the server's own user on the Unix socket."""

    carrier = "http"

    def __init__(self, http, base, key, where=None):
        self.http, self.base, self.where = http, base, where
        self.session = None
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.lease_id = new_lease_id()

    async def ask(self, method, path, body=None, **more):
        data = io.BytesIO(json.dumps(body).encode()) if body is not None else None
        more = {"data": data, **more}
        if self.carrier == "session":
            return await self._ask(f"{method} {path}", **more)
        async with self.http.request(method, self.base + path, headers=self.headers, **more) as response:
            raw = await response.read()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(raw) if is_json else raw, response.headers

    async def _ask(self, line, data, headers=None):
        if self.session is None:
            self.session = await Session(self.where, self.headers).__aenter__()
        if hasattr(data, "__aiter__"):
            channel = self.session.open(line, headers=headers, whole=False)
            sent = 0
            async for piece in data:
                self.session.data(channel, piece, sent)
                sent += len(piece)
            self.session.end(channel)
            status, headers, raw = await self.session.answer(channel)
        else:
            status, headers, raw = await self.session.ask(line, data.read() if data is not None else b"", headers=headers)
        return status, json.loads(raw) if headers.get("Content-Type") == "application/json" else raw, headers

    async def call(self, method, path, body=None, *, expect=200, **more):
        status, answer, _ = await self.ask(method, path, body, **more)
        assert status == expect, (status, answer)
        return answer

    async def create(self, *, expect=201, **fields):
        body = {"sandbox_id": new_sandbox_id(), "lease_id": self.lease_id, **fields}
        return await self.call("POST", "/v1/sandboxes", body, expect=expect)

    async def running(self, **fields):
        sandbox_id = (await self.create(**fields))["sandbox_id"]
        info = await self.call("GET", f"/v1/sandboxes/{sandbox_id}?wait=running")
        assert info["status"] == "running", info
        return sandbox_id

    async def listed(self, query="?include_stopped=true"):
        return [info["sandbox_id"] for info in (await self.call("GET", f"/v1/sandboxes{query}"))["sandboxes"]]


@asynccontextmanager
async def serving(folder, backend, *limits, **settings):
    """Yields the service, the server's own user, and a tenant for each key, whose limits are given."""
    folder.make()
    service = Service(ServerSettings(**settings), folder, backend)
    keys = [f"av-{number}" for number, _ in enumerate(limits)]
    guard = Guard([f"{hash_key(key)} {more}" for key, more in zip(keys, limits, strict=True)])
    front = Front(service, guard)
    path = os.path.join(folder.path, "sock")
    listener = listen_tcp("127.0.0.1", 0)
    await front.open(Listeners(sockets=[listen_unix(path), listener]))
    address = listener.getsockname()
    base = f"http://127.0.0.1:{address[1]}"
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as own, aiohttp.ClientSession() as tcp:
            tenants = [Tenant(own, "http://server", None, path), *(Tenant(tcp, base, key, address) for key in keys)]
            yield service, *tenants
            for tenant in tenants:
                if tenant.session is not None:
                    await tenant.session.__aexit__()
    finally:
        await front.close()


BODIES = {
    "ExecRequest": lambda: {"exec_id": new_exec_id(), "command": ["echo", "x"]},
    "SignalRequest": lambda: {"signal": 9},
    "TerminalSize": lambda: {"width": 80, "height": 24},
    "StopSandbox": dict,
    "TakeSnapshot": dict,
    "ResetSandbox": dict,
}
OF_A_SANDBOX = [route for route in OPERATIONS if "{sandbox_id}" in route.path]


SNAPSHOT, RESET, POOL = new_snapshot_id(), new_reset_id(), new_pool_id()
OTHERS = {
    "GET /v1/health": "numbers of the server",
    "GET /v1/openapi.json": "the same for all",
    "GET /health": "the same for all",
    "POST /v1/sandboxes": "test_ids_of_others_cannot_be_joined",
    "GET /v1/sandboxes": "test_listings",
    "POST /v1/acknowledgements": "test_nobody_lets_go_or_acknowledges_for_another",
    "PUT /v1/leases/{lease_id}": "test_leases_of_others_hold",
    "DELETE /v1/leases/{lease_id}": "test_leases_of_others_hold",
    "POST /run_code": "a sandbox of its own, and a repeat is taken up for the same tenant alone",
    "POST /v1/runs": "a sandbox of its own; the id of another's is in conflict, as in a create",
    "GET /v1/images": "images are the server's: all may look at them",
    "GET /v1/images/inspect": "images are the server's: all may look at them",
    **dict.fromkeys(
        ("POST /v1/images/pull", "POST /v1/images/remove", "POST /v1/images/prune", "POST /v1/images/pin"),
        "tests/images/test_operations.py::test_tenants_look_and_change_nothing",
    ),
    **dict.fromkeys(
        ("POST /v1/images/push", "GET /v1/images/export"),
        "tests/images/test_operations.py::test_tenants_look_and_change_nothing",
    ),
    "POST /execute_batch": "sandboxes of its own",
    "GET /v1/snapshots": "tests/end_to_end/test_keys.py::test_snapshots_are_those_of_the_key",
    **dict.fromkeys(("PUT /v1/pools/{pool_id}", "DELETE /v1/pools/{pool_id}"), "test_pools_of_others_stay"),
    "DELETE /v1/snapshots/{snapshot_id}": "tests/end_to_end/test_keys.py::test_snapshots_are_those_of_the_key",
}
"""Routes without a sandbox in their path, and why nobody sees what is another's by them."""


def test_no_route_is_forgotten():
    """One that names a sandbox in its path is tried below; any other must be thought about, and stand above."""
    routes = {f"{route.method} {route.path}" for route in OPERATIONS}
    assert routes == {f"{route.method} {route.path}" for route in OF_A_SANDBOX} | OTHERS.keys()


async def tried(tenant, route, sandbox_id, exec_id):
    """Status and error of a route, without the ids in it."""
    path = route.path.replace("{sandbox_id}", sandbox_id).replace("{exec_id}", exec_id).replace("{port}", "8000")
    path = path.replace("{snapshot_id}", SNAPSHOT).replace("{reset_id}", RESET)
    if "/files" in path:
        path += "?path=/tmp/x"
    body = BODIES[route.body.__name__]() if isinstance(route.body, type) else None
    more = {"data": io.BytesIO(b"x")} if isinstance(route.body, str) else {}
    status, answer, _ = await tenant.ask(route.method, path, body, **more)
    return status, json.loads(json.dumps(answer).replace(sandbox_id, "ID")) if isinstance(answer, dict) else answer


@pytest.mark.parametrize("route", OF_A_SANDBOX, ids=[f"{route.method} {route.path}" for route in OF_A_SANDBOX])
@pytest.mark.parametrize("ended", [False, True])
async def test_another_s_sandbox_is_one_that_is_not_there(folder, backend, route, ended):
    async with serving(folder, backend, "", "") as (service, _, mine, other):
        sandbox_id = await mine.running()
        if ended:
            await mine.call("DELETE", f"/v1/sandboxes/{sandbox_id}")
        exec_id = new_exec_id()
        seen = await tried(other, route, sandbox_id, exec_id)
        assert seen == await tried(other, route, new_sandbox_id(), exec_id)
        assert seen[0] == 404 and seen[1]["error"]["code"] == "SANDBOX_NOT_FOUND"
        if not ended:
            assert service.registry.live[sandbox_id].runs
            assert (await tried(mine, route, sandbox_id, exec_id))[1] != seen[1]


async def test_without_the_check_they_are_seen(folder, backend, monkeypatch):
    """The control: what the tests around this one try succeeds where every caller sees everything."""
    monkeypatch.setattr("aviato.server.callers.Caller.sees", lambda self, owner: True)
    async with serving(folder, backend, "", "") as (_, _, mine, other):
        sandbox_id = await mine.running()
        exec_id = new_exec_id()
        seen = [await tried(other, route, sandbox_id, exec_id) for route in OF_A_SANDBOX]
        assert not [error for status, error in seen if status == 404 and error["error"]["code"] == "SANDBOX_NOT_FOUND"]
        assert (await mine.call("GET", f"/v1/sandboxes/{sandbox_id}"))["status"] == "terminated"


async def test_listings(folder, backend):
    async with serving(folder, backend, "", "", "tenant=shared", "tenant=shared") as (_, own, a, b, c, d):
        by = {tenant: await tenant.running(tags=["t"]) for tenant in (own, a, b, c, d)}
        assert await a.listed() == await a.listed("?tag=t") == await a.listed("?status=running&limit=1") == [by[a]]
        assert await b.listed(f"?lease_id={a.lease_id}") == []
        assert await c.listed() == await d.listed() == [by[c], by[d]]
        assert await own.listed() == list(by.values())
        await c.call("DELETE", f"/v1/sandboxes/{by[d]}")
        await own.call("DELETE", f"/v1/sandboxes/{by[a]}")
        assert await a.listed("") == [] and await a.listed() == [by[a]]


async def test_ids_of_others_cannot_be_joined(folder, backend):
    async with serving(folder, backend, "", "") as (service, _, mine, other):
        body = {"sandbox_id": new_sandbox_id(), "detached": True}
        await mine.call("POST", "/v1/sandboxes", body, expect=201)
        await mine.call("POST", "/v1/sandboxes", body, expect=200)
        refused = await other.call("POST", "/v1/sandboxes", body, expect=409)
        changed = await other.call("POST", "/v1/sandboxes", {**body, "tags": ["t"]}, expect=409)
        assert refused == changed and refused["error"]["code"] == "REQUEST_ID_CONFLICT"
        assert service.registry.live[body["sandbox_id"]].record.owner != hash_key("av-1")[:32]


async def test_ids_of_others_commands_say_nothing(folder, backend):
    async with serving(folder, backend, "", "") as (service, _, mine, other):
        exec_id = new_exec_id()
        run = {"exec_id": exec_id, "command": ["echo", "x"]}
        theirs, its = await mine.running(), await other.running()
        await mine.call("POST", f"/v1/sandboxes/{theirs}/execs", run)
        while (known := service.store.exec(exec_id)) is None:
            await asyncio.sleep(0.01)
        await other.call("POST", f"/v1/sandboxes/{its}/execs", {**run, "command": ["echo", "else"]})
        await asyncio.sleep(2 * RECORD_DELAY_SECONDS)
        assert service.store.exec(exec_id) == known
        await other.call("DELETE", f"/v1/sandboxes/{its}")
        for name in (exec_id, new_exec_id()):
            answer = await other.call("POST", f"/v1/sandboxes/{its}/execs", {**run, "exec_id": name}, expect=409)
            assert answer["error"]["started"] is False


async def test_pools_of_others_stay(folder, backend):
    backend.capabilities, backend.claim = backend.capabilities | {Capability.POOLS}, lambda spec, link: None
    async with serving(folder, backend, "", "") as (service, own, mine, other):
        path, body = f"/v1/pools/{POOL}", {"size": 1, "sandbox": {"sandbox_id": new_sandbox_id()}}
        await mine.call("PUT", path, body)
        for another in (own, other):
            status, answer, _ = await another.ask("PUT", path, body)
            assert status == 409, answer
            assert (await another.ask("DELETE", path))[0] == 204
        assert len(service.warm_pools._own) == 1
        while not service.warm_pools._own[POOL].ready:
            await asyncio.sleep(0.01)
        # It is given to nobody else, who has one made as any other.
        sandbox_id = await other.running(pool_id=POOL)
        assert service.registry.record(sandbox_id).place_id is None
        sandbox_id = await mine.running(pool_id=POOL)
        assert service.registry.record(sandbox_id).place_id is not None
        await mine.ask("DELETE", path)
        assert not service.warm_pools._own


async def test_leases_of_others_hold(folder, backend):
    async with serving(folder, backend, "", "") as (service, own, mine, other):
        sandbox_id = await mine.running()
        await other.call("DELETE", f"/v1/leases/{mine.lease_id}")
        await other.call("PUT", f"/v1/leases/{mine.lease_id}", expect=409)
        other.lease_id, lease_id = mine.lease_id, other.lease_id
        await other.create(expect=409)
        assert service.registry.live.keys() == {sandbox_id} and mine.lease_id in service.leases.held
        other.lease_id = lease_id
        kept = await other.running()
        await mine.call("PUT", f"/v1/leases/{mine.lease_id}")
        await mine.call("DELETE", f"/v1/leases/{mine.lease_id}")
        await mine.call("GET", f"/v1/sandboxes/{sandbox_id}?wait=ended")
        assert service.registry.live.keys() == {kept}
        await own.call("DELETE", f"/v1/leases/{other.lease_id}")
        await other.call("GET", f"/v1/sandboxes/{kept}?wait=ended")
        assert service.registry.live == {}


async def test_nobody_lets_go_or_acknowledges_for_another(folder, backend):
    async with serving(folder, backend, "", "") as (service, _, mine, other):
        sandbox_id = await mine.running(releasable=True)
        exec_id = new_exec_id()
        await mine.call("POST", f"/v1/sandboxes/{sandbox_id}/execs", {"exec_id": exec_id, "command": ["echo", "x"]})
        ack = {"sandbox_id": sandbox_id, "exec_id": exec_id, "stdout": 2, "stderr": 0, "done": True}
        body = {"execs": [ack], "let_go": [sandbox_id]}
        box, link = service.registry.live[sandbox_id], backend.links[sandbox_id]
        before = list(link.acknowledged)
        await other.call("POST", "/v1/acknowledgements", body, expect=204)
        assert not box.record.let_go and exec_id in box.execs and link.acknowledged == before
        await mine.call("POST", "/v1/acknowledgements", body, expect=204)
        assert box.record.let_go and exec_id not in box.execs


async def test_long_acknowledgements_hold_up_nobody(folder, backend, monkeypatch):
    async with serving(folder, backend, "") as (service, _, mine):
        unknown = new_sandbox_id()
        ack = {"sandbox_id": unknown, "exec_id": new_exec_id()}
        for body in ({"let_go": [unknown] * 1001}, {"execs": [ack] * 1001}):
            error = (await mine.call("POST", "/v1/acknowledgements", body, expect=400))["error"]
            assert next(iter(body)) in error["message"] and not error["retryable"]
        asked = []
        monkeypatch.setattr(service.store, "sandbox", asked.append)
        await mine.call("POST", "/v1/acknowledgements", {"let_go": [unknown] * 1000, "execs": [ack] * 1000}, expect=204)
        assert not asked


async def test_the_queue_tells_a_tenant_of_its_own_holders(folder, backend):
    async with serving(folder, backend, "", "", max_sandboxes=2) as (_, own, mine, other):
        await mine.running()
        await other.running()
        waiting = (await mine.create())["sandbox_id"]
        queue = (await mine.call("GET", f"/v1/sandboxes/{waiting}"))["queue"]
        assert queue["holders"] == {f"lease {mine.lease_id}": 1, "others": 1}
        waiting = (await own.create())["sandbox_id"]
        queue = (await own.call("GET", f"/v1/sandboxes/{waiting}"))["queue"]
        assert queue["holders"] == {f"lease {mine.lease_id}": 1, f"lease {other.lease_id}": 1}


async def test_a_restart_changes_nothing_of_it(folder, backend):
    async with serving(folder, backend, "", "") as (_, _, mine, other):
        sandbox_id, lease_id = await mine.running(), mine.lease_id
    async with serving(folder, backend, "", "") as (_, _, mine, other):
        await other.call("GET", f"/v1/sandboxes/{sandbox_id}", expect=404)
        await other.call("PUT", f"/v1/leases/{lease_id}", expect=409)
        assert await other.listed() == [] and await mine.listed() == [sandbox_id]
        await mine.call("PUT", f"/v1/leases/{lease_id}")


def as_before_there_were_tenants(folder):
    """Make of a store what a version that knew no tenants would have left."""
    db = sqlite3.connect(folder.store)
    for table in ("sandboxes", "leases"):
        db.execute(f"ALTER TABLE {table} DROP COLUMN owner")
    newer = ("unkept_promises", "for_one_run", "place_id", "expires_at", "lies_over", "moving", "image_id", "first_image_id")
    for column in newer:
        db.execute(f"ALTER TABLE sandboxes DROP COLUMN {column}")
    for sandbox_id, body in db.execute("SELECT sandbox_id, body FROM sandboxes WHERE body IS NOT NULL").fetchall():
        whole = CreateSandbox.model_validate_json(body).model_dump(mode="json")
        known = {name: value for name, value in whole.items() if name not in NEWER}
        text = json.dumps(known, sort_keys=True).encode()
        db.execute("UPDATE sandboxes SET body_hash = ? WHERE sandbox_id = ?", (hashlib.sha256(text).hexdigest(), sandbox_id))
    db.execute("PRAGMA user_version = 4")
    db.commit()
    db.close()


NEWER = ("lease_id", "secrets", "secret_values", "egress_mode", "packages")


async def test_sandboxes_of_an_older_version_stay_with_those_who_made_them(folder, backend):
    async with serving(folder, backend, "", "", max_sandboxes=4) as (_, own, mine, _):
        kept, by_socket = await mine.running(tags=["t"]), await own.running()
        body = {"sandbox_id": new_sandbox_id(), "lease_id": mine.lease_id, "tags": ["waits"]}
        await mine.running()
        await own.running()
        await mine.call("POST", "/v1/sandboxes", body, expect=201)
        lease_id = mine.lease_id
    as_before_there_were_tenants(folder)
    async with serving(folder, backend, "", "", max_sandboxes=4) as (_, own, mine, other):
        mine.lease_id = lease_id
        await mine.call("PUT", f"/v1/leases/{lease_id}")
        await mine.call("POST", f"/v1/sandboxes/{kept}/execs", {"exec_id": new_exec_id(), "command": ["echo", "x"]})
        await mine.call("POST", "/v1/sandboxes", body, expect=200)
        await own.call("DELETE", f"/v1/sandboxes/{by_socket}")
        info = await mine.call("GET", f"/v1/sandboxes/{body['sandbox_id']}?wait=running")
        assert info["status"] == "running"
        # Any key saw them and could end them, as it was when they were made; what is new is its maker's alone.
        assert kept in await other.listed() and kept in await mine.listed()
        await other.call("DELETE", f"/v1/sandboxes/{kept}")
        new = await mine.running()
        await other.call("GET", f"/v1/sandboxes/{new}", expect=404)
        assert new not in await other.listed() and new in await mine.listed()
        await mine.call("DELETE", f"/v1/leases/{lease_id}")
        await mine.call("GET", f"/v1/sandboxes/{new}?wait=ended")


async def test_so_many_requests_a_second(folder, backend):
    async with serving(folder, backend, "requests-per-second=2", "") as (_, _, slow, other):
        answers = [await slow.ask("GET", "/v1/health") for _ in range(6)]
        statuses = [status for status, _, _ in answers]
        first = 1 if slow.carrier == "session" else 2  # The one that opens it counts.
        assert statuses[:first] == [200] * first and 429 in statuses[first:]
        _, error, headers = next(answer for answer in answers if answer[0] == 429)
        assert error["error"]["reason"] == "rate_limit" and 0 < error["error"]["retry_delay_seconds"] <= 0.5
        assert error["error"]["retryable"] and int(headers["Retry-After"]) >= 1
        assert [await other.call("GET", "/v1/health") for _ in range(20)]
        await asyncio.sleep(error["error"]["retry_delay_seconds"])
        await slow.call("GET", "/v1/health")
        # What clients send by themselves waits behind nothing.
        for _ in range(20):
            await slow.call("PUT", f"/v1/leases/{slow.lease_id}")
            await slow.call("POST", "/v1/acknowledgements", {"execs": [], "let_go": []}, expect=204)


async def test_so_many_sandboxes(folder, backend):
    async with serving(folder, backend, "tenant=a max-sandboxes=2", "tenant=b", "tenant=a") as (_, _, mine, other, same):
        first = await mine.running()
        await same.running()
        error = (await mine.create(expect=429))["error"]
        assert error["reason"] == "key_limit" and error["retryable"] and error["is_infrastructure"]
        assert all([await other.running() for _ in range(3)])
        await mine.call("DELETE", f"/v1/sandboxes/{first}")
        last = await mine.running(releasable=True)
        await mine.create(expect=429)
        await mine.call("POST", "/v1/acknowledgements", {"execs": [], "let_go": [last]}, expect=204)
        assert (await mine.create(expect=429))["error"]["retry_delay_seconds"] < 1
        assert (await mine.call("GET", f"/v1/sandboxes/{last}?wait=ended"))["status_reason"] == "released"
        await mine.running()


async def chunked(data):
    for start in range(0, len(data), 100):
        yield data[start : start + 100]


async def test_so_large_a_body(folder, backend):
    async with serving(folder, backend, "max-body-bytes=1000", "") as (service, _, mine, other):
        sandbox_id = await mine.running()
        command = json.dumps({"exec_id": new_exec_id(), "command": ["echo", "x" * 1000]}).encode()
        for method, path, data in (
            ("POST", f"/v1/sandboxes/{sandbox_id}/execs", command),
            ("PUT", f"/v1/sandboxes/{sandbox_id}/files?path=/tmp/x", b"x" * 1001),
            ("PUT", f"/v1/sandboxes/{sandbox_id}/files/tree?path=/tmp/x", b"x" * 1001),
        ):
            for body in (io.BytesIO(data), chunked(data)):
                error = (await mine.call(method, path, data=body, expect=413))["error"]
                assert "1000 bytes" in error["message"]
        stdin = f"/v1/sandboxes/{sandbox_id}/execs/{new_exec_id()}/stdin"
        assert "1000 bytes" in (await mine.call("POST", stdin, data=io.BytesIO(b"x" * 1001), expect=413))["error"]["message"]
        large = {"sandbox_id": new_sandbox_id(), "detached": True, "tags": ["x" * 250] * 5}
        await mine.call("POST", "/v1/sandboxes", large, expect=413)
        await other.call("POST", "/v1/sandboxes", large, expect=201)
        assert service.registry.live[sandbox_id].execs == backend.links[sandbox_id].files == {}
        path = f"/v1/sandboxes/{sandbox_id}/files?path=/tmp/x"
        await mine.call("PUT", path, data=chunked(b"x" * 1000), expect=204)
        assert backend.links[sandbox_id].files == {"/tmp/x": b"x" * 1000}


async def test_a_key_that_was_taken_out_of_the_file_is_one_no_more(folder, backend):
    folder.make()
    service = Service(ServerSettings(), folder, backend)
    service.store.add_key_hash(hash_key("old"))
    service.store.forget_key_hashes()
    service.store.add_key_hash(hash_key("new"))
    assert service.store.key_hashes() == [hash_key("new")]
    service.store.close()
