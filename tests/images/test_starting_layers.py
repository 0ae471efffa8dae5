"""Starting layers: what sandboxes of an image begin with is made once, and nobody can tell."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, Sandbox
from aviato.server.backends.local import binary
from aviato.server.backends.local.left import REST_SECONDS
from tests.conftest import RunningServer
from tests.images.programs import one_program
from tests.images.whole_images import make_layout, tar_of

NAMES = ("program", "name", "work", "etc", "proc", "dev", "run", "sys", "tmp", "root", "workspace", ".aviato")


@pytest.fixture(scope="module")
def server(own_server: Any) -> Any:
    return own_server


@pytest.fixture(autouse=True)
def _url(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)


class Made:
    """Layouts with one program, each with a content of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0

    def __call__(self, **files: Any) -> str:
        self._count += 1
        named = {name.replace("__", "/"): content for name, content in files.items()}
        own = {"name": f"{self._directory}{self._count}".encode()}
        config = {"WorkingDir": "/work/deep", "Entrypoint": ["/program"], "Cmd": ["--version"]}
        return one_program(self._directory / str(self._count), {**own, **named}, config)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def layers(server: RunningServer) -> set[str]:
    """Of all images that are here, also where none has ever been."""
    return {path.name for path in Path(server.state_dir).glob("images/ids-*/layers/*")}


def upper(server: RunningServer, sandbox: Sandbox) -> list[str]:
    """What is in the writable layer of one."""
    [found] = Path(server.state_dir).glob(f"*/sandboxes/{sandbox.sandbox_id}/upper")
    return sorted(os.listdir(found))


def names(sandbox: Sandbox) -> set[str]:
    return {entry.path for entry in sandbox.list_files("/").result()}


def its_name(sandbox: Sandbox) -> tuple[str, bool]:
    hosts, name = (sandbox.read_file(f"/etc/{file}").result().decode() for file in ("hosts", "hostname"))
    return name.strip(), sandbox.sandbox_id in hosts and "127.0.0.1 localhost" in hosts


def runs(sandbox: Sandbox) -> bool:
    return sandbox.exec(["/program", "--version"]).result(60).returncode == 0


def test_sandboxes_write_nothing_to_begin(server: RunningServer, made: Made) -> None:
    layout, before = made(etc__hosts=b"10.0.0.1 builder", etc__hostname=b"builder\n"), layers(server)
    for _ in range(3):
        with Sandbox.run(container_image=layout) as sandbox:
            assert runs(sandbox) and its_name(sandbox) == (sandbox.sandbox_id, True)
            assert names(sandbox) == {f"/{name}" for name in NAMES}
            assert upper(server, sandbox) == []
    assert len(layers(server) - before) == 2


def test_what_one_writes_no_other_sees(server: RunningServer, made: Made) -> None:
    """Also where the place of one was the place of the other."""
    layout = made()
    for turn in range(4):
        with Sandbox.run(container_image=layout) as sandbox:
            assert "/mine" not in names(sandbox)
            assert its_name(sandbox) == (sandbox.sandbox_id, True)
            if turn % 2:
                sandbox.write_file("/mine", b"x").result()
                sandbox.write_file("/etc/hosts", b"127.0.0.1 mine").result()
                sandbox.write_file("/etc/hostname", b"mine").result()


def test_who_cannot_have_the_place_of_the_one_before_keeps_its_image(server: RunningServer, made: Made) -> None:
    layout = made()

    async def main() -> None:
        async with AsyncClient() as client:
            await client.prune_images()
            async with await client.sandbox(container_image=layout) as sandbox:
                assert (await sandbox.exec(["/program", "--version"])).returncode == 0
                name = sandbox.sandbox_id
            left = []
            async with asyncio.timeout(REST_SECONDS + 3):
                while not left:
                    left = list(Path(server.state_dir).glob(f"*/left/{name}"))
                    await asyncio.sleep(0.01)
            left[0].rename(f"{left[0]}-elsewhere")
            await asyncio.sleep(2 * REST_SECONDS)
            async with await client.sandbox(container_image=layout) as sandbox:
                assert (await sandbox.exec(["/program", "--version"])).returncode == 0
                with pytest.raises(aviato.SandboxImageError) as caught:
                    await client.remove_image(layout)
                assert caught.value.reason == "image_in_use"
                assert await client.prune_images() == 0
                assert (await sandbox.exec(["/program", "--version"])).returncode == 0

    asyncio.run(main())
    assert "could not be had by" in server.log.read_text()


