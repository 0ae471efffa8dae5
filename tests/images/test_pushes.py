"""Pushes: to Debian's `docker-registry`, and to one that fails in every way."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from pathlib import Path

import pytest
from aiohttp import web

from aviato.exceptions import SandboxImageError
from aviato.server.backends.local import binary
from aviato.server.images import registry_requests
from aviato.server.images.image_exports import parse_destination
from aviato.server.images.packing import Packing
from aviato.server.images.patience import Patience
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacking import Unpacking
from tests.images.faulty_registry import always, faulty_registry, times
from tests.images.layouts import Image, digest_of, tar_of, write_layout
from tests.images.real_registry import real_registry
from tests.images.test_registry import hash_stream

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nobody")]
QUICK = Patience(connect_seconds=2, stall_seconds=0.4, attempts=3, backoff_seconds=0.01, most_wait_seconds=2)
UPLOADS = "/v2/some/image/blobs/uploads/"
PLACE = f"{UPLOADS}a-place"


@pytest.fixture
def anyio_backend():
    return "asyncio"


def log_in(host, password="secret"):
    config = Path.home() / ".docker/config.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps({"auths": {host: {"auth": base64.b64encode(f"user:{password}".encode()).decode()}}}))


@pytest.fixture
async def registry():
    async with faulty_registry() as running:
        yield running


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    image = Image(tar_of({"bin/sh": b"#!", "data": hash_stream(600_000)}), tar_of({"etc/x": b"x" * 1000}))
    return write_layout(tmp_path_factory.mktemp("pushed") / "layout", {"v1": image})


@pytest.fixture
async def store(tmp_path, layout):
    made = ImageStore(tmp_path / "store", Unpacking(binary.found), pack=Packing(binary.found), patience=QUICK)
    await made.pull(f"oci:{layout}:v1")
    made.name(f"oci:{layout}:v1", "tasks/one:1")
    return made


async def push(store, destination, heard=None):
    return await store.exports.push("tasks/one:1", destination, [].append if heard is None else heard.append)


async def refused(store, registry, reason, match=None):
    with pytest.raises(SandboxImageError, match=match) as caught:
        await push(store, registry.reference("1"))
    assert caught.value.reason == reason, caught.value
    assert caught.value.is_infrastructure and not registry.tags, "no tag means what is not there whole"
    return caught.value


# -- a real one ------------------------------------------------------------------------------------------------------------


async def test_a_real_registry_with_all_its_walls(store, tmp_path, monkeypatch):
    with real_registry(tmp_path, tls=True, password=True) as host:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        for password, reason in ((None, "needs_credentials"), ("wrong", "denied")):
            if password is not None:
                log_in(host, password)
            with pytest.raises(SandboxImageError) as caught:
                await push(store, f"{host}/deep/er/image:v7")
            assert caught.value.reason == reason
        log_in(host)
        done = await push(store, f"{host}/deep/er/image:v7")
        assert (done.layers_done, done.layers_total, done.reference) == (2, 2, f"{host}/deep/er/image:v7")
        assert done.sent_bytes > 600_000
        again = await push(store, f"{host}/deep/er/image:v7")
        assert (again.digest, again.sent_bytes) == (done.digest, 0)
        other = ImageStore(tmp_path / "other", Unpacking(binary.found), patience=QUICK)
        found = await other.pull(f"{host}/deep/er/image@{done.digest}")
        assert (Path(found.layers[1]) / "data").read_bytes() == hash_stream(600_000)
        policy = tmp_path / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        options = ["--src-tls-verify=false", "--src-creds=user:secret"]
        command = ["skopeo", "--policy", str(policy), "copy", *options]
        command += [f"docker://{host}/deep/er/image:v7", f"oci:{tmp_path}/out:v7"]
        said = subprocess.run(command, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr
        index = json.loads((tmp_path / "out/index.json").read_text())
        assert index["manifests"][0]["digest"] == done.digest


# -- what is sent ----------------------------------------------------------------------------------------------------------


async def test_what_is_there_is_not_sent(store, registry):
    heard = []
    done = await push(store, registry.reference("1"), heard)
    assert registry.tags["1"] == done.digest == digest_of(registry.blobs[done.digest])
    assert heard[0].sent_bytes == 0 and heard[-1] == done and done.layers_done == 2
    of_layers = [(one.layers_done, one.layer_done_bytes, one.layer_total_bytes) for one in heard if one.layer_total_bytes]
    assert of_layers == sorted(of_layers) and {number for number, _, _ in of_layers} == {0, 1}
    whole = [total for number in (0, 1) for one, count, total in of_layers if one == number and count == total]
    assert sum(whole) == done.sent_bytes and len(whole) == 2 and done.layer_total_bytes is None
    assert [method for method, path, _ in registry.asked if method in ("POST", "PUT")] == ["POST", "PUT"] * 3 + ["PUT"]
    assert registry.asked[-2][:2] == ("PUT", "/v2/some/image/manifests/1"), "the tag comes last, and is looked at"
    registry.asked.clear()
    again = await push(store, registry.reference("2"))
    assert (again.digest, again.sent_bytes) == (done.digest, 0)
    assert [asked[:2] for asked in registry.asked if asked[0] != "HEAD"] == [("PUT", "/v2/some/image/manifests/2")]


async def test_an_upload_elsewhere_gets_no_credentials(store, registry):
    registry.password, registry.scheme = "secret", "basic"
    log_in(registry.host)
    async with faulty_registry() as other:
        registry.elsewhere = f"http://{other.host}"
        with pytest.raises(SandboxImageError):  # The manifest names blobs that it does not have.
            await push(store, registry.reference("1"))
        assert other.blobs and {header for _, header in other.authorizations} == {None}


@pytest.mark.parametrize("where", ["http://example.org", "ftp://example.org", "https://["])
async def test_an_upload_that_leads_astray(store, registry, where):
    registry.elsewhere = where
    await refused(store, registry, "not_a_registry", "sends on to")


async def test_an_upload_that_leads_nowhere(store, registry):
    registry.faults[UPLOADS] = always(202)
    await refused(store, registry, "not_a_registry", "does not say where")


# -- who may ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["basic", "bearer"])
async def test_credentials(store, registry, scheme):
    registry.password, registry.scheme, registry.scope = "secret", scheme, "pull,push"
    error = await refused(store, registry, "needs_credentials", "docker login")
    assert not error.retryable
    log_in(registry.host, "wrong")
    await refused(store, registry, "denied")
    log_in(registry.host)
    await push(store, registry.reference("1"))
    assert registry.tags


async def test_a_token_for_reading_is_exchanged(store, registry):
    """A look asks for less than an upload does."""
    registry.password = "secret"
    log_in(registry.host)
    asked = []

    async def tokens(request):
        asked.append(scope := request.query["scope"])
        return web.json_response({"token": "w" if scope.endswith("push") else "r"})

    async def look(request):
        needed, wanted = ("w", "pull,push") if request.method in ("POST", "PUT") else ("r", "pull")
        said = request.headers.get("Authorization", "")
        if said in (f"Bearer {needed}", "Bearer w"):
            registry.password = None  # From here on it is an honest one.
            answer = await registry._take(request) if needed == "w" else registry._serve(request)
            registry.password = "secret"
            return answer
        challenge = f'Bearer realm="http://{registry.host}/token",scope="repository:some/image:{wanted}"'
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})

    registry.faults |= {"/token": tokens, "/v2/some": look}
    await push(store, registry.reference("1"))
    assert asked == ["repository:some/image:pull", "repository:some/image:pull,push"]


@pytest.mark.parametrize(
    ("status", "body", "reason", "words"),
    [
        (403, '{"errors": [{"code": "DENIED"}]}', "denied", "does not let you put"),
        (404, '{"errors": [{"code": "NAME_UNKNOWN"}]}', "no_such_repository", "make it there first"),
        (404, "<html>", "not_a_registry", "answers as no registry does"),
        (405, '{"errors": [{"code": "UNSUPPORTED"}]}', "push_refused", "UNSUPPORTED"),
        (413, "", "push_refused", "HTTP 413"),
    ],
)
async def test_refusals(store, registry, status, body, reason, words):
    registry.faults[UPLOADS] = always(status, body)
    await refused(store, registry, reason, words)
    assert len([path for method, path, _ in registry.asked if method == "POST"]) == 1


async def test_a_manifest_that_is_refused(store, registry):
    registry.faults["/v2/some/image/manifests"] = always(400, '{"errors": [{"code": "MANIFEST_INVALID"}]}')
    await refused(store, registry, "push_refused", "MANIFEST_INVALID")


# -- what passes -----------------------------------------------------------------------------------------------------------


def cut(count):
    """Take so many bytes of a body, then end the connection."""

    async def fault(request):
        if request.method != "PUT":
            return None
        await request.content.readexactly(count)
        request.transport.abort()
        return web.Response()

    return fault


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_failures_that_pass(store, registry, status):
    registry.faults = {PLACE: times(2, always(status)), UPLOADS: times(2, always(status))}
    await push(store, registry.reference("1"))
    assert registry.tags


async def test_failures_that_do_not_pass(store, registry):
    registry.faults[PLACE] = always(500)
    error = await refused(store, registry, "registry_failed", "HTTP 500")
    assert error.retryable
    assert len([path for method, path, _ in registry.asked if method == "PUT"]) == QUICK.attempts


async def test_a_registry_that_asks_for_patience(store, registry):
    registry.faults[PLACE] = times(1, always(429, **{"Retry-After": "1"}))
    began = asyncio.get_running_loop().time()
    await push(store, registry.reference("1"))
    assert asyncio.get_running_loop().time() - began >= 1
    registry.tags.clear()
    registry.blobs.clear()
    registry.faults[PLACE] = always(429, **{"Retry-After": "600"})
    error = await refused(store, registry, "too_many_requests")
    assert error.retry_delay_seconds == 600


async def test_a_connection_that_is_cut(store, registry):
    """What was sent is sent anew, and counted once."""
    registry.faults[PLACE] = times(2, cut(100_000))
    done = await push(store, registry.reference("1"))
    assert registry.tags and 600_000 < done.sent_bytes < 700_000
    registry.tags.clear()
    registry.blobs.clear()
    registry.faults[PLACE] = cut(1000)
    await refused(store, registry, "interrupted")


async def test_an_answer_that_is_lost(store, registry):
    """What has come is not sent again."""

    async def lost(request):
        if request.method != "PUT":
            return None
        await registry._take(request)
        request.transport.abort()
        return web.Response()

    registry.faults[PLACE] = lost
    await push(store, registry.reference("1"))
    assert len([path for method, path, _ in registry.asked if (method, path) == ("PUT", PLACE)]) == 3


async def hang(request):
    if request.method == "PUT":
        await asyncio.sleep(4)


@pytest.mark.long
async def test_who_takes_nothing_is_given_up(store, registry, tmp_path):
    image = Image(tar_of({"large": hash_stream(24_000_000)}))  # More than lies between two sockets.
    await store.pull(f"oci:{write_layout(tmp_path / 'large', {None: image})}")
    store.name(f"oci:{tmp_path}/large", "tasks/one:1")
    registry.faults[PLACE] = hang
    error = await refused(store, registry, "stalled", "taken nothing")
    assert error.retryable


async def test_who_answers_nothing_is_given_up(store, registry, monkeypatch):
    monkeypatch.setattr(registry_requests, "ANSWER_SECONDS", 0.5)
    registry.faults[PLACE] = hang
    await refused(store, registry, "stalled")


async def test_another_image_behind_the_tag(store, registry):
    """Somebody who pushes at the same time, or a registry that forgets."""
    registry.faults["/v2/some/image/manifests/1"] = always(201)
    await refused(store, registry, "push_refused", "HTTP 201")


@pytest.mark.parametrize(
    "text", ["oci:/x", "docker-archive:/x:y", "x@sha256:" + "a" * 64, "a" * 12, "sn-" + "a" * 26, "a//b", "", "aviato.build/x"]
)
async def test_no_place_in_a_registry(store, text):
    with pytest.raises(SandboxImageError) as caught:
        await push(store, text)
    assert caught.value.reason == "bad_reference"
    assert parse_destination("x/y").name == "docker.io/x/y:latest"
