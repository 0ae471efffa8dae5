"""Pulls from a registry that fails in every way: what is gone on with, what is given up, and in which words."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import socket
import time
from dataclasses import replace
from email.utils import formatdate
from functools import cache
from pathlib import Path

import pytest
from aiohttp import web

from aviato.exceptions import SandboxImageError
from aviato.server.images.oci_reference import parse_oci_reference
from aviato.server.images.patience import Patience
from aviato.server.images.registry import Registry
from aviato.server.images.registry_credentials import find_credentials
from aviato.server.images.registry_requests import RegistryRequests
from aviato.server.images.registry_tokens import read_challenges
from aviato.server.images.store import ImageStore
from tests.images.faulty_registry import always, cut_after, faulty_registry, times
from tests.images.layouts import INDEX, Image, digest_of, part_of, tar_of, unpack_by_tarfile

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nobody")]
QUICK = Patience(connect_seconds=2, stall_seconds=0.4, attempts=3, backoff_seconds=0.01, most_wait_seconds=2)
IMAGE = "/v2/some/image/"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def registry():
    async with faulty_registry() as running:
        yield running


@pytest.fixture
def store(tmp_path):
    return ImageStore(tmp_path / "store", unpack_by_tarfile, patience=QUICK)


@cache
def image(size=300_000):
    # Bytes that do not compress, so that a layer's blob is as large as it.
    return Image(tar_of({"bin/sh": b"#!", "data": bytes(hash_stream(size))}))


def hash_stream(size):
    return hashlib.shake_128(b"seed").digest(size)


async def refused(store, reference, reason):
    with pytest.raises(SandboxImageError) as caught:
        await store.pull(reference)
    assert caught.value.reason == reason, caught.value
    assert caught.value.is_infrastructure
    left = [path for path in (store._directory).glob("*/*") if path.suffix != ".part" and path.parent.name != "uses"]
    assert left == [] and store.list() == []
    return caught.value


async def test_a_pull(store, registry):
    reference = registry.add("v1", made := image())
    seen = []
    found = await store.pull(reference, on_progress=seen.append)
    assert found.image_id == made.image_id and found.names == (reference,) and found.config.command == ("sh",)
    assert (Path(found.layers[0]) / "bin/sh").read_text() == "#!"
    assert seen[0].phase == "resolving" and seen[-1].phase == "done"
    assert seen[-1].done_bytes == seen[-1].total_bytes == len(made.layers[0]) and seen[-1].layers_done == 1
    before = len(registry.asked)
    digest = f"{registry.host}/some/image@{made.manifest}"
    for again in (reference, digest, f"other.example/x@{made.manifest}", made.image_id, made.image_id[7:19]):
        assert await store.pull(again) == found
    assert len(registry.asked) == before


async def test_an_index(store, registry):
    made = image()
    other = Image(tar_of({"x": b""}), platform={"os": "linux", "architecture": "s390x"})
    own = json.loads(made.blobs[made.image_id])
    entries = [
        other.entry(platform={"os": "linux", "architecture": "s390x"}),
        made.entry(platform={"os": "linux", "architecture": own["architecture"]}),
    ]
    index = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
    registry.add("v1", made)
    registry.tags["v1"] = digest_of(index)
    registry.blobs |= {digest_of(index): index, **other.blobs}
    registry.kinds[digest_of(index)] = INDEX
    found = await store.pull(registry.reference("v1"))
    assert found.image_id == made.image_id
    for digest in (digest_of(index), made.manifest):
        assert store.find(f"{registry.host}/some/image@{digest}") == found
    registry.add("other", other)
    await store.remove(found.image_id)
    error = await refused(store, registry.reference("other"), "wrong_platform")
    assert "linux/s390x" in str(error)


async def test_a_tag_that_moves(store, registry):
    reference = registry.add("v1", first := image())
    await store.pull(reference)
    asked = len(registry.asked)
    assert (await store.pull(reference, refresh=True)).image_id == first.image_id
    assert [method for method, *_ in registry.asked[asked:]][-1] == "HEAD"
    registry.add("v1", second := Image(tar_of({"new": b""})))
    assert (await store.pull(reference)).image_id == first.image_id
    found = await store.pull(reference, refresh=True)
    assert found.image_id == second.image_id and found.names == (reference,)
    assert store.find(first.image_id).names == ()
    registry.faults[IMAGE] = always(500)
    with pytest.raises(SandboxImageError) as caught:
        await store.pull(reference, refresh=True)
    assert caught.value.reason == "registry_failed" and caught.value.retryable
    assert store.find(reference) == found


# -- what is not there


async def test_what_is_not_there(store, registry):
    registry.add("v1", image())
    error = await refused(store, registry.reference("v2"), "unknown_tag")
    assert "there are 'v1'" in str(error) and not error.retryable
    await refused(store, f"{registry.host}/other", "unknown_name")
    await refused(store, f"127.0.0.1:{unused_port()}/x", "registry_unreachable")
    await refused(store, "registry.invalid/x", "registry_unreachable")


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("body", ["<html>hello</html>", "hello", "", "[]"])
@pytest.mark.parametrize("status", [200, 404, 400])
async def test_somebody_who_is_no_registry(store, registry, body, status):
    registry.faults["/v2/"] = always(status, body, "text/html")
    await refused(store, registry.reference("v1"), "not_a_registry")


async def test_manifests_that_are_wrong(store, registry):
    reference = registry.add("v1", made := image())
    for body, reason in (
        ('{"schemaVersion": 1}', "unsupported_manifest"),
        ("{", "bad_manifest"),
        ('{"x":"' + "x" * (4 << 20) + '"}', "manifest_too_large"),
    ):
        registry.faults = {IMAGE + "manifests": always(200, body)}
        await refused(store, reference, reason)
    registry.faults = {IMAGE + "manifests": always(200, made.raw.decode() + " ")}
    await refused(store, f"{registry.host}/some/image@{made.manifest}", "wrong_digest")
    registry.faults = {IMAGE + f"blobs/{made.image_id}": always(200, "{}")}
    await refused(store, reference, "wrong_digest")


# -- patience


async def test_what_passes_is_waited_for(store, registry):
    reference = registry.add("v1", image())
    registry.faults = {
        IMAGE + "manifests": times(2, always(503, **{"Retry-After": "0"})),
        IMAGE + "blobs": times(2, always(429, **{"Retry-After": formatdate(time.time() - 5, usegmt=True)})),
    }
    assert await store.pull(reference)


@pytest.mark.parametrize(("status", "reason"), [(429, "too_many_requests"), (500, "registry_failed"), (503, "registry_failed")])
@pytest.mark.parametrize("what", ["manifests", "blobs"])
async def test_what_does_not_pass_is_given_up(store, registry, status, reason, what):
    reference = registry.add("v1", image())
    registry.faults = {IMAGE + what: always(status)}
    error = await refused(store, reference, reason)
    assert error.retryable and registry.count(f"/{what}/") <= QUICK.attempts**2


async def test_a_wait_that_is_too_long_is_for_the_caller(store, registry):
    reference = registry.add("v1", image())
    registry.faults = {IMAGE: always(429, **{"Retry-After": "3600"})}
    began = time.monotonic()
    error = await refused(store, reference, "too_many_requests")
    assert error.retry_delay_seconds == 3600 and time.monotonic() - began < 2


async def test_a_stall(store, registry):
    reference = registry.add("v1", made := image())
    registry.faults = {IMAGE + f"blobs/{digest_of(made.layers[0])}": cut_after(registry, 0, hang=True)}
    assert (await refused(store, reference, "stalled")).retryable


async def test_a_download_that_is_cut_goes_on(store, registry):
    reference = registry.add("v1", made := image(2_000_000))
    blob = IMAGE + f"blobs/{digest_of(made.layers[0])}"
    registry.faults = {blob: times(2, cut_after(registry, 700_000))}
    await store.pull(reference)
    asked = [one for one in registry.ranges() if one]
    assert len(asked) == 2 and all(0 < int(one[6:-1]) <= 1_400_000 for one in asked)


async def test_a_registry_that_sends_next_to_nothing_holds_up_no_other(tmp_path, registry):
    """Whoever has an image may name any layer in it, and send a byte now and then for ever."""
    store = ImageStore(tmp_path / "store", unpack_by_tarfile, patience=replace(QUICK, stall_seconds=60))
    made = image()
    blob = IMAGE + f"blobs/{digest_of(made.layers[0])}"
    registry.faults = {blob: cut_after(registry, 10, hang=True)}
    slow = asyncio.create_task(store.pull(registry.add("v1", made)))
    while not registry.count("/blobs/sha256:" + blob[-64:]):
        await asyncio.sleep(0.01)
    async with faulty_registry() as other:
        async with asyncio.timeout(60):
            pulled = await store.pull(other.add("v1", made))
        assert pulled.image_id == made.image_id and not slow.done()
    slow.cancel()
    await asyncio.wait((slow,))


async def test_the_next_pull_goes_on_with_what_was_given_up(store, registry):
    reference = registry.add("v1", made := image())
    blob = IMAGE + f"blobs/{digest_of(made.layers[0])}"
    registry.faults = {blob: _one_then(cut_after(registry, 100_000), always(500))}
    await refused(store, reference, "registry_failed")
    (part,) = (store._directory / "blobs").glob("*.part")
    assert part.stat().st_size == 100_000
    registry.faults = {}
    registry.asked.clear()
    await store.pull(reference)
    assert "bytes=100000-" in registry.ranges() and not part.exists()


def _one_then(first, then):
    faults = [first]

    async def fault(request):
        return await (faults.pop() if faults else then)(request)

    return fault


async def test_a_download_that_was_damaged_meanwhile_begins_anew(store, registry):
    reference = registry.add("v1", made := image())
    part = part_of(store, reference, digest_of(made.layers[0]))
    part.write_bytes(b"x" * 1000)
    await store.pull(reference)
    assert "bytes=1000-" in registry.ranges()
    await store.remove(reference)
    part.write_bytes(b"x" * 10_000_000)
    assert await store.pull(reference)


async def test_a_registry_that_knows_no_ranges(store, registry):
    reference = registry.add("v1", made := image())
    blob = digest_of(made.layers[0])
    part_of(store, reference, blob).write_bytes(made.layers[0][:777])

    async def whole(_):
        return web.Response(body=made.layers[0])

    registry.faults = {IMAGE + f"blobs/{blob}": whole}
    assert await store.pull(reference)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-5], "truncated_layer"),
        (lambda data: data + b"x", "oversized_layer"),
        (lambda data: data[:-1] + b"x", "wrong_digest"),
    ],
)
async def test_layers_of_other_bytes(store, registry, change, reason):
    reference = registry.add("v1", made := image())
    registry.blobs[digest_of(made.layers[0])] = change(made.layers[0])
    await refused(store, reference, reason)
    assert not any(path.stat().st_size for path in (store._directory / "blobs").iterdir())


# -- where requests go


async def test_redirects_take_no_password_along(store, registry):
    reference = registry.add("v1", made := image())
    registry.password = "secret"
    write_auth(registry.host, "user", "secret")
    blob = IMAGE + f"blobs/{digest_of(made.layers[0])}"
    async with faulty_registry() as elsewhere:
        elsewhere.blobs = registry.blobs
        for status in (302, 307):
            where = f"http://{elsewhere.host}{blob}?X-Sig=a%2Bb%20c"
            registry.faults = {blob: always(status, Location=where)}
            await store.pull(reference)
            await store.remove(reference)
    assert [one for one, said in elsewhere.authorizations if said] == [] and len(elsewhere.authorizations) == 2
    registry.faults = {blob: always(302, Location=blob)}
    assert "again and again" in str(await refused(store, reference, "not_a_registry"))
    for where in ("http://a.example/x", "ftp://a.example/x", "//", "http://[", "file:///etc/passwd"):
        registry.faults = {blob: always(302, Location=where)}
        await refused(store, reference, "not_a_registry")


async def test_mirrors_come_first_and_may_fail(tmp_path, registry):
    made = image()
    async with faulty_registry() as mirror:
        registry.add("v1", made)
        mirror.add("v1", made)
        store = ImageStore(
            tmp_path / "store", unpack_by_tarfile, patience=QUICK, mirrors={registry.host: (f"http://{mirror.host}/",)}
        )
        await store.pull(registry.reference("v1"))
        assert registry.asked == [] and mirror.count("/blobs/") == 2
        await store.remove(registry.reference("v1"))
        mirror.faults = {IMAGE + "blobs": cut_after(mirror, 200)}
        await store.pull(registry.reference("v1"))
        assert registry.count("/blobs/") and not registry.count("/manifests/")
        await store.remove(registry.reference("v1"))
        mirror.faults = {"/": always(404, "nothing", "text/plain")}
        assert await store.pull(registry.reference("v1"))
    for wrong in ("http://mirror.example", "", "ftp://x"):
        with pytest.raises(SandboxImageError):
            Registry(parse_oci_reference("a.example/b"), mirrors={"a.example": (wrong,)}, patience=QUICK)


async def test_a_proxy_is_asked(store, registry, monkeypatch):
    reference = registry.add("v1", image())
    async with faulty_registry() as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy.host}")
        proxy.blobs, proxy.tags = registry.blobs, registry.tags
        monkeypatch.setenv("no_proxy", "elsewhere.example")
        await store.pull(reference)
        assert proxy.asked and len(registry.asked) == 0


# -- who asks


def write_auth(host, user, password, path=None):
    path = path or Path.home() / ".docker/config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": auth}}}))


@pytest.mark.parametrize("scheme", ["basic", "bearer"])
async def test_credentials(store, registry, scheme):
    reference = registry.add("v1", image())
    registry.password, registry.scheme = "secret", scheme
    error = await refused(store, reference, "needs_credentials")
    assert f"docker login {registry.host}" in str(error)
    write_auth(registry.host, "user", "wrong")
    await refused(store, reference, "denied")
    write_auth(registry.host, "user", "secret")
    assert await store.pull(reference)
    assert "secret" not in str(registry.asked)
    tokens = [path for path, _ in registry.authorizations if path == "/token"]
    assert len(tokens) <= 3


async def test_a_token_server_goes_by_https(store, registry):
    reference = registry.add("v1", image())
    header = 'Bearer realm="http://tokens.example/t"'
    registry.faults = {"/v2/": always(401, **{"WWW-Authenticate": header})}
    write_auth(registry.host, "user", "secret")
    assert "no https:" in str(await refused(store, reference, "not_a_registry"))


@pytest.mark.parametrize(
    "realm", ["https://tokens.example:99999/t", "http://127.0.0.1:99999/t", "https://[::1/t", "https:///t", "x"]
)
async def test_a_token_server_that_is_nowhere(store, registry, realm):
    reference = registry.add("v1", image())
    registry.faults = {"/v2/": always(401, **{"WWW-Authenticate": f'Bearer realm="{realm}"'})}
    await refused(store, reference, "not_a_registry")


async def test_a_registry_elsewhere_has_nothing_of_this_machine_asked(registry):
    """Neither by a redirect nor as its token server: what listens on loopback trusts whoever reaches it."""
    requests = RegistryRequests("https://registry.example", "registry.example", no_tokens, QUICK)
    for url in (f"http://{registry.host}/token", f"https://{registry.host}/token"):
        with pytest.raises(SandboxImageError) as caught:
            await requests.ask_for_token(url, query={"scope": "x"}, form=None, login="Basic eDp5")
        assert caught.value.reason == "not_a_registry"
    await requests.close()
    assert registry.asked == []


async def no_tokens(requests):
    raise AssertionError("nothing is asked of the registry itself")


async def test_token_servers_that_fail(store, registry):
    reference = registry.add("v1", image())
    registry.password = "secret"
    write_auth(registry.host, "user", "secret")
    for body, reason in (("<html>", "bad_manifest"), ('{"token": "a\\nb"}', "not_a_registry"), ("{}", "not_a_registry")):
        registry.faults = {"/token": always(200, body)}
        await refused(store, reference, reason)
    registry.faults = {"/token": always(500)}
    await refused(store, reference, "registry_failed")
    registry.faults = {"/token": always(429, **{"Retry-After": "3600"})}
    error = await refused(store, reference, "too_many_requests")
    assert error.retryable and error.retry_delay_seconds == 3600
    registry.faults = {"/token": times(2, always(503, **{"Retry-After": "0"}))}
    assert await store.pull(reference)


async def test_somebody_who_may_not(store, registry):
    reference = registry.add("v1", image())
    registry.faults = {IMAGE: always(403, '{"errors": [{"code": "DENIED"}]}')}
    await refused(store, reference, "denied")


async def test_where_credentials_are(tmp_path, monkeypatch):
    home = Path.home()
    write_auth("a.example", "docker", "p", home / ".docker/config.json")
    assert (await find_credentials("a.example", "x")).username == "docker"
    assert await find_credentials("b.example", "x") is None
    write_auth("https://a.example/v1/", "podman", "p:q", home / ".config/containers/auth.json")
    found = await find_credentials("a.example", "x")
    assert (found.username, found.password) == ("podman", "p:q") and "p:q" not in repr(found)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    write_auth("a.example/some", "part", "p", tmp_path / "run/containers/auth.json")
    assert (await find_credentials("a.example", "some/image")).username == "part"
    assert (await find_credentials("a.example", "other/image")).username == "podman"
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    write_auth("a.example", "configured", "p", tmp_path / "docker/config.json")
    assert (await find_credentials("a.example", "some/image")).username == "configured"
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "auth.json"))
    write_auth("a.example", "file", "p", tmp_path / "auth.json")
    assert (await find_credentials("a.example", "some/image")).username == "file"
    for broken in ("", "[]", "{", '{"auths": 3}', '{"auths": {"a.example": {"auth": "é"}}}', '{"auths": {"a.example": 3}}'):
        (tmp_path / "auth.json").write_text(broken)
        assert (await find_credentials("a.example", "some/image")).username == "configured"


async def test_the_names_of_docker_hub():
    write_auth("https://index.docker.io/v1/", "hub", "p")
    assert (await find_credentials("docker.io", "library/x")).username == "hub"


async def test_credential_helpers(tmp_path, monkeypatch, caplog):
    folder = tmp_path / "bin"
    folder.mkdir()
    script = '#!/bin/sh\nread -r server\n[ "$1 $server" = "get a.example" ] || { echo credentials not found; exit 1; }\n'
    for name, answer in (
        ("one", '{"Username":"u","Secret":"s"}'),
        ("two", '{"Username":"<token>","Secret":"t"}'),
        ("bad", "x"),
    ):
        (folder / f"docker-credential-{name}").write_text(f"{script}echo '{answer}'\n")
        (folder / f"docker-credential-{name}").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    config = Path.home() / ".docker/config.json"
    config.parent.mkdir()
    config.write_text('{"credHelpers": {"a.example": "one"}}')
    found = await find_credentials("a.example", "x")
    assert (found.username, found.password) == ("u", "s")
    config.write_text('{"credsStore": "two", "auths": {"a.example": {}}}')
    assert (await find_credentials("a.example", "x")).identity_token == "t"
    assert await find_credentials("b.example", "x") is None and not caplog.records
    for broken in ("bad", "missing", "../x", ""):
        config.write_text(json.dumps({"credsStore": broken}))
        assert await find_credentials("a.example", "x") is None


def test_challenges():
    found = read_challenges(['Basic realm="a, b", Bearer realm="https://t",service=s,scope="x:y\\"z" ', "Negotiate", "", "=,"])
    assert [(one.scheme, one.parameters) for one in found] == [
        ("basic", {"realm": "a, b"}),
        ("bearer", {"realm": "https://t", "service": "s", "scope": 'x:y"z'}),
        ("negotiate", {}),
    ]


async def test_a_pull_that_nobody_waits_for_ends(store, registry):
    reference = registry.add("v1", made := image())
    registry.faults = {IMAGE + f"blobs/{digest_of(made.layers[0])}": cut_after(registry, 10, hang=True)}
    first, second = (asyncio.create_task(store.pull(reference)) for _ in range(2))
    while registry.count("/blobs/") < 2:
        await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled() and not second.done() and store._pulls._running
    second.cancel()
    await asyncio.wait({second})
    assert second.cancelled() and not store._pulls._running
    assert registry.count("/manifests/") == 1
    registry.faults = {}
    assert await store.pull(reference)
