"""The store: who has an image, what goes and what stays, and several processes and pulls at it at once."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from aviato.exceptions import SandboxImageError
from aviato.server.backends.local import binary
from aviato.server.images import image_uses
from aviato.server.images import layers as layers_module
from aviato.server.images.file_locks import try_to_hold
from aviato.server.images.image_errors import disk_error
from aviato.server.images.image_index import ImageIndex, RecordedSnapshot
from aviato.server.images.image_snapshots import NewSnapshot
from aviato.server.images.image_trash import remove_as_oneself
from aviato.server.images.patience import Patience
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacked_layer import UnpackedLayer
from aviato.server.images.unpacking import Unpacking
from aviato.wire.images import BUILT
from tests.images.faulty_registry import cut_after, faulty_registry
from tests.images.layouts import CONFIG, Image, digest_of, part_of, tar_of, unpack_by_tarfile, write_layout
from tests.matrices import deep

pytestmark = pytest.mark.anyio
QUICK = Patience(connect_seconds=5, stall_seconds=20, attempts=3, backoff_seconds=0.01)
BASE = tar_of({"base": b"b" * 100})


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def store(tmp_path):
    return ImageStore(tmp_path / "store", unpack_by_tarfile)


@pytest.fixture
def place(tmp_path):
    """Of sandbox-1."""
    made = tmp_path / "sandboxes" / "sandbox-1"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def layout(tmp_path):
    """Makes references of images with a layer in common and one of their own."""
    made = {name: Image(BASE, tar_of({name: name.encode() * 1000})) for name in "abc"}
    path = write_layout(tmp_path / "layout", dict(made))
    return lambda name: f"oci:{path}:{name}"


def layers(store):
    return {path.name for path in (store._directory / "layers").iterdir()}


def is_empty(store):
    left = [
        path for folder in ("layers", "blobs", "images", "trash", "pulls") for path in (store._directory / folder).iterdir()
    ]
    assert left == []
    return True


# -- names and ids


async def test_what_is_here(store, layout):
    assert store.list() == [] and store.find("busybox") is None and store.find(layout("a")) is None
    a, b = [await store.pull(layout(name)) for name in "ab"]
    assert [one.image_id for one in store.list()] == [b.image_id, a.image_id]
    assert a.size_bytes == 1100 and a.layers[1] == b.layers[1] and a.layers[0] != b.layers[0]
    assert a.created_at == pytest.approx(1706933106.123456) and not a.pinned and time.time() - a.pulled_at < 60
    for digits in (12, 20, 64):
        assert store.find(a.image_id[7 : 7 + digits]) == a == store.find(a.image_id[: 7 + digits])
    for unknown in ("0" * 64, "f" * 12, f"sha256:{'f' * 12}", f"sha256:{'f' * 64}"):
        assert store.find(unknown) is None
    with pytest.raises(SandboxImageError, match="image id"):
        await store.pull(f"sha256:{'f' * 64}")
    with pytest.raises(SandboxImageError) as caught:
        store.find("Wrong")
    assert caught.value.reason == "bad_reference"


async def test_an_id_that_several_begin_with(store, layout):
    a, b = [await store.pull(layout(name)) for name in "ab"]
    images = store._directory / "images"
    (images / f"{b.image_id}.json").rename(images / f"{a.image_id[:-1]}{'0' if a.image_id[-1] != '0' else '1'}.json")
    with pytest.raises(SandboxImageError, match="beginning of 2 image ids"):
        store.find(a.image_id[7:19])


async def test_another_process_sees_the_same(tmp_path, store, layout):
    other = ImageStore(tmp_path / "store", unpack_by_tarfile)
    a = await store.pull(layout("a"))
    assert other.find(layout("a")) == a
    other.pin(layout("a"))
    assert store.find(layout("a")).pinned and store.list()[0].pinned
    await other.remove(layout("a"))
    assert store.find(layout("a")) is None and store.list() == []


async def test_files_that_are_damaged_count_as_missing(store, layout):
    a = await store.pull(layout("a"))
    b = await store.pull(layout("b"))
    for damage in (b"", b"{", b"[]", b"{}", b'{"x": 3}', b"[3]"):
        (store._directory / "names.json").write_bytes(damage)
        assert store.find(layout("a")) is None
        (store._directory / "images" / f"{b.image_id}.json").write_bytes(damage)
        assert [one.image_id for one in store.list()] == [a.image_id]
        await store.prune(unused_seconds=3600)
    assert (await store.pull(layout("b"))).layers == b.layers
    (store._directory / "layers" / Path(b.layers[0]).parent.name / "layer.json").write_bytes(b"{")
    await store.remove(b.image_id)
    assert await store.pull(layout("b"))


async def test_layers_of_a_record_that_cannot_be_read_stay(store, layout):
    a, b = [await store.pull(layout(name)) for name in "ab"]
    (store._directory / "images" / f"{b.image_id}.json").write_bytes(b"{")
    await store.remove(a.image_id)
    assert all(Path(layer).is_dir() for layer in b.layers)


async def test_what_a_newer_version_wrote_is_no_damage(tmp_path, store, layout):
    """Servers of several versions have one store: none takes from the others what it only knows less of."""
    a = await store.pull(layout("a"))
    key = Path(a.layers[0]).parent.name

    def add(value):
        if isinstance(value, dict):
            inner = {name: add(one) for name, one in value.items()}
            return inner if layout("a") in value else {**inner, "of_the_next_version": [1]}
        return [add(one) for one in value] if isinstance(value, list) and value and isinstance(value[0], dict) else value

    snapshot = await left(store, tmp_path, "a")
    for path in (
        *(store._directory / "images" / f"{one.image_id}.json" for one in (a, snapshot)),
        store._directory / "names.json",
        store._directory / "layers" / key / "layer.json",
    ):
        path.write_text(json.dumps(add(json.loads(path.read_bytes()))))
    other = ImageStore(tmp_path / "store", unpack_by_tarfile)
    assert other.find(layout("a")) == a and other.find(snapshot.image_id).snapshot == snapshot.snapshot
    assert layers_module.read_layer(store._directory / "layers" / key, f"sha256:{key}") is not None
    await other.prune(unused_seconds=3600)
    assert other.find(layout("a")) == a


@pytest.mark.parametrize("what", ["record", "names", "layer"])
async def test_what_cannot_be_read_for_a_moment_is_still_there(tmp_path, store, layout, monkeypatch, what):
    """A process without a free descriptor cannot read; that is no damage, and nothing goes for it."""
    a = await store.pull(layout("a"))
    store.pin(a.image_id)
    other = ImageStore(tmp_path / "store", unpack_by_tarfile)
    file = {"record": f"{a.image_id}.json", "names": "names.json", "layer": "layer.json"}[what]
    if what == "layer":
        other._index.path(a.image_id).unlink()
    with monkeypatch.context() as no_descriptor_is_left:
        for module in ("io", "builtins"):
            no_descriptor_is_left.setattr(f"{module}.open", _failing_for(file))
        with pytest.raises(SandboxImageError, match="Too many open files") as caught:
            await (other.prune() if what == "record" else other.pull(layout("b" if what == "names" else "a")))
    assert caught.value.reason == "store_failed" and caught.value.is_infrastructure
    assert list((store._directory / "trash").iterdir()) == [] and {Path(one).parent.name for one in a.layers} <= layers(store)
    assert (await store.pull(layout("a"))).layers == a.layers


def _failing_for(name):
    """`open` that finds no descriptor to read one file."""
    opening = open

    def failing(path, mode="r", *arguments, **more):
        if not isinstance(path, int) and os.path.basename(path) == name and mode.startswith("r"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return opening(path, mode, *arguments, **more)

    return failing


# -- use and removal


async def test_an_image_in_use_stays(store, layout, place):
    a = await store.pull(layout("a"))
    store.use(a.image_id, "sandbox-1", str(place.parent))
    store.use(a.image_id, "sandbox-1", str(place.parent))
    with pytest.raises(SandboxImageError, match="sandbox-1") as caught:
        await store.remove(layout("a"))
    assert caught.value.reason == "image_in_use"
    assert await store.prune() == 0 and store.find(layout("a")) and Path(a.layers[0]).is_dir()
    assert await store.remove(layout("a"), force=True) == [layout("a")]
    assert store.find(layout("a")) is None and store.find(a.image_id) and Path(a.layers[0]).is_dir()
    store.release(a.image_id, "sandbox-1")
    store.release(a.image_id, "sandbox-1")
    assert await store.prune() == a.size_bytes and is_empty(store) and not any((store._directory / "uses").iterdir())


async def test_a_use_counts_before_its_place(store, layout, place, monkeypatch):
    a = await store.pull(layout("a"))
    place.rmdir()
    store.use(a.image_id, "sandbox-1", str(place.parent))
    with pytest.raises(SandboxImageError, match="in use"):
        await store.remove(a.image_id)
    monkeypatch.setattr(image_uses, "BEGINNING_SECONDS", 0)
    assert await store.remove(a.image_id) == [layout("a")]


async def test_a_use_ends_with_its_place(store, layout, place, monkeypatch):
    monkeypatch.setattr(image_uses, "BEGINNING_SECONDS", 0)
    a = await store.pull(layout("a"))
    store.use(a.image_id, "sandbox-1", str(place.parent))
    place.rmdir()
    assert await store.remove(a.image_id) == [layout("a")]
    assert is_empty(store)
    with pytest.raises(SandboxImageError) as caught:
        store.use(a.image_id, "sandbox-2", str(store._directory))
    assert caught.value.reason == "image_gone" and caught.value.is_infrastructure
    assert store._uses.alive(a.image_id) == []


async def test_ids_of_sandboxes_lead_nowhere(store, layout):
    a = await store.pull(layout("a"))
    for wrong in ("", ".", "..", "a/b", "../x", "a\0", "x" * 200):
        with pytest.raises(ValueError):
            store.use(a.image_id, wrong, "/")


async def test_an_image_goes_with_its_last_name_and_layers_with_their_last_image(store, layout, tmp_path):
    a, b = [await store.pull(layout(name)) for name in "ab"]
    (tmp_path / "same").symlink_to(tmp_path / "layout")
    same = f"oci:{tmp_path}/same:a"
    assert (await store.pull(same)).names == (layout("a"), same)
    assert await store.remove(layout("a")) == [layout("a")]
    assert store.find(same).image_id == a.image_id and layers(store) >= {Path(one).parent.name for one in a.layers}
    assert await store.remove(same) == [same]
    assert layers(store) == {Path(one).parent.name for one in b.layers}
    for gone in (same, a.image_id, "nothing"):
        with pytest.raises(SandboxImageError) as caught:
            await store.remove(gone)
        assert caught.value.reason == "image_not_here"
    with pytest.raises(SandboxImageError):
        store.pin("nothing")


async def test_a_removal_and_a_use_that_meet(store, layout, place, monkeypatch):
    """Whoever comes between a removal's two steps finds no image; whoever came before keeps it."""
    a = await store.pull(layout("a"))
    alive = store._uses.alive

    def meanwhile(image_id):
        with pytest.raises(SandboxImageError) as caught:
            store.use(a.image_id, "sandbox-2", str(place.parent))
        assert caught.value.reason == "image_gone"
        return alive(image_id)

    store.use(a.image_id, "sandbox-1", str(place.parent))
    monkeypatch.setattr(store._uses, "alive", meanwhile)
    with pytest.raises(SandboxImageError, match="sandbox-1"):
        await store.remove(a.image_id)
    monkeypatch.undo()
    assert store.find(layout("a")) == a or store.find(layout("a")).layers == a.layers
    store.use(a.image_id, "sandbox-2", str(place.parent))


