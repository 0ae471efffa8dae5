"""What the zygote does with requests that fail, and the child that it has at hand."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from aviato.exceptions import SandboxUnavailableError
from aviato.server.backends.base import MountedFile
from tests.real_backend import CARRIER, open_backend

SPARE = "aviato-spare"

pytestmark = pytest.mark.anyio


@pytest.fixture
async def backend(anyio_backend):
    async for opened in open_backend(CARRIER):
        yield opened


def descriptors(backend):
    """But for the networks of sandboxes that have ended, of which it holds a few: `test_networks.py`."""
    folder = Path(f"/proc/{backend._zygote._process.pid}/fd")
    found = []
    for fd in folder.iterdir():
        with suppress(FileNotFoundError):  # It was closed just now.
            found.append((fd.name, str(fd.readlink())))
    return [(name, what) for name, what in sorted(found) if not what.startswith("net:")]


def children(backend):
    """By name, but for the one that is at hand for the next sandbox."""
    pid = backend._zygote._process.pid
    return [name for name in map(name_of, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) if name != SPARE]


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


async def the_spare(backend):
    """Its number, once it is there."""
    pid = backend._zygote._process.pid
    async with asyncio.timeout(60):
        while True:
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if name_of(child) == SPARE:
                    return int(child)
            await asyncio.sleep(0.01)


async def settled(look, wanted):
    async with asyncio.timeout(60):
        while look() != wanted:
            await asyncio.sleep(0.01)


async def test_what_fails_is_named_and_nothing_is_left_of_it(backend, boxes):
    before = await begun(backend, boxes)
    real = backend._directories.path
    # A name that has to be escaped on its way to the server, whoever writes it.
    for path in ('/nowhere/"quoted\\ ü\n', str(backend._directories.sandboxes)):
        backend._directories.path = lambda _, path=path: path
        backend._remembered = None  # requests with the paths of before
        for _ in range(3):
            with pytest.raises(SandboxUnavailableError) as caught:
                async with boxes.make_box(backend):
                    pass
            assert "exists" in str(caught.value) or "No such file or directory" in str(caught.value)
            assert path in str(caught.value) or repr(path)[1:-1] in str(caught.value)
    backend._directories.path, backend._remembered = real, None
    await goes_on(backend, boxes, before)


async def goes_on(backend, boxes, before):
    """The next sandbox works, and no more descriptors than before are open, and no child is left."""
    async with boxes.make_box(backend) as box:
        assert (await box.run("true")).returncode == 0
    await backend._left.clear()
    await settled(lambda: len(descriptors(backend)), before)
    await settled(lambda: children(backend), [])


async def begun(backend, boxes):
    """How many descriptors a zygote has that has made a sandbox."""
    async with boxes.make_box(backend):
        pass
    await the_spare(backend)
    await backend._left.clear()
    await settled(
        lambda: state_of(backend._zygote._process.pid), "S"
    )  # A child may have its name before its parent has closed what it gave to it.
    return len(descriptors(backend))


def state_of(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


async def test_a_child_whose_ids_cannot_be_mapped_is_killed(backend, boxes):
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has one id for all sandboxes")
    before = await begun(backend, boxes)
    take = backend._uids.take
    backend._uids.take = lambda: (2**32 - 1, 1)  # No id at all.
    with pytest.raises(SandboxUnavailableError, match="could not be made"):
        async with boxes.make_box(backend):
            pass
    backend._uids.take = take
    await goes_on(backend, boxes, before)


async def test_requests_with_files_of_the_caller_and_without_take_turns(backend, boxes):
    files = (MountedFile(path="/opt/given", content=b"given"),)
    for _ in range(3):
        async with boxes.make_box(backend, mounted_files=files) as box, boxes.make_box(backend) as other:
            assert (await box.run("cat", "/opt/given")).stdout == "given"
            assert (await other.run("cat", "/opt/given")).returncode == 1
            assert (await box.run("cat", "/etc/hosts")).stdout != (await other.run("cat", "/etc/hosts")).stdout


async def test_ports_are_arranged_beside_the_rest(backend, boxes):
    async with boxes.make_box(backend, exposes_ports=True) as box:
        assert (await box.run("sh", "-c", "ls /proc/self/fd | wc -l")).stdout.strip() == "4"
        channel = await backend.open_port_channel(box.id)
        channel.close()


async def test_it_ends_with_its_server_and_its_sandboxes_live_on(backend, boxes):
    async with boxes.make_box(backend) as box:
        process = backend._zygote._process
        await backend._zygote.close()
        assert process.returncode == 0
        assert (await box.run("true")).returncode == 0


# -- the child that is at hand -------------------------------------------------------------------------------------------------


@pytest.fixture
async def used(backend, boxes):
    """One that has made a sandbox."""
    await begun(backend, boxes)
    return backend


async def test_the_next_sandbox_is_the_child_at_hand(used, boxes):
    spare = await the_spare(used)
    async with boxes.make_box(used) as box:
        assert name_of(spare) == "aviato-supervis"
        assert (await box.run("cat", "/proc/1/comm")).stdout == "aviato-supervis\n"
        assert await the_spare(used) != spare


async def test_one_that_was_killed_is_not_missed(used, boxes):
    for _ in range(3):
        killed = await the_spare(used)
        os.kill(killed, signal.SIGKILL)
        # One that dies later dies as a process 1.
        await settled(lambda pid=killed: name_of(pid) != SPARE or state_of(pid) in "ZX", True)
        async with boxes.make_box(used) as box:
            assert (await box.run("true")).returncode == 0
    await used._left.clear()
    before = len(descriptors(used))
    spare = await the_spare(used)
    os.kill(spare, signal.SIGKILL)
    await settled(lambda: name_of(spare), None)  # Collected, though nobody asked for anything.
    await settled(lambda: len(descriptors(used)) <= before, True)


async def test_one_that_stands_still_is_only_slow(used, boxes):
    spare = await the_spare(used)
    os.kill(spare, signal.SIGSTOP)
    asked = asyncio.ensure_future(_make_and_use(used, boxes))
    await settled(lambda: name_of(spare) == SPARE and len(os.listdir(used._directories.sandboxes)) > 0, True)
    os.kill(spare, signal.SIGCONT)
    assert await asyncio.wait_for(asked, 60) == 0


async def _make_and_use(backend, boxes):
    async with boxes.make_box(backend) as box:
        return (await box.run("true")).returncode


@pytest.mark.parametrize("how", [signal.SIGKILL, None], ids=["killed", "ended"])
async def test_it_ends_with_its_zygote(used, how):
    spare = await the_spare(used)
    if how is None:
        await used._zygote.close()
    else:
        used._zygote._process.send_signal(how)
        while used._zygote.alive:  # Nobody else holds the zygote's end of its socket.
            await asyncio.sleep(0.01)
    await settled(lambda: name_of(spare), None)


async def test_many_at_once_and_one_after_the_other(used, boxes):
    assert await asyncio.gather(*(_make_and_use(used, boxes) for _ in range(12))) == [0] * 12
    assert [await _make_and_use(used, boxes) for _ in range(5)] == [0] * 5
    await settled(lambda: children(used), [])
    await the_spare(used)


async def test_it_holds_nothing_of_the_servers(used):
    folder = Path(f"/proc/{await the_spare(used)}/fd")
    held = {str(fd.readlink()).partition(":")[0] for fd in folder.iterdir()}
    assert held <= {"/dev/null", "socket", "anon_inode"}
    sockets = [fd for fd in folder.iterdir() if str(fd.readlink()).startswith("socket")]
    assert len(sockets) == 1  # By which it hears.


async def test_a_server_without_room_for_the_answer_says_so(backend, boxes, monkeypatch):
    """The kernel leaves a descriptor out where there is none left; the sandbox is found and taken away all the same."""
    real = backend._zygote._answered
    monkeypatch.setattr(backend._zygote, "_answered", lambda message, fds: (list(map(os.close, fds)), real(message, [])))
    with pytest.raises(OSError, match="Too many open files"):
        async with boxes.make_box(backend):
            pass
    assert await backend.place_ids() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="nobody counts what root has on its way")
async def test_one_waits_until_fewer_descriptors_of_its_user_are_on_their_way(backend, boxes):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        for _ in range(2):
            socket.send_fds(pair[0], [b"x"], [pair[0].fileno()] * 250)
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, limit[1]))

        async def one():
            async with boxes.make_box(backend) as box:
                return (await box.run("true")).returncode

        making = asyncio.create_task(one())
        while not backend._zygote._sending:
            await asyncio.sleep(0.01)
        assert not making.done() and backend._zygote.alive
        for _ in range(2):
            for fd in socket.recv_fds(pair[1], 1, 250)[1]:
                os.close(fd)
        assert await making == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        for end in pair:
            end.close()
