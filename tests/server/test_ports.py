"""Exposed ports at the server: floods are bounded, and cost no other port."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
from pathlib import Path

import pytest

from aviato.server.backends.capabilities import Capability
from aviato.server.backends.registry import make_backend
from aviato.server.service import ports as ports_module
from aviato.wire.ids import new_exec_id, new_sandbox_id

pytestmark = pytest.mark.anyio

ECHO = """
import socketserver, sys
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 256
    daemon_threads = True
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def tmp_path(passable_path):
    return passable_path


@pytest.fixture
def backend(folder):
    return make_backend("local", directory=Path(folder.path))


async def connect(info, port):
    address = int(info["service_urls"][str(port)].rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", address)


async def says(connection, data, seconds=5):
    reader, writer = connection
    writer.write(data)
    async with asyncio.timeout(seconds):
        return await reader.readexactly(len(data))


async def listening(server, info, port):
    path = f"/v1/sandboxes/{info['sandbox_id']}/ports/{port}?timeout_seconds=20"
    assert (await server.call("GET", path, expect=200))["listening"]


async def serve(server, info, port):
    body = {"exec_id": new_exec_id(), "command": ["python3", "-c", ECHO, str(port)], "timeout_seconds": 60}
    task = asyncio.create_task(server.call("POST", f"/v1/sandboxes/{info['sandbox_id']}/execs", body=body))
    await listening(server, info, port)
    return task


async def test_a_flood_of_one_port_waits_and_others_go_on(server, monkeypatch, caplog):
    monkeypatch.setattr(ports_module, "CONNECTIONS_A_PORT", 20)
    info = await server.running(ports=[9000, 9001], detached=True)
    tasks = [await serve(server, info, port) for port in (9000, 9001)]
    before = len(os.listdir("/proc/self/fd"))
    flood = await asyncio.gather(*(connect(info, 9000) for _ in range(60)))
    other = await connect(info, 9001)
    for n in range(20):
        assert await says(other, b"%d" % n) == b"%d" % n
    service = server.service.ports
    assert len(service._exposed[info["sandbox_id"]].ports[9000].connections) == 20
    assert "port 9000 of sandbox" in caplog.text and "the most that it may have" in caplog.text
    answers = [asyncio.create_task(says(connection, b"x", 20)) for connection in flood]
    # One leaves, the next comes in.
    for answer, (_, writer) in zip(answers, flood, strict=True):
        assert await answer == b"x"
        writer.close()
    other[1].close()
    async with asyncio.timeout(5):
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0.02)
    await server.call("DELETE", f"/v1/sandboxes/{info['sandbox_id']}", expect=200)
    await asyncio.gather(*tasks)


async def test_all_ports_together_leave_descriptors_for_the_rest(server):
    service = server.service.ports
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 2 * service.most_connections + service.most_listeners <= files // 2
    service.most_connections = 5
    info = await server.running(ports=[9000, 9001], detached=True)
    tasks = [await serve(server, info, port) for port in (9000, 9001)]
    flood = [await connect(info, port) for _ in range(10) for port in (9000, 9001)]
    answers = [asyncio.create_task(says(connection, b"x", 20)) for connection in flood]
    while sum(answer.done() for answer in answers) < 5:
        await asyncio.sleep(0.02)
    assert service._connections() == 5
    while left := [n for n, answer in enumerate(answers) if answer is not None]:
        await asyncio.wait([answers[n] for n in left], return_when=asyncio.FIRST_COMPLETED, timeout=20)
        for n in left:
            if answers[n].done():
                assert answers[n].result() == b"x"
                flood[n][1].close()
                answers[n] = None
    await server.call("DELETE", f"/v1/sandboxes/{info['sandbox_id']}", expect=200)
    await asyncio.gather(*tasks)
    assert service._exposed == {}


async def test_more_listeners_than_there_is_room_for_are_refused(server):
    server.service.ports.most_listeners = 3
    info = await server.running(ports=[1, 2], detached=True)
    error = (await server.create(ports=[1, 2], detached=True, expect=429))["error"]
    assert error["code"] == "RESOURCE_EXHAUSTED" and "2 ports" in error["message"] and error["retryable"]
    await server.call("DELETE", f"/v1/sandboxes/{info['sandbox_id']}", expect=200)
    await server.call("DELETE", f"/v1/sandboxes/{(await server.create(ports=[1, 2], detached=True))['sandbox_id']}", expect=200)


async def test_a_wrong_create_leaves_no_listener(server):
    for ports in ([0], [65536], ["80"], [80, 80], list(range(1, 66)), [True]):
        error = (await server.create(ports=ports, detached=True, expect=400))["error"]
        assert any(name.startswith("ports") for name in error["field_violations"])
    body = {"sandbox_id": new_sandbox_id(), "detached": True, "ports": [8000], "image": "dir:nothing"}
    await server.call("POST", "/v1/sandboxes", body=body, expect=422)
    assert server.service.ports._exposed == {}


async def test_a_backend_that_has_none_refuses_them(server, monkeypatch):
    monkeypatch.setattr(server.backend, "capabilities", server.backend.capabilities - {Capability.PORTS})
    error = (await server.create(ports=[80], detached=True, expect=400))["error"]
    assert "ports" in error["field_violations"] and "'local'" in error["message"]


async def test_a_port_that_the_backend_has_itself_is_refused(server, monkeypatch):
    monkeypatch.setattr(server.backend, "own_ports", frozenset({80, 81}))
    error = (await server.create(ports=[8000, 80], detached=True, expect=400))["error"]
    assert "80 is taken" in error["field_violations"]["ports"] and "'local'" in error["message"]
    assert server.service.ports._exposed == {}


async def test_a_start_without_its_ports_fails_and_frees_them(server, monkeypatch):
    async def no_channel(sandbox_id):
        raise ConnectionRefusedError("no")

    monkeypatch.setattr(server.backend, "open_port_channel", no_channel)
    info = await server.create(ports=[80], detached=True)
    ended = await server.wait(info["sandbox_id"], "ended")
    assert (ended["status"], ended["is_infrastructure"]) == ("failed", True) and "ports" in ended["message"]
    assert server.service.ports._exposed == {} and ended["service_urls"] == {} and ended["exposed_ports"] == [80]
    with pytest.raises(ConnectionRefusedError):
        await connect(info, 80)


async def test_a_connection_that_is_cut_before_it_begins_keeps_no_socket(server):
    """It is cut between its accept and the first step of its task."""
    info = await server.running(ports=[9000], detached=True)
    service = server.service.ports
    port = service._exposed[info["sandbox_id"]].ports[9000]
    service._accept_no_more(port)
    with socket.create_connection(("127.0.0.1", port.address), 5) as client:
        service._accept(port)
        (task,) = port.connections
        await service.shut()
        assert task.cancelled()
        del task, port
        gc.collect()  # Of a socket that nobody closed this would warn.
        assert client.recv(1) == b""
    await server.call("DELETE", f"/v1/sandboxes/{info['sandbox_id']}", expect=200)