@pytest.mark.parametrize("in_use", [True, False])
async def test_a_removal_that_was_killed_between_its_steps(store, layout, place, in_use):
    a = await store.pull(layout("a"))
    if in_use:
        store.use(a.image_id, "sandbox-1", str(place.parent))
    store._trash.take_record(store._index.path(a.image_id))
    assert store.find(layout("a")) is None
    await store.prune()
    assert (store.find(layout("a")) is not None) is in_use is Path(a.layers[0]).is_dir()


async def test_what_expires_takes_no_layers_of_a_removal_that_was_killed(store, layout, place):
    a, b = [await store.pull(layout(name)) for name in "ab"]
    store.use(a.image_id, "sandbox-1", str(place.parent))
    recorded = RecordedSnapshot(snapshot_id="snap-a", sandbox_id="sandbox-2", image="b")
    new = NewSnapshot(
        recorded=recorded, image_id=b.image_id, names=("snap-a",), architecture="amd64", expires_after_seconds=0.0
    )
    await store.snapshot(None, new)
    store._trash.take_record(store._index.path(a.image_id))
    await store.remove_expired()
    assert store.find(layout("a")) is not None and all(Path(layer).is_dir() for layer in a.layers)


async def test_what_prune_takes(store, layout, place):
    a, b, _ = [await store.pull(layout(name)) for name in "abc"]
    store.pin(layout("a"))
    store.use(b.image_id, "sandbox-1", str(place.parent))
    assert await store.prune(unused_seconds=3600) == 0
    assert await store.prune(most_bytes=10_000) == 0
    assert await store.prune() == 1000
    assert {one.image_id for one in store.list()} == {a.image_id, b.image_id}
    store.release(b.image_id, "sandbox-1")
    assert await store.prune(unused_seconds=60) == 0, "it was in use a moment ago"
    store.pin(layout("a"), False)
    assert await store.prune(most_bytes=1100) == 1000
    assert [one.image_id for one in store.list()] == [b.image_id], "the longest unused goes first"
    assert await store.prune() == 1100 and is_empty(store)


