"""What happens by the clock."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time

import pytest

from aviato.server import reaper as reaper_module
from aviato.server.admission import HostRoom
from aviato.server.reaper import Reaper, empty_trash

pytestmark = pytest.mark.anyio


@pytest.fixture
def rounds(server, monkeypatch):
    """Goes round once, with everything due."""
    for name in ("PING_SECONDS", "CAPACITY_SECONDS", "CHECKPOINT_SECONDS", "TRASH_SECONDS", "PURGE_SECONDS"):
        monkeypatch.setattr(reaper_module, name, 0.0)
    reaper = Reaper(server.service)
    return lambda: reaper._round(time.monotonic(), 0.0)


async def test_a_supervisor_that_fell_silent_is_given_up(server, rounds, monkeypatch):
    monkeypatch.setattr(reaper_module, "PING_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr("aviato.server.service.lifecycle.OUTPUT_SECONDS", 0.05)
    silent = (await server.running())["sandbox_id"]
    healthy = (await server.running())["sandbox_id"]
    slow = (await server.running())["sandbox_id"]
    server.backend.links[silent].stubborn = server.backend.links[slow].stubborn = True
    server.backend.links[slow].slow = 1
    for _ in range(3):
        await rounds()
        await asyncio.sleep(0.1)
    info = await server.wait(silent, "ended", timeout=5)
    assert (info["status"], info["status_reason"], info["is_infrastructure"]) == ("failed", "lost", True)
    for sandbox_id in (healthy, slow):
        assert (await server.call("GET", f"/v1/sandboxes/{sandbox_id}"))["status"] == "running"


async def test_a_server_forgets_what_is_old_in_its_first_round(server):
    """One that is restarted again and again never gets older than that."""
    sandbox_id = (await server.running())["sandbox_id"]
    await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    await server.wait(sandbox_id, "ended")
    server.service.store._db.execute("UPDATE sandboxes SET ended_at = 1")
    await Reaper(server.service)._round(time.monotonic(), 0.0)
    await server.call("GET", f"/v1/sandboxes/{sandbox_id}", expect=404)


async def test_a_lifetime_that_its_supervisor_missed_is_ended_by_the_server(server, rounds):
    sandbox_id = (await server.running(max_lifetime_seconds=5))["sandbox_id"]
    await rounds()
    assert server.service.registry.live[sandbox_id].asked is None
    server.service.registry.live[sandbox_id].expires_at = time.monotonic() - reaper_module.LIFETIME_SLACK_SECONDS - 1
    await rounds()
    assert (await server.wait(sandbox_id, "ended"))["status_reason"] == "lifetime"


async def test_detached_sandboxes_have_a_lifetime_and_leased_ones_do_not(server):
    detached = (await server.running(detached=True))["sandbox_id"]
    leased = (await server.running())["sandbox_id"]
    lifecycle, live = server.service.lifecycle, server.service.registry.live
    assert 86_300 < lifecycle.spec(live[detached]).max_lifetime_seconds <= 86_400  # What is left of it.
    assert lifecycle.spec(live[leased]).max_lifetime_seconds is None
    error = await server.create(detached=True, max_lifetime_seconds=1e9, expect=400)
    assert "max_lifetime_seconds" in error["error"]["field_violations"]


async def test_old_records_and_their_output_are_forgotten(server, rounds):
    sandbox_id = (await server.create(command="echo", args=["x"]))["sandbox_id"]
    await server.wait(sandbox_id, "ended")
    await rounds()
    await server.call("GET", f"/v1/sandboxes/{sandbox_id}", expect=200)
    server.service.settings = server.service.settings.model_copy(update={"record_retention": 0.0})
    await rounds()
    await server.call("GET", f"/v1/sandboxes/{sandbox_id}", expect=404)
    assert os.listdir(server.service.folder.output) == []


async def test_places_that_resisted_and_trash_are_tried_again(server, rounds):
    sandbox_id = (await server.running())["sandbox_id"]
    server.backend.switches.destroy_error = OSError("busy")
    await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    await rounds()
    assert server.service.lifecycle.leftovers.keys() == {sandbox_id} and not server.service.idle
    server.backend.switches.destroy_error = None
    left = os.path.join(server.service.folder.trash, "x", "work")
    os.makedirs(left)
    os.chmod(left, 0)
    await rounds()
    assert not server.service.lifecycle.leftovers and os.listdir(server.service.folder.trash) == []


async def test_the_limit_follows_the_machine(server, rounds, monkeypatch):
    monkeypatch.setattr(reaper_module, "room", lambda live: HostRoom(memory_available_bytes=2 << 30, live=live))
    await rounds()
    assert server.service.slots.admission.limit == 64


async def test_a_store_that_cannot_be_written_holds_up_no_sandbox(server, rounds, monkeypatch):
    sandbox_id = (await server.running())["sandbox_id"]
    store = server.service.store
    write = store.save_sandbox

    def full(record):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store, "save_sandbox", full)
    info = await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    assert info["status"] == "terminated"
    await rounds()
    assert server.backend.how_ended(sandbox_id) == "stopped" and server.backend.places == {sandbox_id}, "it is remembered there"
    assert (await server.call("GET", f"/v1/sandboxes/{sandbox_id}", expect=200))["status"] == "terminated"
    assert store.sandbox(sandbox_id).status == "running"
    monkeypatch.setattr(store, "save_sandbox", write)
    await rounds()
    assert store.sandbox(sandbox_id).status == "terminated"
    await rounds()
    assert server.backend.places == set() and not server.service.lifecycle.leftovers


async def test_a_create_that_cannot_be_put_on_record_is_refused_and_nothing_starts(server, monkeypatch):
    def full(record):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(server.service.store, "add_sandbox", full)
    error = (await server.create(expect=503))["error"]
    assert error["reason"] == "store" and error["is_infrastructure"] and "disk is full" in error["message"]
    assert not server.service.registry.live and not server.backend.places


async def test_a_shorter_grace_counts(server):
    sandbox_id = (await server.running())["sandbox_id"]
    link = server.backend.links[sandbox_id]
    graces, go = [], asyncio.Event()

    async def stop(grace_seconds):
        graces.append(grace_seconds)
        await go.wait()
        link.end("stopped")

    link.stop = stop
    url = f"/v1/sandboxes/{sandbox_id}/stop"
    bodies = [{"graceful_shutdown_seconds": seconds} for seconds in (100, 200, 0)]
    tasks = []
    for body in bodies:
        tasks.append(asyncio.create_task(server.call("POST", url, body=body, expect=200)))
        await asyncio.sleep(0.02)
    assert graces == [100.0, 0.0]
    go.set()
    assert {(await task)["status_reason"] for task in tasks} == {"stopped"}


def test_emptying_the_trash_opens_what_is_closed_and_leaves_what_links_point_to(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    trash = tmp_path / "trash"
    (trash / "tree" / "a" / "b").mkdir(parents=True)
    (trash / "tree" / "a" / "b" / "f").touch()
    (trash / "tree" / "link").symlink_to(outside)
    (trash / "tree" / "a" / "b").chmod(0)
    (trash / "tree" / "a").chmod(0)
    empty_trash(str(trash))
    assert list(trash.iterdir()) == [] and (outside / "kept").exists()


async def test_a_server_that_rests_gives_memory_back_once(server, monkeypatch):
    monkeypatch.setattr(reaper_module, "GARBAGE_SECONDS", 0.0)
    given = []
    monkeypatch.setattr(reaper_module, "give_memory_back", lambda: given.append(len(server.service.registry.live)))
    reaper = Reaper(server.service)
    await reaper._round(time.monotonic(), 0.0)
    sandbox_id = (await server.running())["sandbox_id"]
    for _ in range(2):
        await reaper._round(time.monotonic(), 0.0)
    assert not given
    await server.call("DELETE", f"/v1/sandboxes/{sandbox_id}", expect=200)
    for _ in range(3):
        await reaper._round(time.monotonic(), 0.0)
    assert given == [0]
