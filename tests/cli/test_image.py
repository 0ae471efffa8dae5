"""`aviato image` against a real server, in real processes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.images.slow_registry import SlowRegistry
from tests.images.whole_images import make_layout, tar_of

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
AVIATO = [sys.executable, "-m", "aviato"]


@pytest.fixture(scope="module")
def server(own_server: Any) -> Any:
    return own_server


@pytest.fixture
def cli(server: Any, tmp_path: Path) -> Cli:
    """Run `aviato image …` to its end."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "AVIATO_BASE_URL": server.url}
        command = [*AVIATO, "image", *arguments]
        return subprocess.run(
            command, env=environment, input=stdin, capture_output=True, timeout=250, check=False, text=True, cwd=tmp_path
        )

    return run


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    return make_layout(tmp_path / "image", [tar_of({"name": str(tmp_path).encode()})], {"WorkingDir": "/work"}, "v1")


def test_an_import_and_what_there_is_of_it(cli: Cli, layout: Path) -> None:
    done = cli("import", "image", "--name", "v1")
    assert (done.returncode, done.stderr) == (0, "")
    image_id, reference = done.stdout.split()
    assert reference == f"oci:{layout}:v1" and image_id.startswith("sha256:")
    named = cli("import", "image", "--as", "tasks/one:1")
    assert (named.returncode, named.stdout.split()) == (0, [image_id, "tasks/one:1"])
    assert cli("pull", "tasks/one:1").stdout == named.stdout and cli("rm", "tasks/one:1").returncode == 0
    assert cli("rm", f"oci:{layout}").returncode == 0
    listed = cli("ls").stdout.splitlines()
    assert listed[0].split() == ["ID", "SIZE", "PULLED", "STATE", "NAMES"]
    [row] = [row.split() for row in listed if reference in row]
    assert image_id.startswith(row[0]) and row[-1] == reference
    assert image_id in cli("ls", "-q").stdout.split()
    [record] = [one for one in map(json.loads, cli("ls", "--json").stdout.splitlines()) if one["image_id"] == image_id]
    assert record["working_dir"] == "/work" and record["status"] == "here"
    assert json.loads(cli("inspect", image_id[7:27], "--json").stdout)["names"] == [reference]
    assert json.loads(cli("inspect", reference).stdout)["pinned"] is False
    assert cli("pin", reference).stdout.strip() == image_id
    assert "pinned" in cli("ls").stdout
    assert cli("prune").returncode == 0 and cli("inspect", reference).returncode == 0
    assert cli("unpin", reference).stdout.strip() == image_id
    assert cli("prune", "--unused-days", "1").stdout == "freed 0 bytes\n"
    done = cli("rm", reference, "sha256:" + "0" * 64)
    assert (done.returncode, done.stdout) == (125, f"{reference}\n")
    assert done.stderr.startswith("aviato: ") and "is not here" in done.stderr
    done = cli("inspect", reference)
    assert (done.returncode, done.stdout) == (125, "") and "aviato image ls" in done.stderr


def test_a_prefetch_says_what_failed_and_has_the_others(cli: Cli, layout: Path, tmp_path: Path) -> None:
    lines = f"# a data set\n\noci:{layout}\noci:{tmp_path}/none\noci:{layout}\n"
    done = cli("prefetch", "-", stdin=lines)
    assert done.returncode == 125 and done.stdout.split()[1:] == [f"oci:{layout}"]
    [said] = done.stderr.splitlines()
    assert said.startswith("aviato: ") and f"{tmp_path}/none" in said
    (tmp_path / "names").write_text(f"oci:{layout}\n")
    assert cli("prefetch", "names").stdout == done.stdout
    assert cli("pull", f"oci:{layout}").stdout == done.stdout
    assert "freed" in cli("prune", "--keep-bytes", "0").stdout


@pytest.mark.parametrize(
    "arguments",
    [("pull",), ("prefetch", "nothing-here"), ("import", "nothing-here"), ("prune", "--keep-bytes", "x"), ("nothing",)],
)
def test_a_wrong_command_line(cli: Cli, arguments: tuple[str, ...]) -> None:
    done = cli(*arguments)
    assert done.returncode == 2 and "Usage: aviato image" in done.stderr


def test_a_terminal_has_a_bar(server: Any, layout: Path) -> None:
    with SlowRegistry(f"oci:{layout}") as registry:
        here, there = pty.openpty()
        environment = {**os.environ, "AVIATO_BASE_URL": server.url, "TERM": "xterm", "COLUMNS": "120"}
        command = [*AVIATO, "image", "pull", registry.reference]
        running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=there, text=True)
        os.close(there)
        said = b""
        try:
            while b"0/1 layers" not in said:
                said += os.read(here, 65_536)
            registry.free.set()
            out, _ = running.communicate(timeout=250)
        finally:
            running.kill()
            running.wait()
            os.close(here)
        assert out.split()[1] == registry.reference and running.returncode == 0
