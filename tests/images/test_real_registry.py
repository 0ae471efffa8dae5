"""Pulls from Debian's `docker-registry`, which `skopeo` has filled: in clear, with TLS, with passwords, and with both."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest

from aviato.exceptions import SandboxImageError
from aviato.server.images.patience import Patience
from aviato.server.images.store import ImageStore
from tests.images.layouts import Image, tar_of, unpack_by_tarfile, write_layout
from tests.images.real_registry import real_registry

pytestmark = pytest.mark.anyio
QUICK = Patience(connect_seconds=5, stall_seconds=5, attempts=3, backoff_seconds=0.05)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """No credentials of whoever runs the tests."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["clear", "tls", "password", "tls and password"])
def registry(request, tmp_path):
    """Its host, and which of its walls it has."""
    with real_registry(tmp_path, tls="tls" in request.param, password="password" in request.param) as host:
        yield host, request.param


def fill(tmp_path, host, image, *options):
    path = write_layout(tmp_path / f"layout-{image.image_id[7:15]}", {"v1": image})
    policy = tmp_path / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    command = ["skopeo", "--policy", str(policy), "copy", *options, "--dest-tls-verify=false", "--dest-creds=user:secret"]
    said = subprocess.run([*command, f"oci:{path}:v1", f"docker://{host}/some/image:v1"], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr


async def test_a_real_registry(registry, tmp_path, monkeypatch):
    host, walls = registry
    image = Image(tar_of({"bin/sh": b"#!"}), tar_of({"etc/x": b"x" * 500_000}))
    fill(tmp_path, host, image)
    store = ImageStore(tmp_path / "store", unpack_by_tarfile, patience=QUICK)
    reference = f"{host}/some/image:v1"
    if "tls" in walls:
        with pytest.raises(SandboxImageError, match="certificate") as caught:
            await store.pull(reference)
        assert caught.value.reason == "registry_unreachable"
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    if "password" in walls:
        with pytest.raises(SandboxImageError, match="docker login") as caught:
            await store.pull(reference)
        assert caught.value.reason == "needs_credentials"
        config = Path.home() / ".docker/config.json"
        config.parent.mkdir()
        for password in ("wrong", "secret"):
            config.write_text(json.dumps({"auths": {host: {"auth": base64.b64encode(f"user:{password}".encode()).decode()}}}))
            if password == "wrong":
                with pytest.raises(SandboxImageError) as caught:
                    await store.pull(reference)
                assert caught.value.reason == "denied"
    found = await store.pull(reference)
    assert found.image_id == image.image_id and len(found.layers) == 2
    assert (Path(found.layers[0]) / "etc/x").stat().st_size == 500_000
    for wrong, reason in ((f"{host}/some/image:v2", "unknown_tag"), (f"{host}/other", "unknown_name")):
        with pytest.raises(SandboxImageError) as caught:
            await store.pull(wrong)
        assert caught.value.reason == reason
    # Docker's own kinds of manifests, and a tag that moves.
    fill(tmp_path, host, second := Image(tar_of({"new": b""})), "--format=v2s2")
    assert await store.pull(reference) == found
    moved = await store.pull(reference, refresh=True)
    assert moved.image_id != found.image_id and moved.layers[0] == f"{store._directory}/layers/{_diff(second)}/root"


def _diff(image):
    return json.loads(image.blobs[image.image_id])["rootfs"]["diff_ids"][0].partition(":")[2]
