"""Sandboxes that are made and ended at the Unix socket's door: as aiohttp would, on the real backend."""

from __future__ import annotations

import asyncio
import json

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.routes.short import LONGEST_GRACE_SECONDS
from aviato.server.service.secrets import Secrets
from aviato.wire.ids import new_sandbox_id
from aviato.wire.version import WIRE_HEADER, WIRE_VERSION
from tests.server.test_door import backend, by_door, connect, tmp_path, until

pytestmark = pytest.mark.anyio
__all__ = ["backend", "connect", "tmp_path"]


def request_of(path, body, *, host="localhost"):
    """As our client says it; with another host it is a stranger's."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST /v1/sandboxes{path} HTTP/1.1\r\nHost: {host}\r\n{WIRE_HEADER}: {WIRE_VERSION}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


@pytest.fixture
async def wanted(server):
    await server.service.ready()  # Before that aiohttp is who waits.
    return lambda **fields: {"sandbox_id": new_sandbox_id(), "lease_id": server.lease_id, **fields}


async def test_one_is_made_and_ended_at_the_door(server, connect, wanted):
    connection, body = await connect(), wanted()
    status, headers, said = await connection.ask(request_of("", body))
    assert (status, headers["Content-Type"], by_door(headers)) == (201, "application/json", True)
    assert json.loads(said)["sandbox_id"] == body["sandbox_id"] and json.loads(said)["status"] in ("pending", "starting")
    status, headers, said = await connection.ask(request_of("", body))
    assert (status, by_door(headers), json.loads(said)["sandbox_id"]) == (200, True, body["sandbox_id"])
    running = await server.wait(body["sandbox_id"], "running")
    assert running == await server.call("POST", "/v1/sandboxes", body=body, expect=200)
    for _ in range(2):
        status, headers, said = await connection.ask(
            request_of(f"/{body['sandbox_id']}/stop", {"graceful_shutdown_seconds": 0})
        )
        assert (status, headers["Content-Type"], by_door(headers)) == (200, "application/json", True)
        assert json.loads(said) == await server.wait(body["sandbox_id"], "ended")
    assert not server.desk.answering and not server.desk.connection_limit._busy


async def test_errors_are_the_same(server, connect, wanted, monkeypatch):
    connection, made = await connect(), wanted()
    assert (await connection.ask(request_of("", made)))[0] == 201

    async def both(path, body, *, at_door=True):
        found = []
        for host in ("localhost", "other"):
            status, headers, answer = await connection.ask(request_of(path, body, host=host))
            assert by_door(headers) == (host == "localhost" and at_door)
            error = json.loads(answer)["error"]
            found.append((status, headers["Content-Type"], headers.get("Retry-After"), error))
        assert found[0] == found[1]
        return found[0][0]

    stop = f"/{made['sandbox_id']}/stop"
    assert await both("", b"{", at_door=False) == 400
    assert await both("", wanted(tags=["x" * 10_000]), at_door=False) == 400
    assert await both(stop, {"graceful_shutdown_seconds": -1}, at_door=False) == 400
    assert await both("", {**made, "tags": ["another"]}) == 409
    assert await both("", wanted(image="there-is-none")) in (400, 404, 422)
    assert await both("", wanted(secrets=[reference("NONE")])) == 400
    assert await both(f"/{new_sandbox_id()}/stop", {}) == 404
    monkeypatch.setattr(server.service.registry, "unable", SandboxUnavailableError("not here", retry_delay_seconds=7.0))
    assert await both("", wanted()) == 503
    assert not server.desk.answering and not server.desk.connection_limit._busy


async def test_a_long_grace_is_waited_for_elsewhere(server, connect, wanted):
    connection, body = await connect(), wanted()
    await connection.ask(request_of("", body))
    stop = {"graceful_shutdown_seconds": LONGEST_GRACE_SECONDS + 1}
    status, headers, _ = await connection.ask(request_of(f"/{body['sandbox_id']}/stop", stop))
    assert (status, by_door(headers)) == (200, False)


def reference(name):
    return {"store": "env", "name": name, "env_var": "TOKEN"}


async def test_secrets_are_found_at_the_door(server, connect, wanted, monkeypatch):
    monkeypatch.setattr(server.service.sandboxes, "_secrets", Secrets({"WORD": "a word"}, None))
    connection, body = await connect(), wanted(secrets=[reference("WORD")])
    status, headers, _ = await connection.ask(request_of("", body))
    assert (status, by_door(headers)) == (201, True)
    (*_, (_, ended)) = await server.exec(body["sandbox_id"], "sh", "-c", 'test "$TOKEN" = "a word"')
    assert ended["returncode"] == 0


async def test_a_caller_that_goes_has_asked_all_the_same(server, connect, wanted):
    connection, body = await connect(), wanted(command="sh", args=["-c", "trap '' TERM; while :; do sleep 1; done"])
    await connection.ask(request_of("", body))
    await server.wait(body["sandbox_id"], "running")
    connection.send(request_of(f"/{body['sandbox_id']}/stop", {"graceful_shutdown_seconds": 1}))
    await until(lambda: server.desk.answering)
    connection.writer.transport.abort()
    await until(lambda: not server.desk.answering and not server.desk.connection_limit._busy)
    assert (await server.wait(body["sandbox_id"], "ended"))["status_reason"] == "stopped"


async def test_many_at_once(server, connect, wanted):
    async def one():
        connection, body = await connect(), wanted()
        assert (await connection.ask(request_of("", body)))[0] == 201
        (*_, (_, ended)) = await server.exec(body["sandbox_id"], "true")
        said = await connection.ask(request_of(f"/{body['sandbox_id']}/stop", {"graceful_shutdown_seconds": 0}))
        return ended["returncode"], said[0], by_door(said[1])

    assert await asyncio.gather(*(one() for _ in range(12))) == [(0, 200, True)] * 12


async def test_heads_of_stops_are_not_kept(server, connect, wanted):
    connection = await connect()
    await connection.ask(request_of("", wanted()))
    known = len(server.desk._heads)
    for _ in range(3):
        await connection.ask(request_of(f"/{new_sandbox_id()}/stop", {}))
    assert len(server.desk._heads) == known
