"""A record that a server cannot read, among others, with real sandboxes."""

from __future__ import annotations

import signal
import sqlite3

import pytest

from aviato import Sandbox, SandboxFailedError


def hurt(server, sandbox_id, change):
    db = sqlite3.connect(f"{server.state_dir}/serve/store.db")
    with db:
        assert db.execute(f"UPDATE sandboxes SET body = {change} WHERE sandbox_id = ?", (sandbox_id,)).rowcount == 1
    db.close()


def test_a_record_that_cannot_be_read_costs_its_own_sandbox_alone(make_server):
    server = make_server()
    lost, newer, other = (Sandbox.run("sleep", "100", base_url=server.url) for _ in range(3))
    for one in (lost, newer, other):
        one.exec(["true"]).result()
    server.stop(signal.SIGTERM)
    hurt(server, lost.sandbox_id, "'{'")
    hurt(server, newer.sandbox_id, "json_set(body, '$.some_field', 1)")
    server.restart()
    for one in (newer, other):
        assert one.exec(["echo", "here"]).result().stdout == "here\n"
    with pytest.raises(SandboxFailedError) as caught:
        lost.exec(["true"]).result()
    assert caught.value.is_infrastructure and caught.value.reason == "lost"
    with Sandbox(base_url=server.url) as fresh:
        assert fresh.exec(["true"]).result().returncode == 0


@pytest.mark.anyio
async def test_a_record_that_cannot_be_read_costs_its_own_sandbox_alone_async(make_server):
    server = make_server()
    lost, newer = (Sandbox(base_url=server.url) for _ in range(2))
    for one in (lost, newer):
        await one.exec(["true"])
    server.stop(signal.SIGTERM)
    hurt(server, lost.sandbox_id, "'{'")
    hurt(server, newer.sandbox_id, "json_set(body, '$.some_field', 1)")
    server.restart()
    assert (await newer.exec(["echo", "here"])).stdout == "here\n"
    with pytest.raises(SandboxFailedError) as caught:
        await lost.exec(["true"])
    assert caught.value.is_infrastructure and caught.value.reason == "lost"
