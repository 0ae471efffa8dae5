"""Images: those of a server, and what is known of each."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import aviato
from tests.images.faulty_registry import faulty_registry
from tests.images.layouts import Image, tar_of
from tests.images.whole_images import make_layout
from tests.surface.harness import Place, acheck, check

CONFIG = {
    "Env": ["A=b"],
    "WorkingDir": "/w",
    "User": "nobody",
    "Entrypoint": ["/x"],
    "Cmd": ["y"],
    "Labels": {"l": "m"},
}


def layout(place: Place) -> Path:
    return make_layout(place.path / "layout", [tar_of({"own": str(place.path).encode()})], CONFIG)


@check("Session.prefetch", "Session.prefetch(progress=)", "Session.prefetch(refresh=)")
def prefetched(place: Place) -> None:
    counts: list[int] = []
    (info,) = place.session.prefetch(
        [f"oci:{layout(place)}"], refresh=True, progress=lambda done, _: counts.append(done)
    ).result()
    assert info.status == "here" and counts[-1] == 1


@acheck("Session.prefetch")
async def prefetched_here(place: Place) -> None:
    assert (await place.session.prefetch([f"oci:{layout(place)}"]))[0].status == "here"


@check(
    *("ImageInfo.reference", "ImageInfo.status", "ImageInfo.image_id", "ImageInfo.names", "ImageInfo.layers"),
    *("ImageInfo.size_bytes", "ImageInfo.created_at", "ImageInfo.pulled_at", "ImageInfo.used_at", "ImageInfo.pinned"),
    *("ImageInfo.architecture", "ImageInfo.environment", "ImageInfo.working_dir", "ImageInfo.user", "ImageInfo.entrypoint"),
    *("ImageInfo.command", "ImageInfo.labels", "ImageInfo.pull_seconds", "ImageInfo.layers_done"),
)
def image_info(place: Place) -> None:
    reference = f"oci:{layout(place)}"
    (info,) = place.session.prefetch([reference]).result()
    assert (info.reference, info.status, info.names, info.pinned) == (reference, "here", [reference], False)
    assert str(info.image_id).startswith("sha256:") and (info.layers, info.layers_done) == (1, 1)
    assert info.size_bytes == len(str(place.path)) and info.created_at is None and info.architecture
    assert info.pulled_at is not None and info.used_at is not None and abs(info.pulled_at - time.time()) < 60
    assert (info.environment, info.working_dir, info.user) == ({"A": "b"}, "/w", "nobody")
    assert (info.entrypoint, info.command, info.labels) == (["/x"], ["y"], {"l": "m"})
    assert info.pull_seconds is not None and info.pull_seconds < 30


@check("ImageInfo.message", "ImageInfo.reason", "ImageInfo.is_infrastructure", "ImageInfo.retryable")
def failed_image(place: Place) -> None:
    _, info = place.session.prefetch(["host", f"oci:{place.path}/nothing"]).result()
    assert "nothing" in str(info.message) and info.reason == "no_such_file"
    assert info.is_infrastructure and not info.retryable


@acheck(
    *("AsyncClient.prefetch", "AsyncClient.prefetch(on_progress=)", "AsyncClient.prefetch(refresh=)"),
    *("ImageInfo.phase", "ImageInfo.done_bytes", "ImageInfo.total_bytes"),
)
async def watched(place: Place) -> None:
    told: list[aviato.ImageInfo] = []
    async with faulty_registry() as registry, aviato.AsyncClient() as client:
        reference = registry.add("watched", Image(tar_of({"own": str(place.path).encode()})))
        opened = asyncio.Event()

        async def wait(_: object) -> None:
            await opened.wait()

        registry.faults["/v2/some/image/blobs/"] = wait

        def tell(info: aviato.ImageInfo) -> None:
            told.append(info)
            opened.set()

        await client.prefetch([reference], refresh=True, on_progress=tell)
    assert [told[0].status, told[-1].status] == ["pulling", "here"]
    assert (told[0].phase, told[0].done_bytes, told[0].total_bytes) == ("resolving", 0, None)


@acheck(
    *("AsyncClient.import_image", "AsyncClient.import_image(name=)", "AsyncClient.import_image(on_progress=)"),
    *("AsyncClient.images", "AsyncClient.inspect_image", "AsyncClient.pin_image", "AsyncClient.pin_image(pinned=)"),
    *("AsyncClient.remove_image", "AsyncClient.remove_image(force=)"),
)
async def kept(place: Place) -> None:
    told: list[aviato.ImageInfo] = []
    async with aviato.AsyncClient() as client:
        info = await client.import_image(layout(place), name="surface:1", on_progress=told.append)
        assert told[-1].image_id == info.image_id
        assert info.image_id in [one.image_id for one in await client.images()]
        assert (await client.inspect_image("surface:1")).image_id == info.image_id
        assert (await client.pin_image("surface:1")).pinned
        assert not (await client.pin_image("surface:1", pinned=False)).pinned
        assert len(await client.remove_image(str(info.image_id), force=True)) == 2
        with pytest.raises(aviato.SandboxImageError):
            await client.inspect_image("surface:1")


@acheck("AsyncClient.prune_images", "AsyncClient.prune_images(most_bytes=)", "AsyncClient.prune_images(unused_seconds=)")
async def pruned(place: Place) -> None:
    async with aviato.AsyncClient() as client:
        await client.prefetch([f"oci:{layout(place)}"])
        assert await client.prune_images(most_bytes=1 << 60, unused_seconds=3600) == 0
