"""A lease over a Unix socket is the client's process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from aviato.server.peers import Asker, boot_id, open_process, start_ticks
from aviato.wire.ids import new_lease_id, new_sandbox_id

pytestmark = pytest.mark.anyio

CLIENT = """
import json, socket, sys, time
path, lease, sandbox = sys.argv[1:4]
body = json.dumps({"sandbox_id": sandbox, "lease_id": lease})
s = socket.socket(socket.AF_UNIX); s.connect(path)
s.sendall(f"POST /v1/sandboxes HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n{body}".encode())
print(s.recv(65536).split()[1].decode(), flush=True)
if sys.argv[4] == "gone":
    sys.exit()
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr("aviato.server.service.leases.PROCESS_GRACE_SECONDS", 0.2)


async def client_process(path, lease_id, sandbox_id, how="stays"):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", "-c", CLIENT, path, lease_id, sandbox_id, how, stdout=asyncio.subprocess.PIPE
    )
    assert await process.stdout.readline() == b"201\n"
    return process


@pytest.mark.parametrize("pending", [False, True], ids=["running", "in mid-create"])
async def test_a_killed_client_leaves_nothing_and_a_siblings_sandbox_is_untouched(serving, folder, backend, pending):
    async with serving(folder, backend) as (service, client, path):
        mine = (await client.running())["sandbox_id"]
        if pending:
            backend.switches.create_waits = asyncio.Event()
        other = new_sandbox_id()
        process = await client_process(path, new_lease_id(), other)
        assert len(service.leases.held) == 2
        process.send_signal(signal.SIGKILL)
        await process.wait()
        info = await client.wait(other, "ended", timeout=5)
        assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("terminated", "lease_expired", True)
        assert (await client.wait(mine, "running"))["status"] == "running"
        assert backend.places == {mine} and len(service.leases.held) == 1


async def test_a_client_that_stands_still_loses_nothing(serving, folder, backend):
    async with serving(folder, backend, lease=0.4) as (_, client, path):
        sandbox_id = new_sandbox_id()
        process = await client_process(path, new_lease_id(), sandbox_id)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.0)
        assert (await client.call("GET", f"/v1/sandboxes/{sandbox_id}"))["status"] == "running"
        process.kill()
        await process.wait()
        assert (await client.wait(sandbox_id, "ended", timeout=5))["status_reason"] == "lease_expired"


async def test_a_client_that_was_gone_before_its_create_was_read_leaves_nothing(serving, folder, backend):
    async with serving(folder, backend) as (service, client, path):
        sandbox_id = new_sandbox_id()
        process = await client_process(path, new_lease_id(), sandbox_id, "gone")
        await process.wait()
        assert (await client.wait(sandbox_id, "ended", timeout=5))["status_reason"] == "lease_expired"
        assert not service.leases.held


async def test_a_process_that_lives_is_found_again_after_a_restart(serving, folder, backend):
    async with serving(folder, backend) as (_, _, path):
        sandbox_id, lease_id = new_sandbox_id(), new_lease_id()
        process = await client_process(path, lease_id, sandbox_id)
    async with serving(folder, backend, lease=0.4) as (service, client, _):
        await client.wait(sandbox_id, "running")
        assert service.leases.held[lease_id].pid == process.pid and service.leases.held[lease_id].kind == "process"
        await asyncio.sleep(0.8)
        assert (await client.call("GET", f"/v1/sandboxes/{sandbox_id}"))["status"] == "running"
        process.kill()
        await process.wait()
        assert (await client.wait(sandbox_id, "ended", timeout=5))["status_reason"] == "lease_expired"


async def test_leases_over_http(server):
    lease = await server.call("PUT", f"/v1/leases/{server.lease_id}", expect=200)
    assert lease == {"lease_id": server.lease_id, "kind": "process", "period_seconds": 60.0, "sandboxes": 0}
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        await server.call("PUT", f"/v1/leases/{server.lease_id}", expect=200)
    assert len(os.listdir("/proc/self/fd")) == before
    await server.call("DELETE", f"/v1/leases/{server.lease_id}", expect=200)
    await server.call("DELETE", f"/v1/leases/{server.lease_id}", expect=200)
    assert not server.service.leases.held and not server.service.store.leases()
    assert (await server.call("PUT", "/v1/leases/nonsense", expect=400))["error"]["field_violations"]


async def test_a_server_that_stood_still_does_not_hold_it_against_its_clients(server):
    lease = server.service.leases.renew(new_lease_id(), lambda: None)
    server.service.leases.tick(59.0)
    assert lease.lease_id in server.service.leases.held
    server.service.leases.renew(lease.lease_id, lambda: None)
    server.service.leases.tick(59.0)
    assert lease.lease_id in server.service.leases.held
    server.service.leases.tick(2.0)
    assert lease.lease_id not in server.service.leases.held


class Connection:
    """Open or not."""

    closing = False

    def is_closing(self):
        return self.closing

    def get_extra_info(self, name):
        return None


async def test_who_keeps_the_connection_may_be_silent_for_longer_but_not_for_ever(server):
    leases = server.service.leases
    silent, gone = (leases.renew(new_lease_id(), Asker(Connection())) for _ in range(2))
    leases.tick(120.0)
    gone.connection.closing = True
    leases.tick(21.0)
    assert silent.lease_id in leases.held and gone.lease_id not in leases.held
    leases.tick(40.0)
    assert silent.lease_id not in leases.held


async def test_one_that_never_had_a_sandbox_is_forgotten(server):
    """A renewal that was delayed on its way comes after the lease was given back, by a process that may live for days."""
    leases = server.service.leases
    echo = new_lease_id()
    await server.call("PUT", f"/v1/leases/{echo}", expect=200)
    sandbox_id = (await server.running())["sandbox_id"]
    await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    for _ in range(3):
        assert set(leases.held) == {echo, server.lease_id}
        leases.tick(leases.period_seconds / 3)
    leases.tick(0.1)
    assert set(leases.held) == {server.lease_id}
    assert [one.lease_id for one in server.service.store.leases()] == [server.lease_id]


def test_a_process_is_named_by_its_id_and_its_start():
    assert start_ticks(os.getpid()) and start_ticks(2**22 + 1) is None
    assert len(boot_id()) == 36
    fd = open_process(os.getpid())
    assert fd is not None
    os.close(fd)
    assert open_process(2**22 + 1) is None