async def test_a_pull_makes_room(tmp_path, layout, place):
    store = ImageStore(tmp_path / "store", unpack_by_tarfile, most_bytes=2100)
    a, _ = [await store.pull(layout(name)) for name in "ab"]
    store.use(a.image_id, "sandbox-1", str(place.parent))
    await store.pull(layout("c"))
    assert {one.image_id for one in store.list()} == {a.image_id, store.find(layout("c")).image_id}
    small = ImageStore(tmp_path / "small", unpack_by_tarfile, most_bytes=1)
    assert (await small.pull(layout("a"))).layers and small.list()


async def test_downloads_that_nobody_goes_on_with(store):
    blobs, name = store._directory / "blobs", "ab" * 32
    (blobs / f"{name}.part").write_bytes(b"x" * 5000)
    (blobs / f"{name}.tree/root").mkdir(parents=True)
    await store.remove_expired()
    assert await store.prune(unused_seconds=60) == 0 and (blobs / f"{name}.part").exists()
    os.utime(blobs / f"{name}.part", (0, 0))
    assert await store.prune(unused_seconds=60) >= 5000 and is_empty(store)


async def test_what_killed_processes_have_left_goes_by_itself(store):
    """A download once nobody has gone on with it for long; at once what nobody can go on with, and nobody is at."""
    blobs, old, drawn, alone, held = store._directory / "blobs", "ab" * 32, "cd" * 16, "ef" * 32, "01" * 16
    for name in (old, drawn, alone, held):
        (blobs / f"{name}.part").touch()
        (blobs / f"{name}.tree/root").mkdir(parents=True)
    os.utime(blobs / f"{old}.part", (0, 0))
    (blobs / f"{alone}.part").unlink()
    fd = try_to_hold(blobs / f"{held}.part")
    await store.remove_expired()
    assert {path.name for path in blobs.iterdir()} == {f"{held}.part", f"{held}.tree"}
    os.close(fd)
    await store.remove_expired()
    assert is_empty(store)


