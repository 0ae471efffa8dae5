"""Images of a server: pulled, listed, removed, pruned and pinned, end to end, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import aviato
import aviato.building.build as building
from aviato import AsyncClient, AviatoAuthenticationError, AviatoValidationError, Sandbox, SandboxImageError, Session
from aviato.core import snapshots
from aviato.core.lifecycle import SandboxHandle
from aviato.server.service.images import REMEMBERED_SECONDS
from aviato.wire.ids import new_snapshot_id
from tests.conftest import make_state_dir, remove, start_server
from tests.images.faulty_registry import faulty_registry
from tests.images.layouts import Image
from tests.images.layouts import tar_of as packed
from tests.images.programs import one_program
from tests.images.slow_registry import SlowRegistry
from tests.images.whole_images import ARCHITECTURE, make_layout, tar_of

CONFIG = {
    "Env": ["WHERE=image"],
    "WorkingDir": "/work",
    "User": "0",
    "Entrypoint": ["/program"],
    "Cmd": ["--version"],
    "Labels": {"l": "m"},
}


@pytest.fixture(scope="module")
def server(own_server: Any) -> Any:
    return own_server


@pytest.fixture(autouse=True)
def _url(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)


@pytest.fixture
def layout(tmp_path: Path) -> str:
    """An image of its own, with one program."""
    return one_program(tmp_path / "image", {"work/": b"", "name": str(tmp_path).encode()}, CONFIG)


def of(work: Any) -> Any:
    """What comes of work with a client."""

    async def main() -> Any:
        async with AsyncClient() as client:
            return await work(client)

    return asyncio.run(main())


def test_from_a_pull_to_a_removal(layout: str) -> None:
    async def work(client: AsyncClient) -> None:
        heard: list[aviato.ImageInfo] = []
        info = await client.pull_image(layout, on_progress=heard.append)
        assert heard[-1] == info and info.status == "here"
        assert info.reference == layout and info.names == (layout,) and str(info.image_id).startswith("sha256:")
        assert (info.layers, info.architecture, info.pinned) == (1, ARCHITECTURE, False)
        assert (info.working_dir, info.user, info.environment) == ("/work", "0", {"WHERE": "image"})
        assert (info.entrypoint, info.command, info.labels) == (("/program",), ("--version",), {"l": "m"})
        assert info.pull_seconds is not None and (await client.pull_image(layout)).pull_seconds is None
        assert info.size_bytes > 100_000 and info.pulled_at and info.used_at and info.layers_done == info.layers_total == 1
        assert layout in [one.reference for one in await client.images()]
        found = await client.inspect_image(str(info.image_id)[7:27])
        assert (found.image_id, found.names) == (info.image_id, info.names)
        assert await client.remove_image(layout) == [layout]
        with pytest.raises(SandboxImageError, match="aviato image ls") as caught:
            await client.inspect_image(layout)
        assert caught.value.reason == "image_not_here" and caught.value.is_infrastructure
        with pytest.raises(SandboxImageError) as caught:
            await client.remove_image(layout)
        assert caught.value.reason == "image_not_here"

    of(work)


def test_what_sandboxes_have_stays(layout: str) -> None:
    async def work(client: AsyncClient) -> None:
        async with await client.sandbox(container_image=layout) as sandbox:
            assert (await sandbox.exec(["/program", "--version"])).returncode == 0
            with pytest.raises(SandboxImageError, match=sandbox.sandbox_id) as caught:
                await client.remove_image(layout)
            assert caught.value.reason == "image_in_use"
            await client.prune_images()
            assert (await client.inspect_image(layout)).status == "here"

    of(work)


def test_a_prune_leaves_what_is_pinned(layout: str) -> None:
    async def work(client: AsyncClient) -> None:
        size = (await client.pull_image(layout)).size_bytes
        assert (await client.pin_image(layout)).pinned
        await client.prune_images()
        assert (await client.inspect_image(layout)).pinned
        assert not (await client.pin_image(layout, pinned=False)).pinned
        assert await client.prune_images(unused_seconds=3600) == 0
        assert await client.prune_images() >= size
        with pytest.raises(SandboxImageError):
            await client.inspect_image(layout)

    of(work)


PRINT = ["/program", "--version"]


def test_what_was_built_is_built_anew_after_a_prune(layout: str) -> None:
    image = aviato.Image.from_(layout).run(PRINT)
    with Session() as session:
        for _ in range(3):
            with session.sandbox(container_image=image) as sandbox:
                assert sandbox.exec(PRINT).result().returncode == 0
            of(lambda client: client.prune_images())
        pool = session.pool(1, container_image=image)
        with pool.sandbox() as sandbox:
            assert sandbox.exec(PRINT).result().returncode == 0
        pool.close().result()


def pruning(monkeypatch: pytest.MonkeyPatch, when: Callable[[int], bool]) -> list[int]:
    """Have images removed as soon as a step of a build is there, which no sandbox has by then.

    Args:
        monkeypatch: for as long as it says.
        when: says of the number of steps that were made by then whether they are removed.

    Returns:
        What is removed each time, in bytes.
    """
    freed: list[int] = []
    made, really_taken = 0, snapshots.taken

    async def taken(handle: SandboxHandle, *arguments: Any, **options: Any) -> Any:
        nonlocal made
        snapshot = await really_taken(handle, *arguments, **options)
        made += 1
        if when(made):
            freed.append(await handle.client.prune_images(most_bytes=0, unused_seconds=0.0))
        return snapshot

    monkeypatch.setattr(building, "taken", taken)
    return freed


def test_a_step_that_is_pruned_meanwhile_is_made_again(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = aviato.Image.from_(layout).run(PRINT)
    image = begin.env(A="1").run(PRINT).workdir("/w").run(PRINT)
    freed = pruning(monkeypatch, lambda made: made in (1, 2, 5))
    found = image.build().result()
    assert (found.status, found.environment["A"], found.working_dir, len(freed)) == ("here", "1", "/w", 3)
    (tmp_path / "Dockerfile").write_text(
        f"FROM {layout} AS one\nCOPY Dockerfile /one\nFROM {layout}\nCOPY --from=one /one /two\nCOPY --from=one /one /three\n"
    )
    freed = pruning(monkeypatch, lambda made: made in (1, 3))
    with (
        Session() as session,
        session.sandbox(container_image=aviato.Image.from_dockerfile(tmp_path / "Dockerfile")) as sandbox,
    ):
        assert sandbox.read_file("/three").result() == sandbox.read_file("/two").result() != b""
    assert len(freed) == 2


def test_a_build_is_given_up_where_its_steps_are_pruned_for_ever(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "MOST_LOSSES", 2)
    freed = pruning(monkeypatch, lambda _: True)
    with pytest.raises(SandboxImageError, match="removed 3 times while it was built") as caught:
        aviato.Image.from_(layout).run(PRINT, PRINT, PRINT).build().result()
    assert caught.value.reason == "image_gone" and len(freed) >= 3


def test_a_build_lies_over_what_its_base_was_when_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "registry.invalid/moving:1"
    one, two = (one_program(tmp_path / number, {"version": number.encode()}) for number in ("one", "two"))
    of(lambda client: client.pull_image(one, name=name))
    image = aviato.Image.from_(name).env(A="1").run(PRINT)
    (tmp_path / "Dockerfile").write_text(f"FROM {name} AS first\nFROM {one}\nCOPY --from=first /version /copied\n")
    copied = aviato.Image.from_dockerfile(tmp_path / "Dockerfile")
    made = building._Builder._make

    async def moved(self: Any, *arguments: Any) -> None:
        # The plan of the whole is there by now, and nothing is made.
        for_now = await self._client.pull_image(two, refresh=False, timeout_seconds=30.0, name=name)
        assert for_now.status == "here"
        await made(self, *arguments)

    def version(image: aviato.Image, path: str) -> bytes:
        with Session() as session, session.sandbox(container_image=image) as sandbox:
            return bytes(sandbox.read_file(path).result())

    for built, path in ((image, "/version"), (copied, "/copied")):
        of(lambda client: client.pull_image(one, name=name))
        with monkeypatch.context() as patch:
            patch.setattr(building._Builder, "_make", moved)
            reference = built.build().result().reference
        assert version(aviato.Image.from_(reference), path) == b"one"
        assert version(built, path) == b"two", "what is kept for one image is never given for another"


def test_what_cannot_be_pulled_says_why(tmp_path: Path) -> None:
    async def work(client: AsyncClient) -> None:
        for reference, reason in (
            (f"oci:{tmp_path}/none", "no_such_file"),
            ("a//b", "bad_reference"),
            ("host", "bad_reference"),
        ):
            with pytest.raises(SandboxImageError) as caught:
                await client.pull_image(reference)
            assert caught.value.reason == reason and caught.value.is_infrastructure, caught.value
        for wrong in ("", "a\0", "a" * 5000):
            with pytest.raises(AviatoValidationError):
                await client.pull_image(wrong)
        with pytest.raises(TypeError):
            await client.prefetch("oci:/one")
        with pytest.raises(AviatoValidationError):
            await client.prune_images(most_bytes=-1)

    of(work)


def test_a_pull_goes_on_whoever_waits(layout: str) -> None:
    async def work(client: AsyncClient, registry: SlowRegistry) -> None:
        waiting = asyncio.ensure_future(client.pull_image(registry.reference))
        heard: list[aviato.ImageInfo] = []
        joined = asyncio.ensure_future(client.prefetch([registry.reference], on_progress=heard.append))
        while not heard or not heard[-1].total_bytes:
            await asyncio.sleep(0.05)
        assert (heard[-1].status, heard[-1].layers_total) == ("pulling", 1)
        assert [one.status for one in await client.images() if one.reference == registry.reference] == ["pulling"]
        waiting.cancel()
        joined.cancel()
        await asyncio.sleep(0.1)
        assert (await client.inspect_image(registry.reference)).status == "pulling", "nobody waits for it any more"
        registry.free.set()
        found = await client.pull_image(registry.reference)
        assert registry.asked.count("blob") == 2, "the configuration and the layer, each once"
        assert found.names == (registry.reference,)

    with SlowRegistry(layout) as registry:
        of(lambda client: work(client, registry))


def test_a_failure_is_remembered_for_a_moment(layout: str) -> None:
    """Whoever polls hears of it, and whoever asks later has it tried again."""
    with SlowRegistry(layout) as registry:
        registry.free.set()
        other = registry.reference.replace(":1", ":2")

        async def status(client: AsyncClient) -> tuple[str | None, int]:
            [found] = await client.prefetch([other])
            return found.reason, registry.asked.count("manifest")

        first = of(status)
        assert first[0] == "unknown_tag" and of(status) == first
        with pytest.raises(SandboxImageError, match="2"):
            of(lambda client: client.pull_image(other))
        assert registry.asked.count("manifest") == first[1]
        time.sleep(REMEMBERED_SECONDS)
        assert of(status)[1] > first[1]


def test_a_prefetch_has_them_in_order_and_goes_on(layout: str, tmp_path: Path) -> None:
    wrong = f"oci:{tmp_path}/none"
    with Session() as session:
        found = session.prefetch([wrong, layout, wrong, layout]).result(60)
        assert [(one.reference, one.status) for one in found] == [(wrong, "failed"), (layout, "here")]
        assert found[0].reason == "no_such_file" and "none" in str(found[0].message)
        assert session.prefetch([]).result(10) == []
        with pytest.raises(TypeError):
            session.prefetch(layout)
        with session.sandbox(container_image=layout) as sandbox:
            assert sandbox.exec(["/program", "--version"]).result(60).returncode == 0
    assert of(lambda client: client.prefetch([layout], refresh=True))[0].status == "here"


def test_tenants_look_and_change_nothing(layout: str, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_state_dir()
    keys = directory / "keys"
    keys.write_text("a-key-of-a-tenant tenant=somebody\n")
    running = start_server(directory, port=0, api_key_file=keys)
    try:
        monkeypatch.setenv("AVIATO_BASE_URL", running.url)
        of(lambda client: client.pull_image(layout))
        found = re.search(r"http://\S+", running.log.read_text())
        assert found is not None
        monkeypatch.setenv("AVIATO_BASE_URL", found[0])
        monkeypatch.setenv("AVIATO_API_KEY", "a-key-of-a-tenant")

        async def work(client: AsyncClient) -> None:
            assert (await client.pull_image(layout, refresh=True)).status == "here"
            with SlowRegistry(layout) as registry:
                registry.free.set()
                here, *others = await client.prefetch([layout, registry.reference, f"oci:{directory}", "docker-archive:/x"])
                assert here.status == "here" and {one.reason for one in others} == {"image_not_here"}
                assert "operator" in str(others[0].message)
                assert not registry.asked, "no host is reached because a tenant has named it"
            for call in (
                client.pull_image(layout, name="another:1"),
                client.remove_image(layout),
                client.prune_images(),
                client.pin_image(layout),
                client.push_image(layout, "127.0.0.1:1/none:1"),
                client.export_image(layout, directory / "exported.tar"),
            ):
                with pytest.raises(AviatoAuthenticationError, match="operator"):
                    await call
            assert (await client.inspect_image(layout)).status == "here"
            assert [one.reference for one in await client.images()] == [layout]

        of(work)
    finally:
        running.stop()
        remove(directory)


def test_the_next_server_goes_on_with_a_pull(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_state_dir()
    running = start_server(directory)
    try:
        monkeypatch.setenv("AVIATO_BASE_URL", running.url)

        async def work(client: AsyncClient, registry: SlowRegistry) -> None:
            fetching = asyncio.ensure_future(client.prefetch([registry.reference]))
            while "blob" not in registry.asked:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(running.stop, signal.SIGTERM)
            registry.free.set()
            await asyncio.to_thread(running.restart)
            [found] = await asyncio.wait_for(fetching, 30)
            assert found.status == "here" and found.names == (registry.reference,)

        with SlowRegistry(layout) as registry:
            of(lambda client: work(client, registry))
    finally:
        running.stop()
        remove(directory)


def test_a_server_that_nobody_needs_ends_after_its_pulls(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_state_dir()
    with SlowRegistry(layout) as registry:
        running = start_server(directory, idle_exit=1)
        try:
            monkeypatch.setenv("AVIATO_BASE_URL", running.url)

            async def leave(client: AsyncClient) -> None:
                fetching = asyncio.ensure_future(client.pull_image(registry.reference))
                while "blob" not in registry.asked:
                    await asyncio.sleep(0.02)
                fetching.cancel()

            of(leave)
            with pytest.raises(subprocess.TimeoutExpired):
                running.process.wait(3)
            registry.free.set()
            assert running.process.wait(20) == 0
        finally:
            running.stop()
            remove(directory)


def test_a_refresh_gets_what_the_tag_means_by_now() -> None:
    async def work(client: AsyncClient) -> None:
        async with faulty_registry() as registry:
            old, new = Image(packed({"v": b"old"})), Image(packed({"v": b"new"}))
            reference = registry.add("moving", old)
            first = await client.pull_image(reference)
            assert first.image_id == old.image_id and first.pull_seconds is not None
            registry.add("moving", new)
            again = await client.pull_image(reference)
            assert again.image_id == old.image_id and again.pull_seconds is None
            opened = asyncio.Event()

            async def wait(_: object) -> None:
                await opened.wait()

            registry.faults["/v2/some/image/blobs/"] = wait
            heard: list[aviato.ImageInfo] = []
            fetching = asyncio.ensure_future(client.pull_image(reference, refresh=True, on_progress=heard.append))
            while len(heard) < 3:
                await asyncio.sleep(0.05)
            assert {info.status for info in heard} == {"pulling"}, "though another image of the name is here"
            opened.set()
            assert (await fetching).image_id == new.image_id
            assert registry.count("manifests/moving") == 2, "one refresh asks once, however often it is polled"

    of(work)


def test_what_a_sandbox_waits_for_is_listed(layout: str) -> None:
    async def work(client: AsyncClient, registry: SlowRegistry) -> None:
        async with await client.sandbox(container_image=registry.reference):
            while "blob" not in registry.asked:
                await asyncio.sleep(0.02)
            assert [one.status for one in await client.images() if one.reference == registry.reference] == ["pulling"]

    with SlowRegistry(layout) as registry:
        of(lambda client: work(client, registry))


def test_an_image_of_a_file_has_the_name_that_a_data_set_gives_it(layout: str) -> None:
    name = "registry.invalid/tasks/one:1"

    async def work(client: AsyncClient) -> None:
        found = await client.pull_image(layout, name=name)
        assert found.reference == layout and set(found.names) == {layout, name}
        [here] = await client.prefetch([name])
        assert (here.status, here.image_id, here.pull_seconds) == ("here", found.image_id, None)
        async with await client.sandbox(container_image=name) as sandbox:
            assert (await sandbox.exec(["/program", "--version"])).returncode == 0
        for wrong in ("oci:/x", f"one@sha256:{'0' * 64}", str(found.image_id), "Upper", "0123456789ab"):
            with pytest.raises(SandboxImageError) as caught:
                await client.pull_image(layout, name=wrong)
            assert caught.value.reason == "bad_reference"
        assert await client.remove_image(name) == [name]

    of(work)


TAKEN = ("host", "host:3.11", "dir:x", "aviato.build/0123:latest", "Aviato.Build/x")


@pytest.mark.parametrize("name", TAKEN)
def test_what_means_something_else_is_no_name_for_an_image(server: Any, layout: str, name: str) -> None:
    """Nobody would have the image by it. It is refused before anything is fetched, built or taken."""
    missing = f"{layout}/none"
    said = "no name for an image: host, host:3.N and dir:… mean files of the server's machine"

    async def over_http(sandbox_id: str) -> None:
        pulled = ("POST", "/v1/images/pull", {"reference": missing, "name": name})
        path = f"/v1/sandboxes/{sandbox_id}/snapshots/{new_snapshot_id()}"
        taken = [("PUT", path, {"name": name, "kind": kind}) for kind in ("snapshot", "fork", "build")]
        connector = aiohttp.UnixConnector(server.url.removeprefix("unix://"))
        async with aiohttp.ClientSession("http://server", connector=connector) as session:
            for method, path, body in (pulled, *(taken[:2] if name == TAKEN[3] else taken)):
                async with session.request(method, path, json=body) as response:
                    error = (await response.json())["error"]
                assert said in error["message"] and error["reason"] == "bad_reference", error

    async def work(client: AsyncClient) -> None:
        async with await client.sandbox() as sandbox:
            for call in (
                lambda: client.pull_image(missing, name=name),
                lambda: sandbox.snapshot(name=name),
                lambda: aviato.Image.from_(missing).build(name=name),
            ):
                with pytest.raises(AviatoValidationError, match=said) as caught:
                    await call()
                assert caught.value.field_violations == {"name": "taken"}
            await sandbox.exec(["true"])
            await over_http(sandbox.sandbox_id)

    of(work)


def test_an_image_may_be_called_as_the_machine_s_python_is_in_a_registry(layout: str) -> None:
    async def work(client: AsyncClient) -> None:
        name = "python:3.99"
        assert f"docker.io/library/{name}" in (await client.pull_image(layout, name=name)).names
        async with await client.sandbox(container_image=name) as sandbox:
            assert (await sandbox.exec(["/program", "--version"])).returncode == 0
        assert await client.remove_image(name) == [f"docker.io/library/{name}"]

    of(work)


def test_a_session_counts_what_it_prefetches(layout: str, tmp_path: Path) -> None:
    with Session() as session:
        assert not [name for name in session.get_metrics() if "image" in name]
        session.prefetch([layout, f"oci:{tmp_path}/none"]).result(60)
        session.prefetch([layout]).result(60)
        counted = session.get_metrics()
    assert (counted["aviato/image_pulls"], counted["aviato/image_cache_hits"]) == (1, 1)
    assert counted["aviato/image_pull_failures"] == 1 and counted["aviato/image_pull_bytes"] > 0
    assert counted["aviato/max_image_pull_seconds"] == counted["aviato/avg_image_pull_seconds"] > 0


def counted(session: Session) -> dict[str, Any]:
    """What a session tells of images, but for times."""
    found = {name.removeprefix("aviato/"): value for name, value in session.get_metrics().items() if "image" in name}
    return {name: value for name, value in found.items() if not name.endswith("seconds")}


def test_a_session_counts_what_its_sandboxes_wait_for(layout: str, tmp_path: Path) -> None:
    """Each pull once, whoever waits for it, with its bytes and seconds; and what was there."""
    size = max(path.stat().st_size for path in Path(layout[4:], "blobs/sha256").iterdir())
    with SlowRegistry(layout) as registry, Session() as first:
        boxes = [first.sandbox(container_image=registry.reference) for _ in range(3)]
        calls = [box.exec(["/program", "--version"]) for box in boxes]
        deadline = time.monotonic() + 20
        while {str(box.status_reason) for box in boxes} != {"pulling"}:
            assert time.monotonic() < deadline
            [box.get_status() for box in boxes]
            time.sleep(0.02)
        registry.free.set()
        assert [call.result(60).returncode for call in calls] == [0] * 3
        said = counted(first)
        assert said.pop("image_pull_bytes") >= size and said == {"image_pulls": 1}
        assert 0 < first.get_metrics()["aviato/max_image_pull_seconds"] < 30
        first.sandbox().exec(["true"]).result(60)
        first.sandbox(container_image=registry.reference).wait()
        with first.pool(1, container_image=registry.reference) as pool:
            pool.sandbox().wait()
        assert counted(first)["image_pulls"] == 1 and counted(first)["image_cache_hits"] == 2
        snapshot = boxes[0].snapshot().result(60)
        first.sandbox(container_image=snapshot.snapshot_id).wait()
        assert counted(first)["image_cache_hits"] == 2  # A snapshot comes from nowhere.
        missing = first.sandbox(container_image=registry.reference.replace(":1", ":none"))
        with pytest.raises(SandboxImageError):
            missing.exec(["true"]).result(60)
        assert counted(first)["image_pull_failures"] == 1
        boxes[0].reset().result(60)
        assert counted(first)["image_pulls"] == 1
        aviato.Sandbox.delete_snapshot(snapshot.snapshot_id).result(60)


def test_who_waits_no_longer_is_told_that_the_image_is_on_its_way(layout: str) -> None:
    """Whoever waits, and however: asked then, since nobody may have looked since the start."""

    async def on_a_loop(reference: str) -> list[str | None]:
        async with AsyncClient() as client:
            box = await client.sandbox(container_image=reference)
            with pytest.raises(aviato.OperationTimeoutError, match=r"goes on \(pending: pulling\)") as own:
                await box.wait(0.1)
            with pytest.raises(aviato.OperationTimeoutError) as several:
                async for _ in aviato.as_completed([session.sandbox(container_image=reference)], timeout=0.1):
                    raise AssertionError
            assert own.value.is_infrastructure and several.value.is_infrastructure
            return [own.value.status_reason, several.value.status_reason]

    with SlowRegistry(layout) as registry, Session() as session:
        box = session.sandbox(container_image=registry.reference)
        with pytest.raises(aviato.OperationTimeoutError, match=r"goes on \(pending: pulling\)") as caught:
            box.wait(0.1)
        call = box.exec(["/program", "--version"])
        with pytest.raises(aviato.OperationTimeoutError) as by_command:
            call.result(0.1)
        with pytest.raises(aviato.OperationTimeoutError, match="the first is pending: pulling") as several:
            list(aviato.as_completed([box, call], timeout=0.1))
        assert [one.value.status_reason for one in (caught, by_command, several)] == ["pulling"] * 3
        assert all(one.value.is_infrastructure for one in (caught, by_command, several))
        assert asyncio.run(on_a_loop(registry.reference)) == ["pulling"] * 2
        registry.free.set()
        assert call.result(60).returncode == 0


def test_of_those_who_prefetch_at_once_one_counts_the_pull(layout: str) -> None:
    with SlowRegistry(layout) as registry, Session() as first, Session() as second:
        asked = [one.prefetch([registry.reference]) for one in (first, first, second)]
        while "blob" not in registry.asked:
            time.sleep(0.02)
        asked.append(second.prefetch([registry.reference]))
        registry.free.set()
        found = [one.result(60)[0] for one in asked]
        assert {one.status for one in found} == {"here"} and sum(not one.joined for one in found) == 1
        both = [counted(one) for one in (first, second)]
        assert sum(one.get("image_pulls", 0) for one in both) == 1 and not any("image_cache_hits" in one for one in both)


def test_who_prefetches_what_a_sandbox_waits_for_counts_nothing(layout: str) -> None:
    with SlowRegistry(layout) as registry, Session() as first, Session() as second:
        waiting = first.sandbox(container_image=registry.reference)
        running = waiting.exec(["/program", "--version"])
        while "blob" not in registry.asked:
            time.sleep(0.02)
        asked = second.prefetch([registry.reference])
        second.list().result(60)  # By the same connection: the server has heard of the other by then.
        registry.free.set()
        [found] = asked.result(60)
        assert running.result(60).returncode == 0 and counted(first)["image_pulls"] == 1
        assert found.status == "here" and "image_pulls" not in counted(second)


def test_a_session_counts_what_its_builds_begin_with(layout: str, tmp_path: Path) -> None:
    with SlowRegistry(layout) as registry, Session() as session:
        registry.free.set()
        image = aviato.Image.from_(registry.reference).copy(tmp_path / "image" / "oci-layout", "/srv/of")
        session.sandbox(container_image=image).wait()
        said = counted(session)
        assert said.pop("image_pull_bytes") > 0 and said == {"image_pulls": 1}
        missing = aviato.Image.from_(registry.reference.replace(":1", ":none")).workdir("/srv")
        with pytest.raises(SandboxImageError):
            session.sandbox(container_image=missing).wait()
        assert counted(session)["image_pull_failures"] == 1


def test_a_mirror_is_asked_first_and_the_cache_is_bounded(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_state_dir()
    with SlowRegistry(layout) as registry:
        registry.free.set()
        mirror = f"registry.invalid={registry.host}"
        running = start_server(directory, registry_mirror=mirror, image_cache_bytes=1)
        try:
            monkeypatch.setenv("AVIATO_BASE_URL", running.url)
            reference = "registry.invalid/some/image:1"
            assert of(lambda client: client.pull_image(reference)).names == (reference,)
            one = f"oci:{make_layout(tmp_path / 'one', [tar_of({'x': b'x' * 10_000})], {})}"
            assert [info.reference for info in of(lambda client: _pull_and_list(client, one))] == [one]
        finally:
            running.stop()
            remove(directory)


async def _pull_and_list(client: AsyncClient, reference: str) -> list[aviato.ImageInfo]:
    await client.pull_image(reference)
    return await client.images()


def test_python_means_what_is_here(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of the name that was pulled, else an interpreter of the machine."""
    minor = sys.version_info.minor
    name, directory = f"python:3.{minor}", make_state_dir()
    with SlowRegistry(one_program(tmp_path / "image"), path="library/python", tag=f"3.{minor}") as registry:
        registry.free.set()
        running = start_server(directory, registry_mirror=f"docker.io={registry.host}")
        try:
            monkeypatch.setenv("AVIATO_BASE_URL", running.url)
            with Sandbox(container_image=name) as sandbox:
                found = sandbox.exec(["python", "-c", "import sys; print(sys.version_info.minor)"]).result(60)
                if found.returncode:
                    pytest.skip(f"the machine has no {name}")
                assert found.stdout == f"{minor}\n" and not registry.asked
            of(lambda client: client.pull_image(name))
            with Sandbox(container_image=name) as sandbox:
                assert sandbox.exec(["/program", "--version"]).result(60).returncode == 0
        finally:
            running.stop()
            remove(directory)
