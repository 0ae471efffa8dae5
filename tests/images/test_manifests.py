"""Manifests and configurations: what is read, which platform is chosen, and what is refused in which words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aviato.exceptions import SandboxImageError
from aviato.server.images.image_config import ImageConfig
from aviato.server.images.manifests import (
    DOCKER_LIST,
    DOCKER_MANIFEST,
    Index,
    Manifest,
    Platform,
    read_details,
    read_manifest,
)
from aviato.server.images.platforms import check_platform, choose_manifest, this_platform
from tests.images.layouts import CONFIG, INDEX, LAYER, MANIFEST, Image, tar_of

DIGEST = "sha256:" + "ab" * 32


def descriptor(kind, **changes):
    return {"mediaType": kind, "digest": DIGEST, "size": 3, **changes}


def manifest(**changes):
    return {"schemaVersion": 2, "config": descriptor(CONFIG), "layers": [descriptor(LAYER)], **changes}


def read(document, media_type=None):
    return read_manifest(json.dumps(document).encode(), media_type, "some/image")


def refused(document, reason="bad_manifest", media_type=None):
    with pytest.raises(SandboxImageError) as caught:
        read(document, media_type)
    assert caught.value.reason == reason and caught.value.is_infrastructure and "some/image" in str(caught.value)
    return str(caught.value)


def index(*platforms):
    entries = [
        descriptor(MANIFEST, digest=f"sha256:{number:064x}", **({"platform": one} if one else {}))
        for number, one in enumerate(platforms)
    ]
    found = read({"schemaVersion": 2, "manifests": entries}, INDEX)
    assert isinstance(found, Index)
    return found


@pytest.mark.parametrize(
    "kind",
    [
        *(LAYER + end for end in ("", "+gzip", "+zstd")),
        *(f"application/vnd.oci.image.layer.nondistributable.v1.tar{end}" for end in ("", "+gzip", "+zstd")),
        *(f"application/vnd.docker.image.rootfs.diff.tar{end}" for end in ("", ".gzip", ".zstd")),
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
    ],
)
def test_layers_of_all_kinds(kind):
    found = read(manifest(layers=[descriptor(kind)]))
    assert isinstance(found, Manifest) and found.layers[0].media_type == kind and found.layers[0].hex == "ab" * 32


def test_docker_s_own_kinds():
    docker = manifest(mediaType=DOCKER_MANIFEST, config=descriptor("application/vnd.docker.container.image.v1+json"))
    assert isinstance(read(docker), Manifest)
    listed = {
        "schemaVersion": 2,
        "mediaType": DOCKER_LIST,
        "manifests": [descriptor(DOCKER_MANIFEST, platform={"os": "linux", "architecture": "amd64"})],
    }
    assert read(listed).manifests[0][1] == Platform("linux", "amd64")


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "no object"),
        (manifest(schemaVersion=3), "version '3'"),
        ({"schemaVersion": 2}, "not one of an image or a list"),
        (manifest(manifests=[]), "not one of an image or a list"),
        (manifest(mediaType=INDEX), "not what its media type says"),
        (manifest(layers=None), "layers is no list"),
        (manifest(layers=[descriptor(LAYER)] * 501), "501 layers; 500 are allowed"),
        (manifest(layers=[descriptor(LAYER, size=-1)]), "size"),
        (manifest(layers=[descriptor(LAYER, size=True)]), "size"),
        (manifest(layers=[descriptor(LAYER, size=1e3)]), "size"),
        (manifest(layers=[descriptor(LAYER, size=1 << 60)]), "size"),
        (manifest(layers=[descriptor(LAYER, digest="sha256:../../x")]), "digest"),
        (manifest(layers=[descriptor(LAYER, digest=None)]), "digest"),
        (manifest(layers=["x"]), "descriptor"),
        (manifest(config=None), "descriptor"),
        ({"schemaVersion": 2, "manifests": [descriptor(MANIFEST, platform="linux")]}, "platform"),
        ({"schemaVersion": 2, "manifests": [descriptor(MANIFEST, platform={"os": "a b"})]}, "platform"),
        ({"schemaVersion": 2, "manifests": [descriptor(MANIFEST)] * 1001}, "1001 manifests"),
    ],
)
def test_damaged_ones(document, why):
    assert why in refused(document)


def test_what_is_no_image_is_refused_by_name():
    assert "schema 1" in refused({"schemaVersion": 1, "fsLayers": []}, "unsupported_manifest")
    kind = "application/vnd.docker.distribution.manifest.v1+prettyjws"
    assert "schema 1" in refused({"schemaVersion": 2}, "unsupported_manifest", kind)
    assert "OCI artifact" in refused({"mediaType": "application/vnd.oci.artifact.manifest.v1+json"}, "unsupported_manifest")
    chart = "application/vnd.cncf.helm.config.v1+json"
    assert chart in refused(manifest(config=descriptor(chart)), "unsupported_manifest")
    assert "application/x-thing" in refused(manifest(layers=[descriptor("application/x-thing")]), "unsupported_manifest")
    assert "MiB" in refused(manifest(config=descriptor(CONFIG, size=5 << 20)), "manifest_too_large")


def test_deep_json_is_no_crash():
    with pytest.raises(SandboxImageError):
        read_manifest(b"[" * 200_000, None, "some/image")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([DIGEST, LAYER, CONFIG, INDEX, MANIFEST]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "schemaVersion",
                    "mediaType",
                    "config",
                    "layers",
                    "manifests",
                    "digest",
                    "size",
                    "platform",
                    "os",
                    "rootfs",
                    "diff_ids",
                    "Env",
                    "Cmd",
                    "Labels",
                    "created",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(JSON, st.dictionaries(st.sampled_from(["config", "layers", "manifests", "mediaType"]), JSON))
def test_any_json_is_read_or_refused(document, changes):
    whole = Manifest(config=read(manifest()).config, layers=())
    for one in (document, manifest(**changes)):
        data = json.dumps(one).encode()
        for reader in (
            lambda data: read_manifest(data, None, "it"),
            lambda data: read_details(data, whole, "it"),
            ImageConfig.parse,
        ):
            try:
                reader(data)
            except SandboxImageError as error:
                assert error.reason in ("bad_manifest", "unsupported_manifest", "manifest_too_large")


# -- platforms

AMD64, ARM64 = {"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64", "variant": "v8"}
UNKNOWN = {"os": "unknown", "architecture": "unknown"}


@pytest.mark.parametrize(
    ("machine", "own"),
    [
        ("x86_64", Platform("linux", "amd64")),
        ("aarch64", Platform("linux", "arm64")),
        ("armv7l", Platform("linux", "arm", "v7")),
        ("armv8l", Platform("linux", "arm", "v7")),
        ("i686", Platform("linux", "386")),
        ("sparc", Platform("linux", "sparc")),
    ],
)
def test_this_machine(machine, own):
    assert this_platform(machine) == own


@pytest.mark.parametrize(
    ("machine", "platforms", "chosen"),
    [
        ("x86_64", [ARM64, AMD64, UNKNOWN], 1),
        ("x86_64", [{**AMD64, "variant": "v3"}, AMD64], 1),
        ("x86_64", [{**AMD64, "os": "windows"}, AMD64], 1),
        ("aarch64", [AMD64, {**ARM64, "variant": ""}, ARM64], 2),
        ("aarch64", [AMD64, {**ARM64, "variant": ""}], 1),
        ("armv7l", [*({"os": "linux", "architecture": "arm", "variant": f"v{number}"} for number in (5, 6, 7, 8))], 2),
        ("armv6l", [*({"os": "linux", "architecture": "arm", "variant": f"v{number}"} for number in (5, 6, 7))], 1),
        ("x86_64", [None], 0),
        ("x86_64", [None, AMD64], 1),
    ],
)
def test_the_choice(machine, platforms, chosen):
    assert choose_manifest(index(*platforms), this_platform(machine), "it").digest == f"sha256:{chosen:064x}"


@pytest.mark.parametrize("platforms", [[ARM64, UNKNOWN], [], [None, None], [{**AMD64, "variant": "v4"}]])
def test_no_choice(platforms):
    with pytest.raises(SandboxImageError) as caught:
        choose_manifest(index(*platforms), this_platform("x86_64"), "it")
    assert caught.value.reason == "wrong_platform" and "(linux/amd64)" in str(caught.value)
    assert ("linux/arm64/v8" in str(caught.value)) == (ARM64 in platforms) and "unknown" not in str(caught.value)


def test_the_platform_of_a_single_image():
    own = this_platform("x86_64")
    for good in (Platform("linux", "amd64"), Platform("", ""), Platform("linux", "")):
        check_platform(good, own, "it")
    for bad in (Platform("linux", "arm64"), Platform("windows", "amd64"), Platform("linux", "amd64", "v4")):
        with pytest.raises(SandboxImageError, match=r"there are: \w+/\w+"):
            check_platform(bad, own, "it")


# -- configurations


def details(image, **changes):
    document = json.loads(image.blobs[image.image_id])
    found = read_manifest(image.raw, None, "it")
    return read_details(json.dumps({**document, **changes}).encode(), found, "it")


def test_a_configuration():
    found = details(Image(tar_of({"a": b""}), tar_of({"b": b""})))
    assert found.created_at == pytest.approx(1706933106.123456) and len(found.diff_ids) == 2
    assert found.config == ImageConfig(environment=(("PATH", "/bin"),), command=("sh",))
    for never in ("0001-01-01T00:00:00Z", "yesterday", 3, None):
        assert details(Image(), created=never).created_at is None


def test_layers_that_do_not_fit_together():
    for rootfs in (None, {}, {"diff_ids": []}, {"diff_ids": ["sha256:x"]}, {"diff_ids": [DIGEST, DIGEST]}):
        with pytest.raises(SandboxImageError) as caught:
            details(Image(tar_of({"a": b""})), rootfs=rootfs)
        assert caught.value.reason == "bad_manifest"


def test_what_an_image_says_of_commands():
    said = {
        "Env": ["A=1", "B=x=y", "A=2", "C=", "no", "=x"],
        "WorkingDir": "/w",
        "User": "me:us",
        "Entrypoint": ["/e"],
        "Cmd": None,
        "Labels": {"b": "2", "a": "1"},
        "Volumes": {"/v": {}},
        "Shell": ["/bin/bash", "-c"],
    }
    assert ImageConfig.parse(json.dumps({"config": said}).encode()) == ImageConfig(
        environment=(("A", "2"), ("B", "x=y"), ("C", "")),
        working_dir="/w",
        user="me:us",
        entrypoint=("/e",),
        labels=(("a", "1"), ("b", "2")),
        shell=("/bin/bash", "-c"),
    )
    assert ImageConfig.parse(b"{}") == ImageConfig() == ImageConfig.parse(b'{"config": {"User": "", "WorkingDir": ""}}')


@pytest.mark.parametrize(
    "config",
    [
        {"Env": "A=1"},
        {"Env": [1]},
        {"Cmd": ["a\0"]},
        {"Cmd": ["x"] * 5000},
        {"User": 3},
        {"Labels": {"a": 1}},
        {"Cmd": ["x" * 200_000]},
        # What no program could be given, and no answer of the server could hold.
        {"WorkingDir": "/\ud800"},
        {"Env": ["A=\udfff"]},
        {"Labels": {"\ud800": "a"}},
        [],
    ],
)
def test_configurations_that_are_none(config):
    with pytest.raises(SandboxImageError) as caught:
        ImageConfig.parse(json.dumps({"config": config}).encode())
    assert caught.value.reason == "bad_manifest"
