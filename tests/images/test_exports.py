"""Images that go out of a store: what other programs make of them, and what comes back."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from aviato.exceptions import SandboxImageError
from aviato.server.backends.local import binary
from aviato.server.images.image_exports import name_out_of
from aviato.server.images.image_index import RecordedSnapshot
from aviato.server.images.image_snapshots import NewSnapshot
from aviato.server.images.packing import Packing
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacking import Unpacking
from tests.images.layers import Member, directory, hard_link, link, seen, tar
from tests.images.whole_images import ARCHITECTURE, make_layout

IS_ROOT = os.geteuid() == 0
CONFIG = {
    "Env": ["PATH=/bin", "EMPTY=", "E=a=b"],
    "WorkingDir": "/work",
    "User": "7:8",
    "Entrypoint": ["/program"],
    "Cmd": ["--version", ""],
    "Labels": {"l": "m"},
    "Shell": ["/bin/bash", "-c"],
}
LOWEST = tar(
    directory("./"),
    directory("etc", mtime=7),
    Member("etc/passwd", content=b"root:x:0:0::/:/bin/sh\n", mtime=8),
    Member("etc/shadow", content=b"secret", mode=0o640, gid=42),
    Member("etc/gone", content=b"gone"),
    directory("bin"),
    Member("bin/su", content=b"\x7fELF" * 50_000, mode=0o4755),
    hard_link("bin/sudo", "bin/su"),
    link("bin/sh", "su"),
    directory("opaque"),
    Member("opaque/old", content=b"old"),
    directory("tmp", 0o1777),
    directory("home", uid=1000, gid=1000),
    Member("home/" + "n" * 150, content=b"long", uid=1000, gid=1000),
)
UPPER = tar(Member("etc/.wh.gone"), Member("etc/shadow", content=b"other", mode=0o600, uid=3), Member("home/x", mode=0o2711))
UPPERMOST = tar(directory("opaque", 0o700, uid=5), Member("opaque/.wh..wh..opq"), Member("opaque/new", content=b"new"))
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def open_store(path):
    return ImageStore(path, Unpacking(binary.found, owners=IS_ROOT), pack=Packing(binary.found, owners=IS_ROOT))


@pytest.fixture
async def store(tmp_path):
    """With one image."""
    layout = make_layout(tmp_path / "image", [LOWEST, UPPER, UPPERMOST], CONFIG, "v1")
    made = open_store(tmp_path / "store")
    await made.pull(f"oci:{layout}:v1")
    made.name(f"oci:{layout}:v1", "tasks/one:1.0")
    return made


async def export(store, reference, path, form="archive"):
    """A tar, or where its name does not say so what is in it."""
    archive = path if path.suffix == ".tar" else path.with_suffix(".x")
    with archive.open("wb") as file:
        async with store.exports.archive(reference, form) as pieces:
            async for piece in pieces:
                file.write(piece)
    if archive != path:
        path.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", path], check=True)
    return path


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(*programs):
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")


def unpacked_by_umoci(layout, tag, bundle):
    run("umoci", "unpack", *([] if IS_ROOT else ["--rootless"]), "--image", f"{layout}:{tag}", bundle)
    found = seen(bundle / "rootfs")
    if not IS_ROOT:  # It writes down there whose files would be.
        found = {name: one._replace(attributes={}) for name, one in found.items()}
    # What no layer says of a directory is of the moment.
    return {name: one._replace(mtime=0) if one.kind == "directory" else one for name, one in found.items()}


async def test_other_programs_unpack_the_same(store, tmp_path):
    needs("umoci", "skopeo")
    exported = await export(store, "tasks/one:1.0", tmp_path / "exported", "layout")
    before = unpacked_by_umoci(tmp_path / "image", "v1", tmp_path / "before")
    after = unpacked_by_umoci(exported, "1.0", tmp_path / "after")
    assert after == before
    assert "etc/gone" not in after and set(after) > {"opaque/new", "bin/sh"} and "opaque/old" not in after
    assert after["bin/su"].names == ("bin/su", "bin/sudo") and after["bin/su"].mode == 0o4755
    assert not IS_ROOT or (after["etc/shadow"].owner, after["home"].owner) == ((3, 0), (1000, 1000))
    assert sorted(path.name for path in exported.iterdir()) == ["blobs", "index.json", "oci-layout"]
    for blob in (exported / "blobs/sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name


async def test_what_is_said_of_it(store, tmp_path):
    needs("skopeo")
    archive = await export(store, "tasks/one:1.0", tmp_path / "exported.tar")
    config = json.loads(run("skopeo", "inspect", "--config", "--raw", f"oci-archive:{archive}:1.0"))
    assert config["config"] == CONFIG
    assert (config["os"], config["architecture"], len(config["rootfs"]["diff_ids"])) == ("linux", ARCHITECTURE, 3)
    assert [one["created_by"] for one in config["history"]] == ["aviato"] * 3 and "created" not in config
    # The way of `docker load`.
    other = json.loads(run("skopeo", "inspect", "--config", f"docker-archive:{archive}:docker.io/tasks/one:1.0"))
    assert other["rootfs"] == config["rootfs"]
    with tarfile.open(archive) as opened:
        names = opened.getnames()
        manifest = json.load(opened.extractfile("manifest.json"))
    assert names[:3] == ["blobs", "blobs/sha256", "oci-layout"] and names[-1] == "index.json", "what names all comes last"
    assert manifest[0]["RepoTags"] == ["docker.io/tasks/one:1.0"]
    again = await export(store, "tasks/one:1.0", tmp_path / "again.tar")
    assert again.read_bytes() == archive.read_bytes(), "the same image is always the same"


@pytest.mark.parametrize("form", ["layout", "archive"])
async def test_it_comes_back(store, tmp_path, form):
    """Into another store, from which it goes out as it came."""
    name = "exported" if form == "layout" else "exported.tar"
    exported = await export(store, "tasks/one:1.0", tmp_path / name, form)
    other = open_store(tmp_path / "other")
    reference = f"oci:{exported}:1.0" if form == "layout" else f"docker-archive:{exported}:tasks/one:1.0"
    first, found = store.find("tasks/one:1.0"), await other.pull(reference)
    assert (found.config, found.architecture, len(found.layers)) == (first.config, first.architecture, 3)
    for one, two in zip(first.layers, found.layers, strict=True):
        theirs, ours = seen(Path(one)), seen(Path(two))
        assert {name: one._replace(mtime=0) for name, one in ours.items()} == {
            name: one._replace(mtime=0) for name, one in theirs.items()
        }
    other.name(reference, "tasks/one:1.0")
    again = await export(other, "tasks/one:1.0", tmp_path / f"again{exported.suffix}", form)
    assert form == "layout" or again.read_bytes() == exported.read_bytes()
    assert (await other.pull(f"{reference}", refresh=True)).image_id == found.image_id


async def of_pieces(data):
    yield data


def snapshot(base_id, **more):
    recorded = RecordedSnapshot(snapshot_id="sn-" + "a" * 26, sandbox_id="sb-x", image="x", **more)
    return NewSnapshot(recorded=recorded, image_id=base_id, names=(recorded.snapshot_id,), architecture=ARCHITECTURE)


async def test_snapshots(store, tmp_path):
    needs("umoci")
    base = store.find("tasks/one:1.0")
    taken = await store.snapshot(of_pieces(tar(directory("./"), Member("mine", content=b"mine"))), snapshot(base.image_id))
    exported = await export(store, taken.snapshot.snapshot_id, tmp_path / "exported", "layout")
    found = unpacked_by_umoci(exported, "latest", tmp_path / "after")
    assert found["mine"].content == b"mine" and found["etc/passwd"].kind == "file"
    index = json.loads((exported / "index.json").read_text())["manifests"][0]["annotations"]
    assert index == {"org.opencontainers.image.ref.name": "latest"}, "ids are no names elsewhere"
    config = next(
        document
        for path in (exported / "blobs/sha256").iterdir()
        if path.read_bytes()[:1] == b"{" and "rootfs" in (document := json.loads(path.read_bytes()))
    )
    assert config["created"].endswith("Z") and len(config["rootfs"]["diff_ids"]) == 4


async def test_what_is_this_machines_own_is_no_image(store):
    taken = await store.snapshot(of_pieces(tar(directory("./"))), snapshot(None, base="host"))
    for reference in ("host", "dir:/srv", taken.image_id, taken.snapshot.snapshot_id):
        for going in (
            store.exports.archive(reference, "archive").__aenter__(),
            store.exports.push(reference, "x.test/y", print),
        ):
            with pytest.raises(SandboxImageError, match="begin with an image of a registry") as caught:
                await going
            assert caught.value.reason == "base_of_this_machine"
    with pytest.raises(SandboxImageError, match="aviato image ls") as caught:
        await store.exports.archive("no/such:1", "archive").__aenter__()
    assert caught.value.reason == "image_not_here"


async def test_a_layer_that_is_there_twice(tmp_path):
    """In a list of layers it is so too, and in the tar it is once."""
    upper = tar(Member("x", content=b"x"))
    layout = make_layout(tmp_path / "image", [LOWEST, upper, tar(Member(".wh.x")), upper], {})
    store = open_store(tmp_path / "store")
    await store.pull(f"oci:{layout}")
    archive = await export(store, f"oci:{layout}", tmp_path / "exported.tar")
    with tarfile.open(archive) as opened:
        names = opened.getnames()
        [entry] = json.load(opened.extractfile("manifest.json"))
    assert len(names) == len(set(names)) and len(entry["Layers"]) == 4 and entry["Layers"][1] == entry["Layers"][3]
    assert len((await open_store(tmp_path / "other").pull(f"docker-archive:{archive}")).layers) == 3


async def test_it_stays_while_it_goes_out(store, tmp_path):
    """Somebody who removes it meanwhile takes nothing from under it, and what is left over goes afterwards."""
    layers = tmp_path / "store/layers"
    async with store.exports.archive("tasks/one:1.0", "archive") as pieces:
        await anext(pieces)
        await store.remove(store.find("tasks/one:1.0").image_id)
        assert len([*layers.iterdir()]) == 3
        data = b"".join([piece async for piece in pieces])
    assert data.endswith(bytes(1024)) and b"index.json" in data
    await store.prune()
    assert [*layers.iterdir()] == [] and [*(tmp_path / "store/pulls").iterdir()] == []
    assert [*(tmp_path / "store/blobs").iterdir()] == []


async def test_who_stops_early_leaves_nothing(store, tmp_path):
    async with store.exports.archive("tasks/one:1.0", "archive") as pieces:
        await anext(pieces)
        await anext(pieces)
    for folder in ("blobs", "pulls", "trash"):
        assert [*(tmp_path / "store" / folder).iterdir()] == []
    task = asyncio.ensure_future(export(store, "tasks/one:1.0", tmp_path / "cancelled.tar"))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    assert [*(tmp_path / "store/pulls").iterdir()] == []


async def test_layers_that_are_compressed_have_no_time(store, tmp_path):
    exported = await export(store, "tasks/one:1.0", tmp_path / "exported", "layout")
    compressed = [data for path in (exported / "blobs/sha256").iterdir() if (data := path.read_bytes())[:2] == b"\x1f\x8b"]
    assert len(compressed) == 3 and all(data[4:8] == bytes(4) and gzip.decompress(data) for data in compressed)


def test_names():
    names = ("docker.io/library/debian:12", "oci:/x:v1", "docker.io/library/sn-" + "a" * 26 + ":latest")
    for reference in ("debian:12", "sha256:" + "a" * 64, "a" * 12, "oci:/x:v1"):
        assert name_out_of(reference, names) == ("12", "docker.io/library/debian:12")
    assert name_out_of("sn-" + "a" * 26, names[1:]) == ("latest", None)
    built = "aviato.build/" + "a" * 40
    assert name_out_of(built, (f"{built}:latest",)) == ("latest", None)
    assert name_out_of("x@sha256:" + "a" * 64, ("docker.io/library/x@sha256:" + "a" * 64,)) == ("latest", None)
