"""What a client with a key meets at a real server, over TCP."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, AviatoValidationError, Sandbox, SandboxNotFoundError, Secret
from aviato.server.service.snapshots import MOST_OF_A_KEY

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
    """Go on with another key; with an empty one as the server's user."""
    (tmp_path / "keys").write_text(KEYS)
    server = make_server(port=0, api_key_file=tmp_path / "keys", secrets_dir=tmp_path)
    deadline = time.monotonic() + 60
    while (found := re.search(r"AVIATO_BASE_URL=(http://\S+)\n", server.log.read_text())) is None:
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.01)

    def enter(key: str) -> None:
        monkeypatch.setenv("AVIATO_BASE_URL", found[1] if key else server.url)
        monkeypatch.setenv("AVIATO_API_KEY", key) if key else monkeypatch.delenv("AVIATO_API_KEY", raising=False)

    return enter


BUILD = """
import logging, sys, aviato
told = []
handler = logging.Handler()
handler.emit = lambda record: told.append(record.getMessage())
logging.getLogger("aviato").addHandler(handler)
logging.getLogger("aviato").setLevel(logging.INFO)
image = aviato.Image.from_("host").run(f"echo {sys.argv[1]} >/srv/one").run("date +%s%N >/srv/two")
info = image.build().result()
with aviato.Session() as session:
    content = session.sandbox(container_image=info.reference).read_file("/srv/two").result().decode().strip()
print(sum(one.startswith("building: ") for one in told), content, info.reference, info.image_id)
"""


def test_builds_are_those_of_the_key(enter: Callable[[str], None], tmp_path: Path) -> None:
    def built(key: str) -> tuple[str, ...]:
        enter(key)
        argv = [sys.executable, "-c", BUILD, str(tmp_path)]
        return tuple(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())

    # All make what they ask for themselves, the server's user too: nobody gets what another has put under its name.
    made = {key: built(key) for key in ("all", "guest", "")}
    assert [one[0] for one in made.values()] == ["2", "2", "2"] and len({one[1] for one in made.values()}) == 3
    assert len({one[2] for one in made.values()}) == 1 and made["all"][2].startswith("aviato.build/")
    assert built("all") == ("0", *made["all"][1:]) and built("none") == ("0", *made["guest"][1:])
    enter("guest")
    assert aviato.Sandbox.list_snapshots().result() == []
    with pytest.raises(aviato.AviatoAuthenticationError, match="names no images"):
        aviato.Image.from_("host").run(f"echo {tmp_path} >/srv/one").build(name="mine:1").result()
    with aviato.Session() as session:
        for image in (made["all"][3], made[""][3]):
            with pytest.raises(aviato.SandboxImageError, match="is not here"):
                session.sandbox(container_image=image).exec(["true"]).result()

    async def images() -> list[str]:
        async with AsyncClient() as client:
            return [one.image_id or "" for one in await client.images()]

    assert made["guest"][3] in (found := asyncio.run(images())) and not {made["all"][3], made[""][3]} & {*found}


def test_steps_of_builds_make_room(enter: Callable[[str], None], tmp_path: Path) -> None:
    enter("all")
    with aviato.Session() as session:
        sandbox = session.sandbox()
        for _ in range(MOST_OF_A_KEY - 2):
            sandbox.snapshot().result()
        image = aviato.Image.from_("host")
        for number in range(4):
            image = image.run(f"echo {tmp_path} >>/srv/{number}")
        assert len(session.sandbox(container_image=image).list_files("/srv").result()) == 4
        for _ in range(2):
            sandbox.snapshot().result()
        with pytest.raises(aviato.SandboxSnapshotError, match=f"has {MOST_OF_A_KEY} snapshots"):
            sandbox.snapshot().result()


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