async def test_a_removal_of_the_caller_s_own(tmp_path, layout):
    gone = []

    async def remove(path):
        gone.append(path.name)
        if len(gone) == 1:
            raise PermissionError(1, "not mine")
        await remove_as_oneself(path)

    store = ImageStore(tmp_path / "store", unpack_by_tarfile, remove=remove)
    await store.pull(layout("a"))
    await store.remove(layout("a"))
    assert layers(store) == set() and any((store._directory / "trash").iterdir())
    await store.prune()
    assert is_empty(store) and len(gone) >= 3


# -- layers


async def test_a_layer_that_leaves_out_directories_depends_on_those_below(store, tmp_path):
    lower = {mode: tar_of({"d/x": bytes([mode & 7])}) for mode in (0o755, 0o700)}
    upper = tar_of({"d/y": b"y"}, leave_out=("d",))
    path = write_layout(
        tmp_path / "layout", {"one": Image(lower[0o755], upper), "two": Image(lower[0o700], upper), "alone": Image(upper)}
    )
    one, two, alone = [await store.pull(f"oci:{path}:{tag}") for tag in ("one", "two", "alone")]
    keys = [Path(found.layers[0]).parent.name for found in (one, two, alone)]
    assert len(set(keys)) == 3 and keys[2] == digest_of(upper)[7:]
    chain = digest_of(f"{digest_of(lower[0o755])} {digest_of(upper)}".encode())[7:]
    assert keys[0] == chain
    before = layers(store)
    await store.remove(f"oci:{path}:one")
    assert (await store.pull(f"oci:{path}:one")).layers == one.layers and layers(store) == before


