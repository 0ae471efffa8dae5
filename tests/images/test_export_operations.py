"""Exports and pushes of a server's images, end to end: snapshots, builds, the command line, and what is cut in the middle."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from aviato import AsyncClient, AviatoError, AviatoValidationError, Image, PushInfo, Sandbox, SandboxImageError
from tests.conftest import make_state_dir, remove, start_server
from tests.images.programs import tools
from tests.images.real_registry import real_registry
from tests.images.whole_images import make_layout, tar_of

PROGRAMS = ("cat", "echo", "ln", "ls", "mkdir", "rm", "sh", "stat")


@pytest.fixture(scope="module")
def server(own_server: Any) -> Any:
    return own_server


@pytest.fixture(autouse=True)
def _url(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", server.url)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> str:
    files = {**dict.fromkeys(("bin/", "etc/", "tmp/", "work/"), b""), **tools(*PROGRAMS), "etc/gone": b"gone"}
    config = {"Env": ["PATH=/bin", "WHERE=image"], "WorkingDir": "/work", "Cmd": ["sh"]}
    return f"oci:{make_layout(tmp_path_factory.mktemp('layout') / 'image', [tar_of(files)], config)}"


def of(work: Any) -> Any:
    """What comes of work with a client."""

    async def main() -> Any:
        async with AsyncClient() as client:
            return await work(client)

    return asyncio.run(main())


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "aviato", "image", *arguments], capture_output=True, text=True, timeout=250)


def test_a_snapshot_goes_out_and_comes_back(layout: str, tmp_path: Path) -> None:
    with Sandbox(container_image=layout) as sandbox:
        change = "rm /etc/gone; mkdir -p /a/b; echo mine >/a/b/c; ln -s b /a/l; ln /a/b/c /a/d"
        assert sandbox.exec(["sh", "-c", change]).result(60).returncode == 0
        taken = sandbox.snapshot().result(60)
    archive = tmp_path / "taken.tar"
    of(lambda client: client.export_image(taken.snapshot_id, archive))
    assert oct(archive.stat().st_mode)[-3:] == "644" and os.listdir(tmp_path) == ["taken.tar"]
    directory = make_state_dir()
    other = start_server(directory)
    try:
        with Sandbox(container_image=f"docker-archive:{archive}", base_url=other.url) as sandbox:
            look = "cat /a/l/c; stat -c %h /a/d; ls /etc/gone 2>&1; echo $WHERE; ls -d $PWD"
            found = sandbox.exec(["sh", "-c", look]).result(60)
            assert found.stdout == "mine\n2\nls: /etc/gone: No such file or directory\nimage\n/work\n", found
    finally:
        other.stop()
        remove(directory)


def test_a_build_is_pushed_and_pulled(layout: str, tmp_path: Path) -> None:
    built = Image.from_(layout).run("echo built >/built").env(NAME="value").workdir("/tmp").build().result(60).image_id
    with real_registry(tmp_path) as host:
        heard: list[PushInfo] = []
        where = of(lambda client: client.push_image(built, f"{host}/tasks/one:1", on_progress=heard.append))
        assert (heard[-1].status, heard[-1].reference) == ("done", f"{host}/tasks/one:1")
        assert heard[-1].layers_done == heard[-1].layers_total > 0 < heard[-1].sent_bytes
        assert where.startswith(f"{host}/tasks/one@sha256:")
        pushed = cli("push", built, f"{host}/tasks/one:2")
        assert (pushed.returncode, pushed.stdout.strip(), pushed.stderr) == (0, where, "")
        with Sandbox(container_image=f"{host}/tasks/one:2") as sandbox:
            assert sandbox.exec(["sh", "-c", "cat /built; echo $NAME $WHERE; ls -d $PWD"]).result(60).stdout == (
                "built\nvalue image\n/tmp\n"
            )
        # By the name that it has already.
        assert of(lambda client: client.push_image(f"{host}/tasks/one:2")) == where
        refused = cli("push", layout)
        assert refused.returncode != 0 and "no place in a registry" in refused.stderr
    with pytest.raises(SandboxImageError) as caught:
        of(lambda client: client.push_image(built, "localhost:1/x"))
    assert caught.value.reason == "registry_unreachable" and caught.value.retryable


def test_a_directory(layout: str, tmp_path: Path) -> None:
    of(lambda client: client.pull_image(layout))
    done = cli("export", layout, str(tmp_path / "out"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(os.listdir(tmp_path / "out")) == ["blobs", "index.json", "oci-layout"]
    for path in (tmp_path / "out/blobs/sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    again = cli("export", layout, str(tmp_path / "out"))
    assert again.returncode != 0 and "there is something already" in again.stderr
    (tmp_path / "empty").mkdir()
    of(lambda client: client.export_image(layout, tmp_path / "empty"))
    assert (tmp_path / "empty/index.json").exists() and sorted(os.listdir(tmp_path)) == ["empty", "out"]


def test_what_cannot_be_written(layout: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").mkdir()
    for path, kind in (
        ("x.tar.gz", AviatoValidationError),
        ("x.tgz", AviatoValidationError),
        ("x\0", AviatoValidationError),
        ("a.tar", IsADirectoryError),
        ("none/x.tar", FileNotFoundError),
        ("none/x", FileNotFoundError),
    ):
        with pytest.raises(kind):
            of(lambda client, path=path: client.export_image(layout, tmp_path / path))
    for reference, reason in (("host", "base_of_this_machine"), ("no/such:1", "image_not_here")):
        with pytest.raises(SandboxImageError) as caught:
            of(lambda client, reference=reference: client.export_image(reference, tmp_path / "x.tar"))
        assert caught.value.reason == reason and caught.value.is_infrastructure
    assert os.listdir(tmp_path) == ["a.tar"]


@pytest.mark.long
def test_a_server_that_is_killed_leaves_nothing_half(layout: str, tmp_path: Path) -> None:
    """Neither here nor with the server, whose next one goes on."""
    directory = make_state_dir()
    running = start_server(directory)
    large = tar_of({"large": os.urandom(16 << 20)})
    reference = f"oci:{make_layout(tmp_path / 'image', [large], {})}"

    async def export(path: str) -> None:
        async with AsyncClient(base_url=running.url) as client:
            await client.export_image(reference, tmp_path / "out" / path)

    async def killed() -> None:
        async with AsyncClient(base_url=running.url) as client:
            await client.pull_image(reference)
        tasks = [asyncio.create_task(export(path)) for path in ("x", "x.tar")]
        while not [name for name in os.listdir(tmp_path / "out") if name.startswith(".aviato-")]:
            await asyncio.sleep(0.01)
        running.process.kill()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, AviatoError), error

    (tmp_path / "out").mkdir()
    try:
        asyncio.run(killed())
        assert os.listdir(tmp_path / "out") == []
        [store] = Path(running.state_dir).glob("images/ids-*")
        assert [*(store / "blobs").iterdir()] == []
        running.process.wait()
        again = start_server(directory)
        try:
            asyncio.run(export("x.tar"))
        finally:
            again.stop()
        with tarfile.open(tmp_path / "out/x.tar") as archive:
            assert json.load(archive.extractfile("index.json") or pytest.fail("no index"))["manifests"]
    finally:
        running.process.kill()
        remove(directory)
