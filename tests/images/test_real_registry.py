"""Pulls from Debian's `docker-registry`, which `skopeo` has filled: in clear, with TLS, with passwords, and with both."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from aviato.exceptions import SandboxImageError
from aviato.server.images.registry_requests import Patience
from aviato.server.images.store import ImageStore
from tests.certificates import make_certificate
from tests.conftest import free_port
from tests.images.layouts import Image, tar_of, unpack_by_tarfile, write_layout

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
    needed = ["docker-registry", "skopeo", *(["htpasswd"] if "password" in request.param else [])]
    for program in needed:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    host = f"localhost:{free_port()}"
    lines = ["version: 0.1", "log: {level: error}", f"storage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}"]
    lines += ["http:", f"  addr: {host}"]
    if "tls" in request.param:
        cert, key = make_certificate(tmp_path)
        lines += [f"  tls: {{certificate: {cert}, key: {key}}}"]
    if "password" in request.param:
        said = subprocess.run(["htpasswd", "-nbB", "-C", "4", "user", "secret"], check=True, capture_output=True, text=True)
        (tmp_path / "htpasswd").write_text(said.stdout.strip())
        lines += ["auth:", f"  htpasswd: {{realm: here, path: {tmp_path}/htpasswd}}"]
    (tmp_path / "registry.yml").write_text("\n".join(lines))
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(["docker-registry", "serve", str(tmp_path / "registry.yml")], stdout=log, stderr=log)
    try:
        _wait_for(host, process, tmp_path / "log")
        yield host, request.param
    finally:
        process.kill()
        process.wait()
        log.close()


def _wait_for(host, process, log):
    deadline = time.monotonic() + 20
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        try:
            socket.create_connection(("localhost", int(host.partition(":")[2])), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


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
