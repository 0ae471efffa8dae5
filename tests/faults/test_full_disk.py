"""A state directory on a file system that is really full, or read only: clear errors, what runs goes on, and it recovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import aviato
from tests.conftest import SERVE, RunningServer, make_state_dir, remove, start_server
from tests.endings.conftest import until
from tests.images.whole_images import make_layout, tar_of


@pytest.fixture
def small() -> Iterator[Path]:
    """A file system of 24 MiB."""
    path = make_state_dir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=711", "none", path], capture_output=True, check=False)
    if done.returncode:
        remove(path)
        pytest.skip("only root can make a small file system")
    yield path
    subprocess.run(["umount", "-l", path], check=True)
    remove(path)


@pytest.fixture
def server(small: Path) -> Iterator[RunningServer]:
    running = start_server(small)
    yield running
    running.stop()


def fill(path: Path) -> None:
    fd = os.open(path / "ballast", os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        os.close(fd)


def hurried(server: RunningServer) -> aviato.SandboxDefaults:
    return aviato.SandboxDefaults(base_url=server.url, reconnect_timeout_seconds=0.5)


def new(server: RunningServer) -> str:
    with aviato.Sandbox(defaults=hurried(server)) as box:
        return box.exec(["echo", "new"]).result().stdout


def refuses(server: RunningServer) -> None:
    with pytest.raises(aviato.SandboxUnavailableError, match="disk is full") as caught:
        new(server)
    assert (caught.value.reason, caught.value.is_infrastructure, caught.value.retryable) == ("store", True, True)


def test_a_full_disk(small: Path, server: RunningServer) -> None:
    with aviato.Sandbox(base_url=server.url) as old, aviato.Sandbox(base_url=server.url, tags=["s"]) as stopped:
        old.wait()
        stopped.wait()
        fill(small)
        assert old.exec(["echo", "on"]).result().stdout == "on\n"
        with pytest.raises(aviato.SandboxFileError) as file_error:
            old.write_file("/tmp/f", bytes(100_000)).result()
        assert (file_error.value.reason, file_error.value.is_infrastructure) == ("host_disk_full", True)
        refuses(server)
        refuses(server)
        with pytest.raises(aviato.SandboxExecutionError) as gap:
            old.exec(["seq", "100000"], detach=True).result()
        assert (gap.value.reason, gap.value.is_infrastructure) == ("output_gap", True)
        stopped.stop().result()
        assert stopped.get_status() == "terminated"
        (small / "ballast").unlink()
        assert new(server) == "new\n" and old.exec(["seq", "3"], detach=True).result().stdout == "1\n2\n3\n"
        until(lambda: "s" not in {tag for box in aviato.Sandbox.list(base_url=server.url).result() for tag in box.tags}, 5)
        fill(small)
        server.stop(signal.SIGTERM)
        assert "Traceback" not in server.log.read_text()
        again = start_server(small)
        server.process, server.pid = again.process, again.pid
        assert old.exec(["echo", "on"]).result().stdout == "on\n"
        (small / "ballast").unlink()
        assert new(server) == "new\n"


def test_a_snapshot_on_a_full_disk_costs_no_sandbox(small: Path, server: RunningServer) -> None:
    with aviato.Sandbox(base_url=server.url) as box:
        box.exec(["sh", "-c", "head -c 100000 /dev/urandom >file; cksum file >sum"], check=True).result()
        fill(small)
        with pytest.raises(aviato.SandboxSnapshotError) as caught:
            box.snapshot().result()
        assert (caught.value.reason, caught.value.is_infrastructure) == ("disk_full", True)
        assert box.exec(["sh", "-c", "cksum file | cmp - sum && echo whole"]).result().stdout == "whole\n"
        (small / "ballast").unlink()
        taken = box.snapshot().result()
        with aviato.Sandbox(base_url=server.url, container_image=taken.snapshot_id) as other:
            assert other.exec(["sh", "-c", "cksum file | cmp - sum && echo whole"]).result().stdout == "whole\n"
        aviato.Sandbox.delete_snapshot(taken.snapshot_id, base_url=server.url).result()


def test_pulls_builds_and_forks_on_a_full_disk(small: Path, server: RunningServer, tmp_path: Path) -> None:
    """Each says what is wrong, leaves nothing half, and works once there is room."""
    layout = make_layout(tmp_path / "image", [tar_of({"data": os.urandom(2_000_000)})], {})
    pulled, built = f"oci:{layout}", aviato.Image.from_("host").run("echo built >/srv/built")
    with aviato.Session(hurried(server)) as session:
        parent = session.sandbox()
        parent.exec(["sh", "-c", "head -c 100000 /dev/urandom >file; cksum file >sum"], check=True).result()
        fill(small)
        [found] = session.prefetch([pulled]).result()
        assert (found.status, found.reason) == ("failed", "disk_full") and "full" in str(found.message)
        errors = []
        for make in (lambda: session.sandbox(container_image=built), lambda: parent.fork()[0]):
            with pytest.raises(aviato.AviatoError) as caught:
                make().exec(["true"]).result()
            errors.append(caught.value)
        assert [(error.reason, error.is_infrastructure) for error in errors] == [("store", True), ("disk_full", True)]
        (small / "ballast").unlink()
        session.sandbox(container_image=pulled).wait()
        assert session.sandbox(container_image=built).exec(["cat", "/srv/built"]).result().stdout == "built\n"
        [child] = parent.fork()
        assert child.exec(["sh", "-c", "cksum file | cmp - sum && echo whole"]).result().stdout == "whole\n"


def test_a_state_directory_that_is_read_only(small: Path) -> None:
    """The server says so and does not start; it does once that is over."""
    first = start_server(small)
    assert new(first) == "new\n"
    first.stop()
    for mode in ("ro", "rw"):
        subprocess.run(["mount", "-o", f"remount,{mode}", small], check=True)
        if mode == "ro":
            command = [sys.executable, "-c", SERVE, "serve", "--state-dir", str(small / "state"), "--socket", str(small / "s")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
            assert done.returncode == 1 and "Read-only file system" in done.stderr and "Traceback" not in done.stderr
    second = start_server(small)
    assert new(second) == "new\n"
    second.stop()
