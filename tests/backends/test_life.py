"""Sandboxes come and go without a trace, survive their server and their zygote, and are found again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import select
import signal
import time
from pathlib import Path

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.base import SandboxSpec
from aviato.server.backends.local import directories
from aviato.server.backends.local.backend import LocalBackend
from aviato.trees.removal import remove_tree
from aviato.wire.ids import new_sandbox_id

pytestmark = pytest.mark.anyio


def children_of_zygote(backend):
    """And how many of them are a child at hand."""
    pid = backend._zygote._process.pid
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        found = file.read().split()
    others = [child for child in found if not is_spare(child)]
    return others, len(found) - len(others)


def is_spare(pid):
    """The child that a zygote has at hand for the next sandbox."""
    try:
        return Path(f"/proc/{pid}/comm").read_text() == "aviato-spare\n"
    except (FileNotFoundError, ProcessLookupError):
        return False


def baseline(backend):
    gc.collect()  # what other tests left to the collector is not what is looked for
    pid = backend._zygote._process.pid
    with open("/proc/self/mounts") as file:
        mounts = len(file.readlines())
    files = sorted(os.listdir(backend._directories.sandboxes.parent)), os.listdir(backend._directories.sandboxes)
    own = len(os.listdir("/proc/self/fd"))
    # Without the networks of sandboxes that have ended, of which it holds a few (`test_networks.py`).
    zygotes = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            zygotes += not str(fd.readlink()).startswith("net:")
    children, spares = children_of_zygote(backend)
    # Nor what it has of a child at hand, which comes a while after the last one was taken: a socket and a pidfd.
    return mounts, files, own, zygotes - 2 * spares, children, os.listdir(backend._directories.trash)


async def settled(backend):
    """How it is once nothing changes any more: what ends with a sandbox may end a little after it."""
    await backend._left.clear()
    seen = [baseline(backend)]
    while len(seen) < 6:
        await asyncio.sleep(0.05)
        now = baseline(backend)
        seen = [*seen, now] if now == seen[0] else [now]
    return seen[0]


async def until_as_before(backend, before):
    """Or with fewer descriptors: of other tests of this process some may have been open before."""
    await backend._left.clear()
    deadline = time.monotonic() + 60
    while not is_as(before, now := baseline(backend)):
        assert time.monotonic() < deadline, (before, now)
        await asyncio.sleep(0.05)


def is_as(before, now):
    mounts, files, own, *others = now
    return (mounts, files, *others) == (*before[:2], *before[3:]) and own <= before[2]


async def test_fifty_cycles_leave_nothing(backend, boxes):
    async with boxes.make_box(backend) as box:
        await box.run("true")
    before = await settled(backend)

    async def cycle(number):
        async with boxes.make_box(backend) as box:
            if number % 2:
                await box.sh("mkdir -p a/b; touch a/b/c; chmod 000 a; sleep 100 & setsid sleep 100 & true")
            if number % 5 == 0:
                await box.link.stop(1)

    for start in range(0, 50, 5):
        await asyncio.gather(*(cycle(number) for number in range(start, start + 5)))
    await until_as_before(backend, before)


async def test_cancelling_a_create_anywhere_leaves_nothing(backend, boxes):
    before = await settled(backend)
    image = backend.resolve_image(None)
    for _ in range(20):
        spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=image)
        task = asyncio.create_task(backend.create(spec))
        await asyncio.sleep(random.random() * 0.008)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(backend.destroy(spec.sandbox_id), backend.destroy(spec.sandbox_id))
    await until_as_before(backend, before)


async def test_what_nobody_wrote_to_is_removed_without_a_search(backend, boxes, monkeypatch):
    if not backend._layered:
        pytest.skip("without layers a sandbox has names of its own")
    searched = []
    monkeypatch.setattr(directories, "remove_tree", lambda parent, name: searched.append(name) or remove_tree(parent, name))
    async with boxes.make_box(backend) as box:
        assert (await box.run("true")).returncode == 0
    assert searched == []
    async with boxes.make_box(backend) as box:
        await box.run("touch", "f")
    assert searched == [box.id]
    assert await backend.place_ids() == []


async def test_destroying_is_idempotent(backend):
    await backend.destroy(new_sandbox_id())
    os.mkdir(backend._directories.path(unknown := new_sandbox_id()))
    assert await backend.place_ids() == [unknown]
    await backend.destroy(unknown)
    assert await backend.place_ids() == []
    with pytest.raises(ValueError, match="not a sandbox id"):
        await backend.destroy("../../etc")


async def another(backend):
    other = LocalBackend(backend._directories.sandboxes.parent)
    await other.open()
    return other


async def test_a_new_server_finds_kills_and_removes(backend, boxes):
    first = await another(backend)
    async with boxes.make_box(first) as kept, boxes.make_box(first) as doomed:
        exec_id, _ = kept.start("sh", "-c", "sleep 0.3; echo out")
        await doomed.sh("sleep 100 & true")
        await kept.link.ping()
        await first.close()
        second = await another(backend)
        assert set(await second.place_ids()) == {kept.id, doomed.id}
        kept.link = await second.reconnect(kept.id)
        assert (await kept.finish(exec_id, kept.link.subscribe(None, exec_id))).stdout == "out\n"
        pidfd = second._directories.find(doomed.id)
        assert pidfd is not None
        await second.destroy(doomed.id)
        assert select.select([pidfd], [], [], 0)[0] == [pidfd]  # It is dead; whoever adopted it may not have reaped it yet.
        os.close(pidfd)
        assert await second.place_ids() == [kept.id]
        await second.destroy(kept.id)
        assert await second.reconnect(kept.id) is None
        assert second.how_ended(kept.id) is None
        await second.close()
        first._held.clear()


async def test_finding_without_peer_pidfds(backend, boxes, monkeypatch):
    from aviato.server.backends.local import directories

    monkeypatch.setattr(directories, "peer_pidfd", lambda sock: None)
    async with boxes.make_box(backend) as box:
        pidfd = backend._directories.find(box.id)
        signal.pidfd_send_signal(pidfd, 0)
        os.close(pidfd)


async def test_the_template_is_replaced_and_sandboxes_live_on(backend, boxes):
    async with boxes.make_box(backend) as old:
        backend._zygote._process.send_signal(signal.SIGKILL)
        while backend._zygote.alive:
            await asyncio.sleep(0.01)
        assert (await old.run("echo", "alive")).stdout == "alive\n"
        async with boxes.make_box(backend) as new:
            assert (await new.run("true")).returncode == 0


async def test_the_template_dies_in_the_middle(backend):
    image = backend.resolve_image(None)
    failed = False
    for _ in range(20):  # On a busy machine all of them may have been made by then.
        specs = [SandboxSpec(sandbox_id=new_sandbox_id(), image=image) for _ in range(20)]
        tasks = [asyncio.create_task(backend.create(spec)) for spec in specs]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        backend._zygote._process.send_signal(signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        await asyncio.gather(*(backend.destroy(spec.sandbox_id) for spec in specs))
        assert await backend.place_ids() == []
        failed = any(isinstance(result, SandboxUnavailableError) for result in results)
        if failed:
            break
    assert failed


async def test_where_nothing_was_written_nobody_looks(backend, boxes, monkeypatch):
    """Each name that is looked for costs a system call more, in a thread that needs the interpreter's lock after each."""
    from aviato.server.backends.local import directories

    looked = []
    async with boxes.make_box(backend) as box:
        assert (await box.run("true")).returncode == 0
        monkeypatch.setattr(directories, "remove_tree", lambda parent, name: looked.append(name) or iter(()))
    assert await backend.place_ids() == [] and not looked


