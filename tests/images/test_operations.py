"""Images as users have them: pulled, joined, listed and removed by a real server, with a real registry on loopback."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, ImageInfo, SandboxImageError, Session
from aviato.server.backends.local import binary
from tests.conftest import RunningServer, make_state_dir, remove, start_server
from tests.images.faulty_registry import FaultyRegistry, faulty_registry
from tests.images.layouts import Image, tar_of
from tests.images.whole_images import make_layout
from tests.images.whole_images import tar_of as tar_with_modes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One with an image store of its own, also over TCP for two tenants."""
    directory = make_state_dir()
    (directory / "keys").write_text("the-key\nanother-key\n")
    running = start_server(directory, port=0, api_key_file=directory / "keys")
    try:
        yield running
    finally:
        running.stop()
        remove(directory)


@pytest.fixture
def url(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    return server.url


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """An image with one program and nothing else."""
    program = (0o755, 0, 0, Path(binary.found()).read_bytes())
    config = {"Env": ["WHERE=image"], "WorkingDir": "/data", "Entrypoint": ["/program"], "Labels": {"made": tmp_path.name}}
    return make_layout(tmp_path / "layout", [tar_with_modes({"program": program, "data/": b""})], config)


def small(tmp_path: Path, name: str) -> str:
    """A reference to an image that nobody has seen."""
    layout = make_layout(
        tmp_path / name, [tar_of({"x": f"{tmp_path} {name}".encode()})], {"Labels": {"name": str(tmp_path / name)}}
    )
    return f"oci:{layout}"


def gate(registry: FaultyRegistry, part: str = "/v2/some/image/blobs/") -> asyncio.Event:
    """Blobs wait until it is set."""
    opened = asyncio.Event()

    async def wait(_: Any) -> None:
        await opened.wait()

    registry.faults[part] = wait
    return opened


class OverUnix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("server")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def asked(server: RunningServer, method: str, path: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
    """One request of the HTTP API; with a key as its tenant."""
    over = (
        OverUnix(server.url.removeprefix("unix://")) if key is None else http.client.HTTPConnection("127.0.0.1", server.port())
    )
    try:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        over.request(method, path, None if body is None else json.dumps(body), headers)
        response = over.getresponse()
        return response.status, json.loads(response.read())
    finally:
        over.close()


async def pulled(server: RunningServer, reference: str, seconds: float = 30.0, **fields: Any) -> dict[str, Any]:
    path = f"/v1/images/pull?timeout_seconds={seconds}"
    status, answer = await asyncio.to_thread(asked, server, "POST", path, {"reference": reference, **fields})
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


async def test_a_pull_is_joined_and_asked_for_again(server: RunningServer) -> None:
    async with faulty_registry() as registry:
        image = Image(tar_of({"a": b"x" * 5000}), tar_of({"b": b"y" * 7000}))
        reference = registry.add("joined", image)
        opened = gate(registry)
        answers = await asyncio.gather(*(pulled(server, reference, 0.5) for _ in range(3)))
        assert [answer["status"] for answer in answers] == ["pulling"] * 3
        assert answers[0]["phase"] == "resolving" and answers[0]["done_bytes"] == 0
        _, listed = await asyncio.to_thread(asked, server, "GET", "/v1/images")
        assert listed["images"][0]["status"] == "pulling" and listed["images"][0]["reference"] == reference
        opened.set()
        answers = await asyncio.gather(*(pulled(server, reference) for _ in range(3)))
        assert {answer["image_id"] for answer in answers} == {image.image_id}
        assert registry.count("manifests") == 1
        assert answers[0]["layers"] == answers[0]["layers_done"] == 2 and answers[0]["size_bytes"] >= 12000
        assert answers[0]["command"] == ["sh"] and answers[0]["environment"] == {"PATH": "/bin"}
        assert (await pulled(server, reference))["pull_seconds"] is None, "it is here"


async def test_a_pull_goes_on_though_nobody_waits(server: RunningServer) -> None:
    async with faulty_registry() as registry:
        reference = registry.add("alone", Image(tar_of({"alone": b"x"})))
        opened = gate(registry)
        assert (await pulled(server, reference, 0))["status"] == "pulling"
        opened.set()
        for _ in range(200):
            _, listed = await asyncio.to_thread(asked, server, "GET", "/v1/images")
            found = next(info for info in listed["images"] if reference in (info["reference"], *info["names"]))
            if found["status"] == "here":
                break
            await asyncio.sleep(0.05)
        assert found["status"] == "here"


async def test_a_failure_is_remembered_for_a_moment(server: RunningServer) -> None:
    async with faulty_registry() as registry:
        reference = registry.reference("later")
        failed = await pulled(server, reference)
        assert failed["status"] == "failed" and failed["reason"] == "unknown_tag" and "later" in failed["message"]
        assert failed["is_infrastructure"] is True
        count = registry.count("manifests")
        registry.add("later", Image(tar_of({"later": b"x"})))
        assert (await pulled(server, reference))["message"] == failed["message"]
        assert registry.count("manifests") == count, "many who want it do not ask the registry each"
        began = time.monotonic()
        while (await pulled(server, reference))["status"] == "failed":
            assert time.monotonic() - began < 10
            await asyncio.sleep(0.2)


async def test_a_refresh_asks_the_registry(server: RunningServer) -> None:
    async with faulty_registry() as registry:
        old, new = Image(tar_of({"v": b"old"})), Image(tar_of({"v": b"new"}))
        reference = registry.add("moving", old)
        assert (await pulled(server, reference))["image_id"] == old.image_id
        registry.add("moving", new)
        assert (await pulled(server, reference))["image_id"] == old.image_id
        opened = gate(registry)
        assert (await pulled(server, reference, 0.2, refresh=True))["status"] == "pulling"
        opened.set()
        await asyncio.sleep(0.5)
        count = registry.count("manifests")
        again = await pulled(server, reference, refresh=True)
        assert again["image_id"] == new.image_id and again["pull_seconds"] is not None
        assert registry.count("manifests") == count, "it is told what came of the one that it has begun"
        registry.add("moving", old)
        assert (await pulled(server, reference, refresh=True))["image_id"] == old.image_id, "and the next one asks again"
        by_id = await pulled(server, old.image_id[:20], refresh=True)
        assert by_id["image_id"] == old.image_id and by_id["pull_seconds"] is None


async def test_a_server_that_comes_next_goes_on(tmp_path: Path) -> None:
    directory = make_state_dir()
    running = start_server(directory)
    try:
        async with faulty_registry() as registry, AsyncClient(base_url=running.url) as client:
            image = Image(tar_of({"first": b"1" * 100_000}), tar_of({"second": b"2" * 100_000}))
            reference = registry.add("restart", image)
            second = image.document["layers"][1]["digest"]
            opened = gate(registry, f"/v2/some/image/blobs/{second}")
            fetching = asyncio.create_task(client.prefetch([reference]))
            while not any(second in path for _, path, _ in registry.asked):
                await asyncio.sleep(0.02)
            await asyncio.to_thread(running.stop, signal.SIGTERM)
            del registry.faults[f"/v2/some/image/blobs/{second}"]
            opened.set()
            await asyncio.to_thread(running.restart)
            (info,) = await asyncio.wait_for(fetching, 30)
            assert info.status == "here" and info.image_id == image.image_id
    finally:
        running.stop()
        remove(directory)


async def test_what_is_no_image_of_a_registry(server: RunningServer, tmp_path: Path) -> None:
    assert (await pulled(server, "host"))["status"] == "here"
    assert (await pulled(server, "host"))["image_id"] is None
    for wrong, reason in (("dir:nothing", "image"), ("Upper", "bad_reference"), ("oci:here", "bad_reference")):
        status, answer = await asyncio.to_thread(asked, server, "POST", "/v1/images/pull", {"reference": wrong})
        assert status == 422 and answer["error"]["reason"] == reason, answer
    status, _ = await asyncio.to_thread(asked, server, "POST", "/v1/images/pull", {"reference": ""})
    assert status == 400
    status, answer = await asyncio.to_thread(asked, server, "GET", "/v1/images/inspect?reference=not/here")
    assert status == 422 and answer["error"]["reason"] == "image_not_here"
    failed = await pulled(server, f"oci:{tmp_path}/nothing")
    assert failed["status"] == "failed" and failed["reason"] == "no_such_file"


async def test_what_tenants_may(server: RunningServer, tmp_path: Path) -> None:
    reference = small(tmp_path, "tenants")
    async with faulty_registry() as registry:
        wanted = registry.add("tenants", Image(tar_of({"t": b"x"})))
        for name in (wanted, reference, f"docker-archive:{tmp_path}/x"):
            status, answer = asked(server, "POST", "/v1/images/pull", {"reference": name}, "the-key")
            assert status == 422 and answer["error"]["reason"] == "image_not_here", answer
            assert "operator" in answer["error"]["message"]
        assert not registry.asked, "no host is reached because a tenant has named it"
        await pulled(server, wanted)
        asked_before = len(registry.asked)
        for refresh in (False, True):
            status, answer = await asyncio.to_thread(
                asked, server, "POST", "/v1/images/pull", {"reference": wanted, "refresh": refresh}, "the-key"
            )
            assert status == 200 and answer["status"] == "here"
        assert len(registry.asked) == asked_before
    _, listed = asked(server, "GET", "/v1/images", None, "another-key")
    assert wanted in [name for info in listed["images"] for name in info["names"]]
    assert asked(server, "GET", f"/v1/images/inspect?reference={wanted}", None, "the-key")[0] == 200
    for path, body in (
        ("remove", {"reference": wanted}),
        ("prune", {}),
        ("pin", {"reference": wanted}),
        ("pull", {"reference": wanted, "name": "mine:1"}),
    ):
        status, answer = asked(server, "POST", f"/v1/images/{path}", body, "the-key")
        assert status == 422 and answer["error"]["reason"] == "not_allowed", answer
    assert asked(server, "GET", f"/v1/images/inspect?reference={wanted}", None, "the-key")[1]["pinned"] is False
    status, answer = asked(server, "GET", "/v1/images", None, "no-key")
    assert status == 401


async def awaited(session: Session, image: str) -> list[ImageInfo]:
    return await session.prefetch([image])


def test_a_dataset_s_column_is_there_before_its_sandboxes(url: str, layout: Path, tmp_path: Path) -> None:
    image, other = f"oci:{layout}", small(tmp_path, "other")
    column = [image, other, image, "host", f"oci:{tmp_path}/nothing"]
    with Session() as session:
        here, second, host, failed = session.prefetch(column).result()
        assert [info.reference for info in (here, second, host, failed)] == [image, other, "host", f"oci:{tmp_path}/nothing"]
        assert isinstance(here, ImageInfo) and here.status == "here" and here.working_dir == "/data"
        assert here.pull_seconds is not None and here.labels == {"made": tmp_path.name}
        assert failed.status == "failed" and failed.reason == "no_such_file" and "nothing" in str(failed.message)
        assert asyncio.run(awaited(session, image))[0].pull_seconds is None
        metrics = session.get_metrics()
        assert metrics["aviato/image_pulls"] == 2 and metrics["aviato/image_cache_hits"] == 2
        assert metrics["aviato/image_pull_failures"] == 1
        assert metrics["aviato/max_image_pull_seconds"] >= metrics["aviato/avg_image_pull_seconds"] > 0
        ran = session.sandbox(container_image=image).exec(["/program", "--version"]).result(60)
        assert ran.returncode == 0 and ran.stdout.startswith("aviato-init ")


def test_when_none_can_be_had_it_is_an_error(url: str, tmp_path: Path) -> None:
    wanted = [f"oci:{tmp_path}/one", f"oci:{tmp_path}/two"]
    with Session() as session:
        with pytest.raises(SandboxImageError, match=r"one.*; 1 more could not be had either") as raised:
            session.prefetch(wanted).result()
        assert raised.value.reason == "no_such_file" and raised.value.is_infrastructure
        assert session.prefetch([]).result() == []
        with pytest.raises(TypeError, match="not one string"):
            session.prefetch("debian")
        with pytest.raises(TypeError, match="must be strings"):
            session.prefetch([None])  # type: ignore[list-item]
    with pytest.raises(aviato.AviatoValidationError, match="closed"):
        session.prefetch(wanted)


async def test_an_async_client_has_them_all(url: str, layout: Path, tmp_path: Path) -> None:
    told: list[ImageInfo] = []
    async with AsyncClient() as client:
        first, missing = await client.prefetch([f"oci:{layout}", f"oci:{tmp_path}/no"], on_progress=told.append)
        assert (first.status, missing.status) == ("here", "failed")
        assert {info.reference for info in told if info.status != "pulling"} == {first.reference, missing.reference}
        named = await client.import_image(layout, name="mine:1")
        assert named.image_id == first.image_id and named.reference == "mine:1"
        assert set(named.names) == {f"oci:{layout}", "docker.io/library/mine:1"}
        assert first.image_id in [info.image_id for info in await client.images()]
        assert (await client.inspect_image(str(first.image_id)[:20])).image_id == first.image_id
        assert (await client.pin_image("mine:1")).pinned
        await client.prune_images()
        assert (await client.inspect_image("mine:1")).pinned
        sandbox = await client.sandbox(container_image="mine:1")
        assert not (await client.pin_image("mine:1", pinned=False)).pinned
        await client.prune_images()
        with pytest.raises(SandboxImageError, match="in use") as refused:
            await client.remove_image(str(first.image_id))
        assert refused.value.reason == "image_in_use"
        await sandbox.stop()
        assert await client.remove_image("mine:1") == ["docker.io/library/mine:1"]
        assert await client.remove_image(f"oci:{layout}") == [f"oci:{layout}"]
        with pytest.raises(SandboxImageError) as gone:
            await client.inspect_image("mine:1")
        assert gone.value.reason == "image_not_here"
        other = small(tmp_path, "pruned")
        await client.prefetch([other])
        assert await client.prune_images(unused_seconds=3600) == 0
        assert await client.prune_images() > 0
        assert other not in [info.reference for info in await client.images()]
        with pytest.raises(SandboxImageError, match="no name"):
            await client.import_image(layout, name="oci:/x")


async def test_the_settings_of_images_are_kept(tmp_path: Path) -> None:
    directory = make_state_dir()
    async with faulty_registry() as registry:
        image = Image(tar_of({"mirrored": b"x" * 2000}))
        registry.add("there", image)
        mirror = f"docker.io=http://{registry.host}"
        running = await asyncio.to_thread(start_server, directory, image_cache_bytes=1, registry_mirror=mirror)
        try:
            async with AsyncClient(base_url=running.url) as client:
                (first,) = await client.prefetch(["some/image:there"])
                assert first.image_id == image.image_id and registry.asked
                await client.prefetch([small(tmp_path, "newer")])
                assert [info.labels for info in await client.images()] == [{"name": str(tmp_path / "newer")}]
        finally:
            running.stop()
            remove(directory)


def test_an_image_is_shown_short() -> None:
    info = ImageInfo(reference="debian:12", status="failed", message="it is not there", reason="unknown_tag")
    assert repr(info) == ("ImageInfo(reference='debian:12', status='failed', message='it is not there', reason='unknown_tag')")
