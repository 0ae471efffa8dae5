"""What a client with a key meets at a real server, over TCP."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, AviatoValidationError, Sandbox, SandboxNotFoundError, Secret

KEYS = """
all
small max-body-bytes=20000
slow requests-per-second=10
some secrets=HF_TOKEN
none secrets= tenant=guests
guest tenant=guests
"""


@pytest.fixture
def enter(make_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Go on with another key."""
    (tmp_path / "keys").write_text(KEYS)
    server = make_server(port=0, api_key_file=tmp_path / "keys", secrets_dir=tmp_path)
    deadline = time.monotonic() + 20
    while (found := re.search(r"AVIATO_BASE_URL=(http://\S+)\n", server.log.read_text())) is None:
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.01)
    monkeypatch.setenv("AVIATO_BASE_URL", found[1])

    def enter(key: str) -> None:
        monkeypatch.setenv("AVIATO_API_KEY", key)

    return enter


def test_snapshots_are_those_of_the_key(enter: Callable[[str], None]) -> None:
    enter("all")
    with aviato.Session() as session:
        mine = session.sandbox()
        mine.write_file("/tmp/x", b"x").result()
        taken = mine.snapshot().result()
        [child] = mine.fork()
        assert child.read_file("/tmp/x").result() == b"x"
        with pytest.raises(aviato.SandboxSnapshotError) as named:
            mine.snapshot(name="mine:1").result()
        assert named.value.reason == "tenant" and not named.value.is_infrastructure
    enter("none")
    assert aviato.Sandbox.list_snapshots().result() == []
    with pytest.raises(aviato.SandboxSnapshotError, match="not known"):
        aviato.Sandbox.delete_snapshot(taken.snapshot_id).result()
    with aviato.Session() as session:
        for image in (taken.snapshot_id, taken.image_id):
            with pytest.raises(aviato.SandboxImageError, match="is not here"):
                session.sandbox(container_image=image).exec(["true"]).result()

    async def images() -> list[str]:
        async with aviato.AsyncClient() as client:
            for image in (taken.snapshot_id, taken.image_id):
                with pytest.raises(aviato.SandboxImageError):
                    await client.inspect_image(image)
                with pytest.raises(aviato.SandboxImageError):
                    await client.pull_image(image)
            return [name for one in await client.images() for name in one.names]

    assert not [name for name in asyncio.run(images()) if "sn-" in name]
    enter("all")
    with aviato.Session() as session:
        assert session.sandbox(container_image=taken.snapshot_id).read_file("/tmp/x").result() == b"x"
        aviato.Sandbox.delete_snapshot(taken.snapshot_id).result()
    assert aviato.Sandbox.list_snapshots().result() == []


def test_a_tenant_sees_its_own(enter: Callable[[str], None]) -> None:
    enter("guest")
    with Sandbox() as sandbox:
        for key, there in (("none", True), ("all", False)):
            enter(key)
            listed = [one.sandbox_id for one in Sandbox.list().result()]
            assert listed == ([sandbox.sandbox_id] if there else [])
            if there:
                found = Sandbox.from_id(sandbox.sandbox_id).result()
                assert found.exec(["echo", "x"]).result().stdout == "x\n"
            else:
                with pytest.raises(SandboxNotFoundError):
                    Sandbox.from_id(sandbox.sandbox_id).result()
                with pytest.raises(SandboxNotFoundError):
                    Sandbox.delete(sandbox.sandbox_id).result()
        enter("guest")


def test_what_is_too_large_is_refused_and_the_next_goes_through(enter: Callable[[str], None]) -> None:
    enter("small")
    with Sandbox() as sandbox:
        for attempt in (
            lambda: sandbox.write_file("/tmp/x", b"x" * 30_000).result(),
            lambda: sandbox.exec(["true", "x" * 30_000]).result(),
        ):
            with pytest.raises(AviatoValidationError, match="this key may send 20000 bytes") as caught:
                attempt()
            assert caught.value.reason == "too_large" and not caught.value.is_infrastructure
        sandbox.write_file("/tmp/x", b"x" * 10_000).result()
        assert sandbox.read_file("/tmp/x").result() == b"x" * 10_000


def test_who_is_too_fast_waits_and_goes_on(enter: Callable[[str], None]) -> None:
    enter("slow")

    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox() as sandbox:
            results = await asyncio.gather(*(sandbox.exec(["echo", str(number)]) for number in range(30)))
            assert [result.stdout for result in results] == [f"{number}\n" for number in range(30)]

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began > 1.9
    with Sandbox() as sandbox:
        done = [sandbox.exec(["echo", str(number)]) for number in range(15)]
        assert [one.result().stdout for one in done] == [f"{number}\n" for number in range(15)]


def test_secrets_of_a_key(enter: Callable[[str], None]) -> None:
    """Those that it may not use are refused in the same words, whether there are such or not."""
    enter("some")
    allowed = Secret(store="env", name="HF_TOKEN")
    with Sandbox(secrets=[allowed]) as sandbox:
        assert sandbox.exec(["sh", "-c", "test -n $HF_TOKEN"]).result().returncode == 0
    said = set()
    for other in (Secret(store="file", name="keys"), Secret(store="file", name="nothing"), Secret(store="env", name="OTHER")):
        with pytest.raises(AviatoValidationError, match="may not use the secret") as caught:
            Sandbox(secrets=[allowed, other]).start().result()
        said.add(str(caught.value).replace(other.name, "NAME").replace(other.store, "STORE"))
    assert len(said) == 1
    enter("none")
    with pytest.raises(AviatoValidationError, match="may not use the secret 'HF_TOKEN'"):
        Sandbox(secrets=[allowed]).start().result()