async def test_what_cannot_be_removed_goes_to_the_trash(backend, boxes, monkeypatch):
    from aviato.server.backends.local import directories

    def refuse(parent, name):
        raise OSError(16, "busy")
        yield True

    await backend._left.clear()
    async with boxes.make_box(backend) as box:
        assert (await box.run("touch", "/kept")).returncode == 0
        monkeypatch.setattr(directories, "remove_tree", refuse)
        monkeypatch.setattr(backend._directories, "_remove_as_theirs", lambda directory, names: names)
    assert await backend.place_ids() == []
    assert len(os.listdir(backend._directories.trash)) == 1
    assert len(backend._directories.empty_trash()) == 1
    monkeypatch.undo()
    assert backend._directories.empty_trash() == []
    assert os.listdir(backend._directories.trash) == []


async def test_the_template_runs_on_each_supported_python(boxes, tmp_path, monkeypatch):
    from aviato.server.images.interpreters import find_interpreters

    supported = {found.minor: found for found in find_interpreters() if found.minor >= 11}
    for minor, found in supported.items():
        monkeypatch.setattr("sys._base_executable", found.executable)
        backend = LocalBackend(tmp_path / str(minor))
        await backend.open()
        async with boxes.make_box(backend) as box:
            result = await box.run("sh", "-c", "cat; exit 3", stdin=b"bytes")
            assert (result.returncode, result.stdout) == (3, "bytes"), found
            await box.put("file", b"x" * 1000)
            assert (await box.link.stop(1)).reason == "stopped"
        await backend.close()


async def test_a_long_state_directory(boxes, tmp_path):
    backend = LocalBackend(tmp_path / ("x" * 100) / ("y" * 100))
    await backend.open()
    async with boxes.make_box(backend) as box:
        assert (await box.run("true")).returncode == 0
        box.link.detach()
        box.link = await backend.reconnect(box.id)
        await box.link.ping()
    await backend.close()


async def test_closing_lets_sandboxes_live(backend, boxes):
    first = await another(backend)
    async with boxes.make_box(first) as box:
        pid = first._zygote._process.pid
        await first.close()
        assert not os.path.exists(f"/proc/{pid}")
        with pytest.raises(SandboxUnavailableError):
            await first.create(SandboxSpec(sandbox_id=new_sandbox_id(), image=first.resolve_image(None)))
        second = await another(backend)
        assert await second.reconnect(box.id) is not None
        await second.destroy(box.id)
        await second.close()
