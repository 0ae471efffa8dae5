"""Layers that arrive in pieces: however those fall, as fast as they are taken, and with nothing left of what was given up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tarfile
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviato.exceptions import SandboxImageError
from aviato.server.backends.local import binary, subordinate
from aviato.server.images.unpacked_layer import UnpackedLayer, UnpackLimits
from aviato.server.images.unpacking import Unpacking
from tests.images.layers import Member, directory, hard_link, link, seen, tar, unpacked

IS_ROOT = os.geteuid() == 0
LIMITS = UnpackLimits(1 << 30, 100_000)
LAYER = tar(
    directory("./"),
    Member("a/b", content=b"x" * 5000, uid=5, gid=6, mode=0o4755),
    Member("é" * 80, content=os.urandom(20_000)),
    link("l", "a"),
    hard_link("h", "a/b"),
    Member(".wh.gone"),
    Member("huge", uid=70_000, mode=0o2755),
)
pytestmark = pytest.mark.anyio


@pytest.fixture
def into(tmp_path):
    path = tmp_path / "root"
    path.mkdir()
    return path


async def cut(data, *sizes):
    for size in sizes:
        yield data[:size]
        data = data[size:]
    yield data


async def endless(seen_bytes=None):
    """A file that does not end; says how much of it was taken."""
    head = tarfile.TarInfo("f")
    head.size = 1 << 33
    yield head.tobuf(tarfile.GNU_FORMAT)
    while True:
        await asyncio.sleep(0)
        if seen_bytes is not None:
            seen_bytes[0] += 1 << 20
        yield b"x" * (1 << 20)


def children():
    """Of this process, those that live."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}


async def until(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 6000), max_size=30))
def test_however_the_pieces_fall(tmp_path_factory, sizes):
    whole, into = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("pieces")
    said = unpacked(LAYER, whole)
    layer = asyncio.run(Unpacking(binary.found)(cut(LAYER, *sizes), into, [], LIMITS))
    assert layer == UnpackedLayer(**said)
    assert {name: one._replace(mtime=0) for name, one in seen(into).items()} == {
        name: one._replace(mtime=0) for name, one in seen(whole).items()
    }


@pytest.mark.skipif(not IS_ROOT, reason="only root gives files to others")
async def test_root_keeps_the_owners(into):
    await Unpacking(binary.found, owners=True)(cut(LAYER), into, [], LIMITS)
    found = seen(into)
    assert (found["a/b"].owner, found["a/b"].mode) == ((5, 6), 0o4755)
    assert found["huge"].owner == (65_534, 0)


def given_by_root(first, count, asking, pid):
    """As `subordinate.serve` does it; root needs no other program."""
    assert asking.recv(10) == subordinate.ASKS
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 0 1\n1 {first} {count}\n")
    asking.send(subordinate.MAPPED)


def mapping(count=65_535):
    if IS_ROOT:
        return 300_000, partial(given_by_root, 300_000, count)
    ranges = subordinate.find()
    if ranges is None:
        pytest.skip("no subordinate ids")
    return ranges.uid, partial(subordinate.serve, ranges=ranges._replace(size=min(ranges.size, count)))


async def test_subordinate_ids_own_what_others_own(into):
    first, map_ids = mapping()
    await Unpacking(binary.found, map_ids=map_ids)(cut(LAYER), into, [], LIMITS)
    found = seen(into)
    assert found["a/b"].owner[0] == first + 4 and found["a/b"].mode == 0o4755
    assert found["huge"].owner[0] == first + 65_533 and found["l"].owner[0] == os.geteuid()
    assert found["gone"].kind == "whiteout"


async def test_an_owner_that_was_not_mapped_gives_nobody_its_powers(into):
    """A file that is to be a stranger's with setuid becomes root's without it."""
    _, map_ids = mapping(1000)
    data = tar(Member("f", uid=5000, mode=0o4755), Member("g", uid=5, mode=0o4755), directory("d", 0o2755, gid=5000))
    await Unpacking(binary.found, map_ids=map_ids)(cut(data), into, [], LIMITS)
    shapes = {name: (one.mode, one.owner[0] == os.geteuid()) for name, one in seen(into).items()}
    assert (shapes["f"], shapes["g"], shapes["d"]) == ((0o755, True), (0o4755, False), (0o755, True))