def test_many_at_once_make_one(server: RunningServer, made: Made) -> None:
    layout, before = made(), layers(server)

    async def main() -> list[int | None]:
        async with AsyncClient() as client:
            await client.pull_image(layout)
            boxes = await asyncio.gather(*(client.sandbox(container_image=layout) for _ in range(12)))
            results = await asyncio.gather(*(box.exec(["/program", "--version"]) for box in boxes))
            await asyncio.gather(*(box.stop() for box in boxes))
            return [one.returncode for one in results]

    assert asyncio.run(main()) == [0] * 12
    assert len(layers(server) - before) == 2


def test_it_goes_with_its_image(server: RunningServer, made: Made) -> None:
    layout = made()

    async def main() -> None:
        async with AsyncClient() as client:
            await client.prune_images()
            before = layers(server)
            for _ in range(2):  # And is made again with it.
                async with await client.sandbox(container_image=layout) as sandbox:
                    assert (await sandbox.exec(["/program", "--version"])).returncode == 0
                    assert len(await sandbox.list_files("/")) == len(NAMES)
                    assert await client.prune_images() == 0
                    assert len(layers(server) - before) == 2
                await client.remove_image(layout)
                assert layers(server) == before
                await asyncio.sleep(2 * REST_SECONDS)  # From then on its place could be had by another one.

    asyncio.run(main())


def test_snapshots_lie_over_it(server: RunningServer, made: Made) -> None:
    layout = made()
    with Sandbox.run(container_image=layout) as sandbox:
        sandbox.exec(["/program", "--version"]).result()
        before = layers(server)
        empty = sandbox.snapshot().result()
        assert layers(server) == before  # Nothing was written.
        sandbox.write_file("/mine", b"x").result()
        full = sandbox.snapshot().result()
        assert len(layers(server) - before) == 1
        children = sandbox.fork(3)
        assert [names(child) for child in children] == [names(sandbox)] * 3
        assert {its_name(child) for child in children} == {(child.sandbox_id, True) for child in children}
        aviato.results([child.stop() for child in children])
    for snapshot in (empty, full):
        with Sandbox.run(container_image=snapshot.snapshot_id) as child:
            assert runs(child) and its_name(child) == (child.sandbox_id, True)
            assert ("/mine" in names(child)) is (snapshot is full)
            assert upper(server, child) == []
        Sandbox.delete_snapshot(snapshot.snapshot_id).result()


@pytest.mark.parametrize(
    "files",
    [
        {"etc__hosts/": b"", "etc__hostname/": b""},
        {"etc": b"a file"},
        {"etc": "nowhere"},
        {"etc": "/proc/1/root/etc"},
        {"run": "etc", "etc/": b""},
        {"sys": b"a file", "work": b"a file"},
    ],
    ids=["directories", "no directory", "a link to nowhere", "a link", "run is a link", "files"],
)
def test_odd_images(server: RunningServer, made: Made, files: dict[str, Any]) -> None:
    """One sandbox is as the next one: each runs or each does not."""
    layout, seen = made(**files), []
    for _ in range(3):
        try:
            with Sandbox.run(container_image=layout) as sandbox:
                seen.append((runs(sandbox), names(sandbox)))
        except aviato.AviatoError as error:
            seen.append((type(error), set()))
    assert seen == [seen[0]] * 3