async def test_a_layer_that_leaves_out_directories_waits_for_those_below(tmp_path):
    """And lets go of its blob meanwhile; one that leaves out none does not wait."""
    seen, calls = asyncio.Event(), []

    async def unpack(pieces, into, below, limits):
        unpacked = await unpack_by_tarfile(pieces, into, below, limits)
        calls.append((os.listdir(into / "d"), len(below)))
        if "x" in os.listdir(into / "d"):
            await asyncio.wait_for(seen.wait(), 60)
        elif unpacked.implied:
            seen.set()
        return unpacked

    store = ImageStore(tmp_path / "store", unpack)
    lower, upper = tar_of({"d/x": b"x"}), tar_of({"d/y": b"y"}, leave_out=("d",))
    path = write_layout(tmp_path / "layout", {"a": Image(lower, upper)})
    found = await store.pull(f"oci:{path}:a")
    assert sorted(calls) == [(["x"], 0), (["y"], 0), (["y"], 1)]
    chain = digest_of(f"{digest_of(lower)} {digest_of(upper)}".encode())[7:]
    assert Path(found.layers[0]).parent.name == chain


def test_a_lock_on_a_file_that_has_just_gone_is_none(tmp_path, monkeypatch):
    """Who had it takes the file away; the next one has locked what nobody finds any more."""
    path, flock = tmp_path / "x.part", fcntl.flock

    def late(fd, how):
        path.unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert try_to_hold(path) is None
    monkeypatch.undo()
    fd = try_to_hold(path)
    assert fd is not None and try_to_hold(path) is None
    os.close(fd)


async def test_many_layers_at_once(store, tmp_path):
    tars = [
        tar_of({f"d{number}/x": os.urandom(50_000)}, leave_out=(f"d{number}",) if number % 3 == 2 else ())
        for number in range(12)
    ]
    path = write_layout(tmp_path / "layout", {"a": Image(*tars, *tars[:2])})
    found = await store.pull(f"oci:{path}:a")
    tops = [os.listdir(layer) for layer in found.layers]
    assert tops == [["d1"], ["d0"], *([f"d{number}"] for number in range(11, 1, -1))]


async def test_an_image_without_layers(store, tmp_path):
    path = write_layout(tmp_path / "layout", {"a": Image()})
    found = await store.pull(f"oci:{path}:a")
    assert found.layers == () and found.size_bytes == 0


async def test_a_disk_that_is_full(store, tmp_path):
    path = write_layout(tmp_path / "layout", {"a": Image(BASE)})

    async def unpack(pieces, into, below, limits):
        raise OSError(28, "No space left on device")

    full = ImageStore(store._directory, unpack)
    with pytest.raises(SandboxImageError, match="is full") as caught:
        await full.pull(f"oci:{path}:a")
    assert caught.value.reason == "disk_full" and is_empty(store)
    assert disk_error(OSError(5, "I/O error"), "x").reason == "store_failed"
    with pytest.raises(SandboxImageError) as caught:
        ImageStore(Path("/proc/nothing"), unpack_by_tarfile)
    assert caught.value.reason == "store_failed"


@pytest.fixture
def small(tmp_path):
    """A disk of a mebibyte."""
    path = tmp_path / "small"
    path.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], capture_output=True).returncode
    ):
        pytest.skip("needs to mount a small disk")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


async def test_a_small_disk(tmp_path, small):
    path = write_layout(tmp_path / "layout", {"a": Image(tar_of({"x": os.urandom(3_000_000)}))})
    store = ImageStore(small / "store", unpack_by_tarfile)
    with pytest.raises(SandboxImageError) as caught:
        await store.pull(f"oci:{path}:a")
    assert caught.value.reason == "disk_full" and is_empty(store)