async def test_ids_that_cannot_be_mapped(into):
    def refuses(asking: socket.socket, pid: int) -> None:
        asking.recv(10)
        raise PermissionError("newuidmap: no")

    with pytest.raises(SandboxImageError, match="ids cannot be mapped: newuidmap: no") as caught:
        await Unpacking(binary.found, map_ids=refuses)(cut(LAYER), into, [], LIMITS)
    assert caught.value.reason == "unpack_failed" and caught.value.is_infrastructure


async def test_what_is_below(tmp_path, into):
    below = tmp_path / "below"
    below.mkdir()
    unpacked(tar(directory("a", 0o711)), below)
    layer = await Unpacking(binary.found)(cut(tar(Member("a/b"))), into, [below], LIMITS)
    assert layer == UnpackedLayer(size_bytes=0, files=2, implied=1, left_out=0) and seen(into)["a"].mode == 0o711


@pytest.mark.parametrize(
    ("data", "limits", "reason", "words"),
    [
        (tar(Member("../x\n")), LIMITS, "hostile_archive", r"'../x\\n' leads out of the layer; take an image"),
        (b"x" * 2000, LIMITS, "damaged_archive", "the archive is damaged: .*; pull the image again"),
        (tar(Member("a", content=b"x" * 999)), UnpackLimits(998, 9), "too_large", "'a' is one file too many.* 998 bytes; "),
        (tar(Member("a"), Member("b")), UnpackLimits(998, 1), "too_large", "may have 1; allow"),
    ],
)
async def test_what_is_refused(into, data, limits, reason, words):
    with pytest.raises(SandboxImageError, match=words) as caught:
        await Unpacking(binary.found)(cut(data), into, [], limits)
    assert caught.value.reason == reason and caught.value.is_infrastructure and not caught.value.retryable


async def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(SandboxImageError, match=r"no-such.*No such file"):
        await Unpacking(binary.found)(cut(LAYER), tmp_path / "no-such", [], LIMITS)


@pytest.mark.parametrize(("program", "words"), [("/no/such", "cannot be started"), ("/bin/false", "ended with status 1")])
async def test_a_program_that_is_none(into, program, words):
    with pytest.raises(SandboxImageError, match=words) as caught:
        await Unpacking(lambda: program)(cut(LAYER), into, [], LIMITS)
    assert caught.value.reason == "unpack_failed"


# -- what is given up


async def test_who_refuses_is_fed_no_more(into):
    before = children()
    with pytest.raises(SandboxImageError) as caught:
        await Unpacking(binary.found)(endless(), into, [], UnpackLimits(1 << 20, 10))
    assert caught.value.reason == "too_large" and children() == before


async def test_a_download_that_fails(into):
    async def failing():
        yield LAYER[:3000]
        raise ConnectionResetError("by the registry")

    before = children()
    with pytest.raises(ConnectionResetError, match="by the registry"):
        await Unpacking(binary.found)(failing(), into, [], LIMITS)
    assert children() == before


async def test_a_download_that_stands_still_when_the_program_dies(into):
    async def standing():
        yield LAYER[:3000]
        await asyncio.Event().wait()

    before = children()
    task = asyncio.ensure_future(Unpacking(binary.found)(standing(), into, [], LIMITS))
    await until(lambda: children() - before and (into / "a").exists())
    os.kill((children() - before).pop(), signal.SIGKILL)
    with pytest.raises(SandboxImageError, match="status -9"):
        await task
    assert children() == before


@pytest.mark.parametrize("times", [1, 2])
async def test_who_is_cancelled_leaves_nothing(into, times):
    fds = len(os.listdir("/proc/self/fd"))
    before = children()
    task = asyncio.ensure_future(Unpacking(binary.found)(endless(), into, [], UnpackLimits(1 << 40, 9)))
    await until(lambda: (into / "f").exists() and (into / "f").stat().st_size > 0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: children() == before)
    size = (into / "f").stat().st_size
    await until(lambda: len(os.listdir("/proc/self/fd")) <= fds)
    assert (into / "f").stat().st_size == size


async def test_no_more_is_taken_than_is_unpacked(into):
    """A program that stands still holds up the download."""
    before, taken = children(), [0]
    task = asyncio.ensure_future(Unpacking(binary.found)(endless(taken), into, [], UnpackLimits(1 << 40, 9)))
    await until(lambda: (into / "f").exists())
    (pid,) = children() - before
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(0.2)
    first = taken[0]
    await asyncio.sleep(0.3)
    assert taken[0] == first
    os.kill(pid, signal.SIGCONT)
    await until(lambda: taken[0] > first)
    task.cancel()
    await asyncio.wait({task})