def test_one_that_cannot_be_made_keeps_nobody(make_server: Any, made: Made, tmp_path: Path, monkeypatch: Any) -> None:
    """Its sandboxes have the names in their own layers, as here, where no directory can be moved into the store."""
    elsewhere = Path("/dev/shm", f"aviato-test-{os.getpid()}-{tmp_path.name}")
    elsewhere.mkdir(mode=0o700)
    try:
        server = make_server()
        images = Path(server.state_dir) / "images"
        server.stop()
        shutil.rmtree(images, ignore_errors=True)
        images.symlink_to(elsewhere)
        server.restart()
        monkeypatch.setenv("AVIATO_BASE_URL", server.url)
        layout = made()
        for _ in range(2):
            with Sandbox.run(container_image=layout) as sandbox:
                assert runs(sandbox) and its_name(sandbox) == (sandbox.sandbox_id, True)
        assert server.log.read_text().count("cannot have a starting layer") == 1
        server.stop()
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


@pytest.mark.parametrize(
    "where", ["serve/sandboxes/*/note", "images/*/blobs/*.part", "images/*/blobs/*.tree", "images/*/blobs/*.tree/root"]
)
def test_a_server_that_dies_leaves_none_in_part(
    make_server: Any, made: Made, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    server = make_server()
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)
    layout = made()

    async def main() -> None:
        async with AsyncClient() as client:
            await client.pull_image(layout)
            making = asyncio.ensure_future(client.sandbox(container_image=layout))
            while not making.done() and not any(Path(server.state_dir).glob(where)):
                await asyncio.sleep(0)
            server.stop(signal.SIGKILL)
            server.restart()
            sandbox = await making
            assert (await sandbox.exec(["/program", "--version"])).returncode == 0
            await sandbox.stop()

    asyncio.run(main())
    with Sandbox.run(container_image=layout) as sandbox:
        assert runs(sandbox) and upper(server, sandbox) == [], server.log.read_text()
    server.stop()


@pytest.mark.parametrize(
    ("tops", "mode", "owner"),
    [
        ([(0o555, 0, 0)], 0o555, (0, 0)),
        ([(0o1771, 5, 6), None], 0o1771, (5, 6)),
        ([(0o711, 5, 6), (0o750, 0, 0)], 0o750, (0, 0)),
        ([(0o700, 5, 6), (0o755, 0, 0), None], 0o755, (0, 0)),
        ([None], 0o755, (0, 0)),
    ],
    ids=["one layer", "the lower of two", "the upper of two", "as by itself", "nothing"],
)
def test_the_root_is_as_the_image_says(
    server: RunningServer, tmp_path: Path, tops: list[tuple[int, int, int] | None], mode: int, owner: tuple[int, int]
) -> None:
    """What the uppermost layer says that says anything of it; so it stays in what comes of its sandboxes."""
    tars = []
    for number, top in enumerate(tops):
        said = {} if top is None else {"./": (*top, b"")}
        program = (0o755, 0, 0, Path(binary.found()).read_bytes())
        tars.append(tar_of({**said, "program": program, f"layer{number}": os.urandom(8)}))
    layout = f"oci:{make_layout(tmp_path / 'image', tars, {})}"

    def is_so(sandbox: Sandbox) -> bool:
        if not runs(sandbox) or sandbox.stat("/").result().mode & 0o7777 != mode:
            return False
        [found] = Path(server.state_dir).glob(f"*/sandboxes/{sandbox.sandbox_id}/upper")
        return os.geteuid() != 0 or (found.stat().st_uid, found.stat().st_gid) == owner

    for _ in range(2):
        with Sandbox.run(container_image=layout) as sandbox:
            assert is_so(sandbox)
            sandbox.write_file("/mine", b"x").result()
            snapshot = sandbox.snapshot().result()
            child = sandbox.fork(1)[0]
            assert is_so(child)
            child.stop().result()
        with Sandbox.run(container_image=snapshot.snapshot_id) as again:
            assert is_so(again) and "/mine" in names(again)
        Sandbox.delete_snapshot(snapshot.snapshot_id).result()