@pytest.mark.parametrize("how", ["prune", "remove"])
async def test_a_full_disk_gets_room_by_what_is_removed(small, layout, how):
    store = ImageStore(small / "store", unpack_by_tarfile)
    a, b = [await store.pull(layout(name)) for name in "ab"]
    store.pin(b.image_id)
    with pytest.raises(OSError, match="No space"), open(small / "all-there-is", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    if how == "prune":
        assert await store.prune() > 0
    else:
        assert await store.remove(layout("a")) == [layout("a")]
    assert [one.image_id for one in store.list()] == [b.image_id] and layers(store) == {
        Path(one).parent.name for one in b.layers
    }
    # Nor does its name mean anything, also once the same image comes by another one.
    (small / "all-there-is").unlink()
    await store.pull(a_by_another_name := layout("a").replace("oci:", "oci:/proc/self/root"))
    assert store.find(layout("a")) is None and store.find(a_by_another_name).image_id == a.image_id


# -- names that are no registry's


async def test_no_registry_is_asked_for_a_step_of_a_build(store, monkeypatch):
    """Whoever has that name in the net could give builds whatever he likes."""
    asked = []

    async def resolve(self, host, *rest, **more):
        asked.append(host)
        raise OSError("no network")

    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", resolve)
    monkeypatch.setattr("aiohttp.resolver.AsyncResolver.resolve", resolve)
    for reference in (f"{BUILT}/{'0' * 40}:latest", f"{BUILT.upper()}/x", f"{BUILT}/x@sha256:{'0' * 64}"):
        with pytest.raises(SandboxImageError, match="build it again") as caught:
            await store.pull(reference)
        assert caught.value.reason == "image_not_here"
    assert asked == []
    with pytest.raises(SandboxImageError):
        await store.pull("registry.invalid/x:1")
    assert set(asked) == {"registry.invalid"}


async def test_whoever_finds_a_snapshot_by_one_of_its_names_finds_it_by_each(store, monkeypatch):
    """A server that dies between two of them would be followed by one that takes it for done."""
    recorded = RecordedSnapshot(snapshot_id="sn-" + "a" * 26, sandbox_id="sb-x", image="host", base="host", kind="build")
    names = (recorded.snapshot_id, f"{BUILT}/{'0' * 40}:latest", "a/name:1")
    seen = []
    replace = ImageIndex._replace

    def replaced(self, path, value, **how):
        replace(self, path, value, **how)
        seen.append(tuple(store.find(name) is not None for name in names))

    monkeypatch.setattr(ImageIndex, "_replace", replaced)

    async def pieces():
        yield BASE

    await store.snapshot(pieces(), NewSnapshot(recorded=recorded, image_id=None, names=names, architecture="amd64"))
    assert len(seen) > 1 and set(seen) == {(False,) * 3, (True,) * 3}


async def left(store, tmp_path, letter, content=b"left"):
    """A snapshot of what a dead sandbox has left, which nobody has counted."""
    upper = tmp_path / f"upper-{letter}"
    upper.mkdir()
    (upper / "file").write_bytes(content)
    recorded = RecordedSnapshot(snapshot_id="sn-" + letter * 26, sandbox_id="sb-x", image="host", base="host", kind="build")
    new = NewSnapshot(recorded=recorded, image_id=None, names=(recorded.snapshot_id,), architecture="amd64")
    return await store.snapshot(upper, new)


async def test_no_image_has_the_layer_of_a_snapshot_by_the_snapshot_s_id(store, tmp_path):
    """Whoever makes an image says by digests what its layers are; the id of a snapshot leads to none."""
    made = await left(store, tmp_path, "a")
    key = hashlib.sha256(made.snapshot.snapshot_id.encode()).hexdigest()
    assert Path(made.layers[0]).parent.name == key
    image = Image(BASE)
    config = json.loads(image.blobs[image.image_id])
    config["rootfs"]["diff_ids"] = [f"sha256:{key}"]
    image.document["config"] = image.add(json.dumps(config).encode(), CONFIG)
    image.raw = json.dumps(image.document).encode()
    image.manifest = digest_of(image.raw)
    image.blobs[image.manifest] = image.raw
    path = write_layout(tmp_path / "hostile", {"v1": image})
    with pytest.raises(SandboxImageError) as caught:
        await store.pull(f"oci:{path}:v1")
    assert caught.value.reason == "wrong_digest"


async def test_a_layer_is_counted_once_however_many_ask(tmp_path):
    counted = []

    async def count(root):
        counted.append(root)
        await asyncio.sleep(0.05)
        return UnpackedLayer(size_bytes=4, files=2, implied=0, left_out=0)

    store = ImageStore(tmp_path / "store", unpack_by_tarfile, count=count)
    await left(store, tmp_path, "a")
    asking = [asyncio.create_task(store.sized(store.snapshots())) for _ in range(8)]
    await asyncio.sleep(0.02)
    asking.pop(0).cancel()  # Who has begun it gives up.
    assert [[one.size_bytes for one in found] for found in await asyncio.gather(*asking)] == [[4]] * 7
    assert len(counted) <= 2


async def test_a_layer_that_cannot_be_counted_keeps_no_image_here(tmp_path, layout):
    """What a sandbox has left may be as it likes; the others are held to what is allowed."""

    async def count(root):
        raise SandboxImageError("it cannot be")

    store = ImageStore(tmp_path / "store", unpack_by_tarfile, count=count)
    await store.pull(layout("a"))
    made = await left(store, tmp_path, "a")
    store.pin(made.image_id)
    await store.prune(most_bytes=100)
    assert store.find(layout("a")) is None and store.find(made.image_id) is not None


def test_what_was_counted_of_a_layer_replaces_no_description_that_cannot_be_read(tmp_path, monkeypatch):
    layer = tmp_path / "layer"
    layer.mkdir()
    described = layers_module.LayerDescription(diff_id="sha256:x", size_bytes=None, files=None, implied=0)
    layers_module.describe_layer(layer, described)
    read = Path.read_bytes
    with monkeypatch.context() as no_descriptor_is_left:
        no_descriptor_is_left.setattr(Path, "read_bytes", _refused)
        with pytest.raises(OSError, match="Too many"):
            layers_module.note_layer_size(layer, 4, 2)
    assert read(layer / "layer.json") and layers_module.read_layer(layer, "sha256:x") == described


def _refused(path):
    raise OSError(errno.EMFILE, "Too many open files")


# -- at once


async def test_nothing_blocks_the_loop(store):
    async with faulty_registry() as registry:
        reference = registry.add("a", Image(BASE, tar_of({"d/x": b""}, leave_out=("d",))))
        with blockbuster_ctx(scanned_modules=["aviato.server"]):
            await store.pull(reference)
            await store.pull(reference, refresh=True)
            await store.remove(reference)
            await store.prune()
    assert is_empty(store)


async def test_pulls_at_once_do_the_work_once(store):
    """Of one image by one name and by two, and of two images with a layer in common."""
    async with faulty_registry() as registry:
        images = [Image(BASE, tar_of({f"x{number}": os.urandom(300_000)})) for number in range(2)]
        names = [registry.add("a", images[0]), registry.add("b", images[0]), registry.add("c", images[1])]
        found = await asyncio.gather(*(store.pull(name) for name in [*names, *names]))
        assert [one.image_id for one in found] == [images[number].image_id for number in (0, 0, 1)] * 2
        layer_digests = {digest_of(layer) for image in images for layer in image.layers}
        asked = Counter(path.rpartition("/")[2] for _, path, _ in registry.asked if path.rpartition("/")[2] in layer_digests)
        assert asked == dict.fromkeys(layer_digests, 1)
        assert sorted(store.find(names[0]).names) == sorted(names[:2])


PULL = """
import asyncio, sys
from pathlib import Path
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacked_layer import UnpackedLayer
from aviato.server.images.unpacking import Unpacking
from tests.images.layouts import unpack_by_tarfile
store = ImageStore(Path(sys.argv[1]), unpack_by_tarfile)
print(asyncio.run(store.pull(sys.argv[2])).image_id)
"""


def pull_elsewhere(store, reference):
    command = [sys.executable, "-c", PULL, str(store._directory), reference]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


async def test_processes_at_once_do_the_work_once(store):
    async with faulty_registry() as registry:
        image = Image(BASE, tar_of({"x": os.urandom(2_000_000)}))
        reference = registry.add("a", image)
        processes = [pull_elsewhere(store, reference) for _ in range(3)]
        said = [await asyncio.to_thread(process.communicate) for process in processes]
        assert [text for text, _ in said] == [image.image_id + "\n"] * 3
        for layer in image.layers:
            assert registry.count(digest_of(layer)) == 1
        assert store.find(reference).image_id == image.image_id and layers(store) == {digest_of(BASE)[7:], *layers(store)}


async def test_a_process_that_is_killed_leaves_what_the_next_one_goes_on_with(store):
    async with faulty_registry() as registry:
        image = Image(BASE, tar_of({"x": os.urandom(2_000_000)}))
        reference = registry.add("a", image)
        blob = digest_of(image.layers[1])
        registry.faults = {f"/v2/some/image/blobs/{blob}": cut_after(registry, 1_000_000, hang=True)}
        process = pull_elsewhere(store, reference)
        part = part_of(store, reference, blob)
        deadline = time.monotonic() + 50
        while not part.exists() or part.stat().st_size < 700_000 or digest_of(BASE)[7:] not in layers(store):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        # What it needs is kept from whoever sweeps meanwhile.
        assert await store.prune() == 0 and part.exists() and digest_of(BASE)[7:] in layers(store)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert store.find(reference) is None and store.list() == []
        size = part.stat().st_size
        registry.faults = {}
        registry.asked.clear()
        assert (await store.pull(reference)).image_id == image.image_id
        assert registry.ranges()[-1] == f"bytes={size}-" and registry.count(digest_of(image.layers[0])) == 0
        await store.prune()
        assert is_empty(store), "what the killed one kept is kept no longer"


REAL_PULL = """
import asyncio, sys
from pathlib import Path
from aviato.server.backends.local import binary
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacked_layer import UnpackedLayer
from aviato.server.images.unpacking import Unpacking
store = ImageStore(Path(sys.argv[1]), Unpacking(binary.found, owners=False))
print("begins", flush=True)
asyncio.run(store.pull(sys.argv[2]))
"""


@pytest.mark.parametrize("parts", [3, *deep([40])])
async def test_a_process_that_is_killed_at_any_moment(tmp_path, parts):
    """Wherever that is: what is there is whole, and the pull of another one ends with all of it."""
    store = ImageStore(tmp_path / "store", Unpacking(binary.found, owners=False))
    contents = [{f"d{layer}/{number}": os.urandom(100_000) for number in range(10)} for layer in range(5)]
    async with faulty_registry() as registry:
        image = Image(*map(tar_of, contents))
        reference = registry.add("a", image)
        took = None
        for part in (parts, *range(parts)):  # The first is not killed, and says how long all of it takes.
            command = [sys.executable, "-c", REAL_PULL, str(store._directory), reference]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
            assert await asyncio.to_thread(process.stdout.readline) == "begins\n"
            began = time.monotonic()
            if took is not None:
                await asyncio.sleep(took * part / parts)  # the point of the kill, not a wait
                process.kill()
            await asyncio.to_thread(process.communicate)
            took = took or time.monotonic() - began
            found = store.find(reference)
            assert found is None or is_whole(found, contents)
            for root in (store._directory / "layers").glob("*/root"):
                [top] = os.listdir(root)
                assert {path.name: path.read_bytes() for path in (root / top).iterdir()} == inside(contents[int(top[1:])])
            if found is not None:
                await store.remove(reference)
        assert is_whole(await store.pull(reference), contents)
    await store.prune()
    assert is_empty(store)


def inside(content):
    return {path.partition("/")[2]: data for path, data in content.items()}


def is_whole(found, contents):
    tops = [{path.name: path.read_bytes() for path in Path(root).glob("d*/*")} for root in reversed(found.layers)]
    return tops == [*map(inside, contents)]


async def test_a_process_that_is_killed_while_it_unpacks(store, layout):
    """Its half of a tree is no layer, and goes with the next pull."""
    tree = part_of(store, layout("a"), digest_of(Image(BASE).layers[0])).with_suffix(".tree")
    (tree / "root/old").mkdir(parents=True)
    a = await store.pull(layout("a"))
    assert os.listdir(a.layers[1]) == ["base"] and not tree.exists()
