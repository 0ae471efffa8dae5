"""`aviato image` against a real server, in this process."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunningServer, make_state_dir, remove, start_server
from tests.images.whole_images import make_layout, tar_of


@pytest.fixture(scope="module")
def own_server() -> Iterator[RunningServer]:
    """One whose images are these tests' alone."""
    directory = make_state_dir()
    running = start_server(directory)
    try:
        yield running
    finally:
        running.stop()
        remove(directory)


@pytest.fixture
def image(own_server: RunningServer, aviato_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`aviato image …`."""
    monkeypatch.setenv("AVIATO_BASE_URL", own_server.url)
    return lambda *arguments: aviato_cli("image", *arguments)


def layout(tmp_path: Path, name: str = "layout") -> Path:
    return make_layout(tmp_path / name, [tar_of({"own": f"{tmp_path}{name}".encode() * 100})], {"Labels": {"of": name}})


def test_an_image_is_imported_listed_and_removed(image: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    path = layout(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = image("import", "layout", "--name", "mine:1")
    assert (done.status, done.err) == (0, "") and done.out.startswith("mine:1: sha256:") and "pulled in" in done.out
    rows = [line.split() for line in image("ls").out.splitlines()]
    assert rows[0] == ["IMAGE", "ID", "SIZE", "PULLED", "USED", "STATUS"]
    assert {row[0] for row in rows[1:]} == {"docker.io/library/mine:1", f"oci:{path}"} and rows[1][-1] == "here"
    (listed,) = map(json.loads, image("ls", "--json").out.splitlines())
    assert listed["image_id"] == image("ls", "-q").out.strip() and listed["labels"] == {"of": "layout"}
    shown = image("inspect", "mine:1").out
    assert f"image_id: {listed['image_id']}\n" in shown and "labels: of=layout\n" in shown
    assert json.loads(image("inspect", "--json", "mine:1").out)["image_id"] == listed["image_id"]
    assert image("pin", "mine:1").out == "mine:1\n"
    assert image("prune").out == "0 B freed\n" and image("ls").out.splitlines()[1].endswith("pinned")
    assert image("pin", "--off", "mine:1").status == 0
    done = image("rm", "mine:1", "not-here", f"oci:{path}")
    assert done.status == 125 and done.out == f"docker.io/library/mine:1\noci:{path}\n"
    assert done.err == "aviato: the image 'not-here' is not here; `aviato image ls` lists those that are\n"
    assert image("ls", "-q").out == ""


def test_a_file_names_what_is_prefetched(image: Callable[..., Any], tmp_path: Path) -> None:
    first, second = layout(tmp_path, "first"), layout(tmp_path, "second")
    (tmp_path / "column").write_text(f"# of a data set\noci:{first}\n\n  oci:{second}\noci:{first}\noci:{tmp_path}/nothing\n")
    done = image("prefetch", str(tmp_path / "column"))
    assert done.status == 125
    assert sorted(line.partition(": ")[0] for line in done.out.splitlines()) == [f"oci:{first}", f"oci:{second}"]
    assert done.err.startswith(f"aviato: oci:{tmp_path}/nothing: ") and done.err.count("\n") == 1
    done = image("pull", "--json", f"oci:{first}", "host")
    infos = {info["reference"]: info for info in map(json.loads, done.out.splitlines())}
    assert done.status == 0 and infos[f"oci:{first}"]["pull_seconds"] is None and infos["host"]["status"] == "here"
    done = image("prune", "--unused", "3600")
    assert (done.status, done.out) == (0, "0 B freed\n")
    assert image("prune").out != "0 B freed\n"


def test_references_come_by_standard_input(own_server: RunningServer, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aviato", "image", "prefetch", "-"]
    environment = {**os.environ, "AVIATO_BASE_URL": own_server.url}
    given = f"oci:{layout(tmp_path)}\n"
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, timeout=40, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(given.strip())


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["pull"], 2, "IMAGE"),
        (["pull", "Upper"], 125, "lower case"),
        (["import", "/nowhere"], 2, "does not exist"),
        (["import", "/etc/hostname"], 125, "docker-archive:/etc/hostname"),
        (["prefetch", "/nowhere"], 2, "No such file"),
        (["inspect", "not/here"], 125, "aviato image pull"),
        (["prune", "--most-bytes", "some"], 2, "number of bytes"),
        (["list"], 2, "No such command"),
    ],
)
def test_what_is_refused(image: Callable[..., Any], arguments: list[str], status: int, words: str) -> None:
    done = image(*arguments)
    assert done.status == status and words in done.err and "Traceback" not in done.err


def test_a_terminal_has_bars(own_server: RunningServer, tmp_path: Path) -> None:
    """They are on standard error, and gone at the end; what came is on standard output."""
    controller, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "aviato", "image", "pull", f"oci:{layout(tmp_path)}"],
            env={**os.environ, "AVIATO_BASE_URL": own_server.url, "TERM": "xterm"},
            stdout=subprocess.PIPE,
            stderr=terminal,
            timeout=40,
            check=False,
        )
        assert done.returncode == 0 and done.stdout.startswith(b"oci:")
        assert b"\x1b[" in os.read(controller, 65536)
    finally:
        os.close(controller)
        os.close(terminal)
