"""Images of a server, and what is said of one."""

from __future__ import annotations

from pathlib import Path

import pytest

import aviato
from tests.images.whole_images import ARCHITECTURE, make_layout, tar_of
from tests.surface.harness import Place, acheck, check
from tests.surface.names import IMAGE_ATTRIBUTES, IMAGE_CALLS, PUSH_ATTRIBUTES

CONFIG = {
    "Env": ["A=b"],
    "WorkingDir": "/w",
    "User": "0",
    "Entrypoint": ["/e"],
    "Cmd": ["c"],
    "Labels": {"l": "m"},
    "Shell": ["s"],
}


def layout(path: Path) -> str:
    return f"oci:{make_layout(path / 'image', [tar_of({'name': str(path).encode()})], CONFIG)}"


@check("Session.prefetch", "Session.prefetch(refresh=)", *(f"ImageInfo.{name}" for name in IMAGE_ATTRIBUTES))
def prefetch(place: Place) -> None:
    image, wrong = layout(place.path), f"oci:{place.path}/none"
    here, failed = place.session.prefetch([image, wrong], refresh=True).result(60)
    assert isinstance(here, aviato.ImageInfo) and (here.reference, here.status, here.names) == (image, "here", (image,))
    assert str(here.image_id).startswith("sha256:") and here.layers == 1 and here.size_bytes > 0 and here.pulled_at is not None
    assert (here.created_at, here.pinned, here.architecture, here.working_dir) == (None, False, ARCHITECTURE, "/w")
    assert (here.user, here.entrypoint, here.command, here.environment) == ("0", ("/e",), ("c",), {"A": "b"})
    assert (here.layers_done, here.layers_total) == (1, 1) and here.used_at is not None
    assert (failed.reference, failed.status, failed.reason) == (wrong, "failed", "no_such_file") and failed.message
    assert (
        (here.labels, here.shell) == ({"l": "m"}, ("s",))
        and here.pull_seconds is not None
        and here.pull_seconds < 30
        and not failed.retryable
        and not here.joined
    )
    assert (failed.done_bytes, failed.total_bytes) == (0, None)


@acheck("Session.prefetch")
async def awaited(place: Place) -> None:
    image = layout(place.path)
    [found] = await place.session.prefetch([image])
    assert found.reference == image


@check(*(f"PushInfo.{name}" for name in PUSH_ATTRIBUTES))
def pushes(place: Place) -> None:
    info = aviato.PushInfo(reference="a/b:1", status="pushing", layers_total=2, layer_done_bytes=3)
    assert (info.reference, info.status, info.layers_done, info.layers_total) == ("a/b:1", "pushing", 0, 2)
    assert (info.sent_bytes, info.layer_done_bytes, info.layer_total_bytes) == (0, 3, None)


@acheck(*(f"AsyncClient.{name}" for name in IMAGE_CALLS))
async def calls(place: Place) -> None:
    image = layout(place.path)
    heard: list[aviato.ImageInfo] = []
    async with aviato.AsyncClient() as client:
        named = await client.pull_image(image, name="surface:1")
        assert "docker.io/library/surface:1" in named.names
        assert await client.remove_image("surface:1") == ["docker.io/library/surface:1"]
        found = await client.pull_image(image, refresh=True, on_progress=heard.append)
        assert heard[-1] == found
        [again] = await client.prefetch([image], refresh=True, on_progress=heard.append)
        assert heard[-1].image_id == again.image_id == found.image_id
        assert (await client.pin_image(image, pinned=True)).pinned and not (await client.pin_image(image, pinned=False)).pinned
        assert image in [one.reference for one in await client.images()]
        assert (await client.inspect_image(image)).image_id == found.image_id
        await client.export_image(image, place.path / "exported.tar")
        assert (place.path / "exported.tar").stat().st_size > 0
        for destination in (None, "127.0.0.1:1/none:1"):
            with pytest.raises(aviato.SandboxImageError):
                await client.push_image(image, destination, on_progress=None)
        with pytest.raises(aviato.SandboxImageError):
            await client.push_image(image, destination="127.0.0.1:1/none:1")
        assert await client.prune_images(most_bytes=0, unused_seconds=3600) == 0
        assert await client.remove_image(image, force=False) == [image]
