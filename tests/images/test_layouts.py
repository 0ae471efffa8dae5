"""Images in directories and archives: `skopeo` and `umoci` as they write them, and hostile ones."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from aviato.exceptions import SandboxImageError
from aviato.server.images.platforms import this_platform
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacked_layer import UnpackLimits
from tests.images.layouts import Image, digest_of, tar_of, unpack_by_tarfile, write_layout

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def store(tmp_path):
    return ImageStore(tmp_path / "store", unpack_by_tarfile, limits=UnpackLimits(most_bytes=4 << 20, most_files=1000))


def image():
    return Image(tar_of({"bin/sh": b"#!"}), tar_of({"etc/x": b"x" * 5000}))


async def refused(store, reference, reason):
    with pytest.raises(SandboxImageError) as caught:
        await store.pull(reference)
    assert caught.value.reason == reason, caught.value
    assert store.list() == []
    return str(caught.value)


# -- layouts


async def test_a_layout(store, tmp_path, monkeypatch):
    made, other = image(), Image(tar_of({"other": b""}))
    path = write_layout(tmp_path / "layout", {"v1": made, "v2": other})
    found = await store.pull(f"oci:{path}:v1")
    assert found.image_id == made.image_id and found.names == (f"oci:{path}:v1",) and len(found.layers) == 2
    assert [sorted(os.listdir(layer)) for layer in found.layers] == [["etc"], ["bin"]]
    assert (await store.pull(f"oci:{path}:v2")).image_id == other.image_id
    monkeypatch.chdir(tmp_path)
    assert store.find("oci:layout:v1") == found
    for reference, text in ((f"oci:{path}", "'v1', 'v2'"), (f"oci:{path}:v3", "'v1', 'v2'")):
        with pytest.raises(SandboxImageError, match=text) as caught:
            await store.pull(reference)
        assert caught.value.reason == "unknown_tag"


async def test_the_only_image_needs_no_tag(store, tmp_path):
    path = write_layout(tmp_path / "layout", {None: image()})
    assert await store.pull(f"oci:{path}")


async def test_layouts_that_are_damaged(store, tmp_path):
    await refused(store, f"oci:{tmp_path}/none", "no_such_file")
    await refused(store, f"oci:{tmp_path}", "no_such_file")
    made = image()

    def layout():
        shutil.rmtree(tmp_path / "layout", ignore_errors=True)
        return write_layout(tmp_path / "layout", {"v1": made})

    reference = f"oci:{tmp_path}/layout:v1"
    for name, content, reason in (
        ("oci-layout", "{}", "damaged_layout"),
        ("index.json", "[]", "bad_manifest"),
        ("index.json", '{"schemaVersion": 2, "manifests": [3]}', "bad_manifest"),
        ("index.json", "x" * (5 << 20), "manifest_too_large"),
        ("index.json", made.raw.decode(), "bad_manifest"),
    ):
        (layout() / name).write_text(content)
        await refused(store, reference, reason)
    (layout() / "index.json").unlink()
    await refused(store, reference, "no_such_file")
    blob = f"blobs/{digest_of(made.layers[1]).replace(':', '/')}"
    for change, reason in (
        (lambda path: path.unlink(), "no_such_file"),
        (lambda path: path.write_bytes(made.layers[1][:-1]), "truncated_layer"),
        (lambda path: path.write_bytes(made.layers[1] + b"x"), "oversized_layer"),
        (lambda path: path.write_bytes(bytes(len(made.layers[1]))), "wrong_digest"),
    ):
        change(layout() / blob)
        await refused(store, reference, reason)
    config = layout() / f"blobs/{made.image_id.replace(':', '/')}"
    config.write_bytes(config.read_bytes().replace(b"sh", b"su"))
    await refused(store, reference, "wrong_digest")
    manifest = layout() / f"blobs/{made.manifest.replace(':', '/')}"
    manifest.write_bytes(made.raw + b" ")
    await refused(store, reference, "wrong_digest")


async def test_a_layout_leads_nowhere_else(store, tmp_path):
    """Its links are not followed, and nothing of what they lead to gets into a message; pipes are not waited for."""
    (tmp_path / "secret").write_text("the secret")
    made = image()
    reference = f"oci:{tmp_path}/layout:v1"
    for name in (
        "index.json",
        f"blobs/{made.manifest.replace(':', '/')}",
        f"blobs/{digest_of(made.layers[0]).replace(':', '/')}",
    ):
        for put in (lambda path: path.symlink_to(tmp_path / "secret"), os.mkfifo, os.mkdir):
            shutil.rmtree(tmp_path / "layout", ignore_errors=True)
            path = write_layout(tmp_path / "layout", {"v1": made}) / name
            path.unlink()
            put(path)
            assert "the secret" not in await refused(store, reference, "damaged_layout")
    shutil.rmtree(tmp_path / "layout")
    path = write_layout(tmp_path / "layout", {"v1": made})
    (path / "blobs").rename(tmp_path / "away")
    (path / "blobs").symlink_to(tmp_path / "away")
    await refused(store, reference, "damaged_layout")


# -- compression


def zstd(data):
    zstandard = pytest.importorskip("zstandard", reason="needs zstandard")
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def members(data):
    """Of gzip, several of them, as pigz and stargz make them."""
    return b"".join(gzip.compress(data[at : at + 1000]) for at in range(0, len(data), 1000))


@pytest.mark.parametrize(
    ("compress", "kind"),
    [
        (gzip.compress, "+gzip"),
        (members, "+gzip"),
        (lambda data: gzip.compress(data) + bytes(700), "+gzip"),
        (lambda data: data, ""),
        (zstd, "+zstd"),
        (lambda data: zstd(data[:999]) + zstd(data[999:]), "+zstd"),
        (lambda data: b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstd(data), "+zstd"),
    ],
    ids=["gzip", "members", "zeros", "plain", "zstd", "frames", "skippable"],
)
async def test_layers_compressed_in_every_way(store, tmp_path, compress, kind):
    tar = tar_of({"x": os.urandom(3_000_000)})
    path = write_layout(tmp_path / "layout", {"v1": Image(tar, compress=compress, kind=kind)})
    found = await store.pull(f"oci:{path}:v1")
    assert (Path(found.layers[0]) / "x").stat().st_size == 3_000_000
    assert Path(found.layers[0]).parent.name == digest_of(tar)[7:]


@pytest.mark.parametrize(
    ("compress", "reason"),
    [
        (lambda data: gzip.compress(data)[:-9], "damaged_layer"),
        (lambda data: gzip.compress(data)[:30], "damaged_layer"),
        (lambda data: gzip.compress(data) + b"rest", "damaged_layer"),
        (lambda data: gzip.compress(data)[:-8] + bytes(8), "damaged_layer"),
        (lambda data: b"\x1f\x8b" + data, "damaged_layer"),
        (lambda data: zstd(data)[:4] + bytes(50), "damaged_layer"),
        (lambda data: gzip.compress(data + bytes(512)), "wrong_digest"),
        (lambda data: gzip.compress(bytes(200 << 20)), "too_large"),
        (lambda data: zstd(bytes(200 << 20)), "too_large"),
    ],
    ids=["cut", "short", "rest", "checksum", "no_gzip", "no_zstd", "other_tar", "bomb", "zstd_bomb"],
)
async def test_layers_that_are_damaged(store, tmp_path, compress, reason):
    path = write_layout(tmp_path / "layout", {"v1": Image(tar_of({"x": os.urandom(9000)}), compress=compress)})
    await refused(store, f"oci:{path}:v1", reason)
    assert not any(any((store._directory / folder).iterdir()) for folder in ("layers", "blobs", "trash", "pulls"))


async def test_a_window_of_zstd_that_is_too_wide(store, tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="needs zstandard")
    parameters = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters)

    def wide(data):
        made = compressor.compressobj()
        return made.compress(data) + made.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + made.flush()

    path = write_layout(tmp_path / "layout", {"v1": Image(tar_of({"x": b"x"}), compress=wide)})
    await refused(store, f"oci:{path}:v1", "damaged_layer")


async def test_what_stands_in_a_tar_counts_too(tmp_path):
    store = ImageStore(tmp_path / "store", unpack_by_tarfile, limits=UnpackLimits(most_files=3))
    path = write_layout(tmp_path / "layout", {"v1": Image(tar_of({f"x{number}": b"" for number in range(4)}))})
    await refused(store, f"oci:{path}:v1", "too_large")


# -- archives


def archive(path, entries, files, links=()):
    with tarfile.open(path, "w") as tar:
        for name, data in (("manifest.json", json.dumps(entries).encode()), *files.items()):
            if data is None:
                continue
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for name, target in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return path


async def test_an_archive_as_docker_writes_it(store, tmp_path):
    tars = tar_of({"bin/sh": b"#!"}), tar_of({"etc/x": b"x"})
    made = Image(*tars)
    config = made.blobs[made.image_id]
    entry = {"Config": "c.json", "RepoTags": ["busybox:1"], "Layers": ["a/layer.tar", "./b/layer.tar", "c/layer.tar"]}
    document = json.loads(config)
    document["rootfs"]["diff_ids"].append(digest_of(tars[0]))
    config = json.dumps(document).encode()
    files = {"c.json": config, "a/layer.tar": tars[0], "b/layer.tar": gzip.compress(tars[1])}
    path = archive(tmp_path / "a.tar", [entry], files, [("c/layer.tar", "../a/layer.tar")])
    found = await store.pull(f"docker-archive:{path}")
    assert found.image_id == digest_of(config) and found.config.command == ("sh",)
    # The layer that is there twice counts where it is uppermost.
    assert [sorted(os.listdir(layer)) for layer in found.layers] == [["bin"], ["etc"]]
    packed = tmp_path / "a.tar.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for reference in (
        f"docker-archive:{packed}",
        f"docker-archive:{path}:busybox:1",
        f"docker-archive:{path}:docker.io/library/busybox:1",
    ):
        assert (await store.pull(reference)).image_id == found.image_id
    with pytest.raises(SandboxImageError, match="'busybox:1'"):
        await store.pull(f"docker-archive:{path}:busybox:2")
    two = archive(tmp_path / "two.tar", [entry, {**entry, "RepoTags": ["b:1"]}], files)
    with pytest.raises(SandboxImageError, match="'b:1', 'busybox:1'"):
        await store.pull(f"docker-archive:{two}")


async def test_an_archive_with_layers_of_zstd(store, tmp_path):
    """As Docker writes it where containerd keeps its images."""
    tar = tar_of({"x": b"x"})
    config = (made := Image(tar)).blobs[made.image_id]
    path = archive(tmp_path / "a.tar", [{"Config": "c", "Layers": ["l"]}], {"c": config, "l": zstd(tar)})
    found = await store.pull(f"docker-archive:{path}")
    assert found.image_id == made.image_id and os.listdir(found.layers[0]) == ["x"]


async def test_archives_that_are_damaged(store, tmp_path):
    (tar,) = tars = (tar_of({"x": os.urandom(9000)}),)
    config = (made := Image(*tars)).blobs[made.image_id]
    path = tmp_path / "a.tar"
    reference = f"docker-archive:{path}"
    entry = {"Config": "c", "Layers": ["l"]}
    await refused(store, reference, "no_such_file")
    path.mkdir()
    await refused(store, reference, "damaged_layout")
    path.rmdir()
    for content in (b"", b"x" * 600, gzip.compress(b"x" * 600), gzip.compress(b"x" * 600)[:-9]):
        path.write_bytes(content)
        await refused(
            store, reference, "damaged_layer" if content[:2] == b"\x1f\x8b" and len(content) < 25 else "damaged_layout"
        )
    for entries in (
        {},
        [],
        [3],
        [{}],
        [{"Config": "../c", "Layers": ["l"]}],
        [{"Config": "c", "Layers": ["/etc/passwd"]}],
        [{**entry, "Layers": []}],
        [{**entry, "Layers": ["l"] * 501}],
        [{**entry, "RepoTags": 5}],
        [{**entry, "RepoTags": [["a"]]}],
    ):
        archive(path, entries, {"c": config, "l": tar})
        await refused(store, reference, "damaged_layout")
    many = json.dumps({"rootfs": {"diff_ids": [digest_of(tar)] * 501}}).encode()
    archive(path, [{**entry, "Layers": ["l"] * 501}], {"c": many, "l": tar})
    assert "too many" in await refused(store, reference, "damaged_layout")
    archive(path, [entry], {"c": config}, [("l", "/etc/passwd")])
    await refused(store, reference, "damaged_layout")
    archive(path, [entry], {"c": config, "l": tar[:-512] + bytes(511) + b"x"})
    await refused(store, reference, "wrong_digest")
    archive(path, [entry], {"c": b"x" * (5 << 20), "l": tar})
    await refused(store, reference, "manifest_too_large")
    archive(path, [entry], {"c": config, "l": tar})
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(tar[:600]) + 5000])
    await refused(store, reference, "damaged_layout")
    path.write_bytes(gzip.compress(bytes(200 << 20)))
    await refused(store, reference, "too_large")


def layout_archive(path, images, change=lambda _: None):
    """A layout in a tar, as `skopeo copy … oci-archive:` writes it."""
    folder = write_layout(path.with_suffix(".layout"), images)
    change(folder)
    with tarfile.open(path, "w") as tar:
        tar.add(folder, arcname=".")
    shutil.rmtree(folder)
    return path


@pytest.mark.parametrize("compress", [None, gzip.compress, zstd], ids=["plain", "gzip", "zstd"])
async def test_a_layout_in_an_archive(store, tmp_path, compress):
    made, other = image(), Image(tar_of({"other": b""}))
    path = layout_archive(tmp_path / "a.tar", {"v1": made, "b:2": other})
    if compress is not None:
        path.write_bytes(compress(path.read_bytes()))
    found = await store.pull(f"docker-archive:{path}:v1")
    assert found.image_id == made.image_id
    assert [sorted(os.listdir(layer)) for layer in found.layers] == [["etc"], ["bin"]]
    assert (await store.pull(f"docker-archive:{path}:b:2")).image_id == other.image_id
    for reference in (f"docker-archive:{path}", f"docker-archive:{path}:v3"):
        with pytest.raises(SandboxImageError, match="'b:2', 'v1'"):
            await store.pull(reference)


async def test_a_layout_for_several_platforms_in_an_archive(store, tmp_path):
    platform, other = this_platform(), {"os": "plan9", "architecture": "amd64"}
    own, strange = image(), Image(tar_of({"x": b""}), platform=other)
    said = {"os": platform.os, "architecture": platform.architecture}
    index = {"schemaVersion": 2, "manifests": [strange.entry(platform=other), own.entry(platform=said)]}

    def several(folder):
        (folder / "index.json").write_text(json.dumps(index))

    path = layout_archive(tmp_path / "a.tar", {"one": own, "two": strange}, several)
    assert (await store.pull(f"docker-archive:{path}")).image_id == own.image_id


async def test_layouts_in_archives_that_are_damaged(store, tmp_path):
    made = image()
    path = tmp_path / "a.tar"
    layer, config, manifest = (
        f"blobs/{digest.replace(':', '/')}" for digest in (digest_of(made.layers[1]), made.image_id, made.manifest)
    )
    for name, content, reason in (
        ("oci-layout", b"{}", "damaged_layout"),
        ("index.json", b"[]", "bad_manifest"),
        ("index.json", None, "damaged_layout"),
        (manifest, None, "damaged_layout"),
        (manifest, made.raw + b" ", "wrong_digest"),
        (config, None, "damaged_layout"),
        (layer, None, "damaged_layout"),
        (layer, made.layers[1][:-1], "truncated_layer"),
        (layer, made.layers[1] + b"x", "oversized_layer"),
        (layer, bytes(len(made.layers[1])), "wrong_digest"),
    ):

        def change(folder, name=name, content=content):
            (folder / name).unlink() if content is None else (folder / name).write_bytes(content)

        layout_archive(path, {"v1": made}, change)
        await refused(store, f"docker-archive:{path}", reason)


@pytest.mark.parametrize(("program", "compress"), [("xz", lzma.compress), ("bzip2", bz2.compress)])
async def test_an_archive_in_another_compression_says_what_to_do(store, tmp_path, program, compress):
    path = layout_archive(tmp_path / "a.tar", {"v1": image()})
    path.write_bytes(compress(path.read_bytes()))
    said = await refused(store, f"docker-archive:{path}", "damaged_layout")
    assert f"compressed by {program}" in said and "decompress it first" in said


# -- what others write


async def test_what_skopeo_and_umoci_write(store, tmp_path):
    for program in ("skopeo", "umoci", "busybox"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")

    def run(*command):
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)

    run("umoci", "init", "--layout", "layout")
    run("umoci", "new", "--image", "layout:one")
    run("umoci", "unpack", "--rootless", "--image", "layout:one", "bundle")
    (tmp_path / "bundle/rootfs/bin").mkdir()
    shutil.copy(shutil.which("busybox"), tmp_path / "bundle/rootfs/bin/busybox")
    run("umoci", "repack", "--image", "layout:one", "--refresh-bundle", "bundle")
    (tmp_path / "bundle/rootfs/greeting").write_text("hello")
    run("umoci", "repack", "--image", "layout:one", "bundle")
    run("umoci", "config", "--image", "layout:one", "--config.entrypoint", "/bin/busybox", "--config.env", "A=b")
    run("skopeo", "copy", "oci:layout:one", "docker-archive:a.tar:some/image:1")
    run("skopeo", "copy", "oci:layout:one", "oci-archive:b.tar:other")
    named = (f"oci:{tmp_path}/layout:one", f"docker-archive:{tmp_path}/a.tar:some/image:1", f"docker-archive:{tmp_path}/b.tar")
    found = [await store.pull(reference) for reference in named]
    for one in found:
        assert one.config.entrypoint == ("/bin/busybox",) and ("A", "b") in one.config.environment
        assert (Path(one.layers[0]) / "greeting").read_text() == "hello"
        said = subprocess.run([f"{one.layers[1]}/bin/busybox", "echo", "it runs"], capture_output=True, check=True)
        assert said.stdout == b"it runs\n"
    assert found[0].layers == found[1].layers == found[2].layers
