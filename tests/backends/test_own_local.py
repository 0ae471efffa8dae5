"""A /usr/local of the sandbox's own, with what the machine has in its."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from aviato.server.backends.local import own_local

pytestmark = pytest.mark.anyio


def put(top: Path, name: str, content: str = "x") -> None:
    (top / name).parent.mkdir(parents=True, exist_ok=True)
    (top / name).write_text(content)


def test_directories_are_the_sandboxs_and_files_the_machines(tmp_path):
    for name in ("bin/tool", "lib/a/b/c/deep", "lib/python3.12/os.py", "share/doc/x/y", "bin/python3.12", "lib/libx.so.1"):
        put(tmp_path, name)
    (tmp_path / "lib" / "libx.so").symlink_to("libx.so.1")
    (tmp_path / "lib" / "python3.11" / "dist-packages").mkdir(parents=True)
    put(tmp_path, "lib/python3.11/site-packages/numpy-1.dist-info/METADATA")
    found = own_local.find(str(tmp_path))
    links = dict(found.links)
    assert links["/usr/local/bin/tool"] == "/.aviato/local/bin/tool" and links["/usr/local/lib/libx.so"] == "libx.so.1"
    assert found.copies == ["/usr/local/bin/python3.12"]
    own = {"", "/bin", "/lib", "/share", "/lib/a", "/lib/a/b", "/lib/python3.11", "/lib/python3.11/dist-packages"}
    assert {f"/usr/local{name}" for name in own} <= set(found.directories)
    for whole in ("/lib/a/b/c", "/lib/python3.12", "/lib/python3.11/site-packages"):
        assert links[f"/usr/local{whole}"] == f"/.aviato/local{whole}", "deep, or what pip would begin to replace"
    assert not set(found.directories) & set(links)
    for path in found.directories[1:]:
        assert os.path.dirname(path) in found.directories[: found.directories.index(path)]


def test_there_is_none_or_it_is_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    assert own_local.find(str(tmp_path / "missing")) is None and own_local.find(str(tmp_path / "link")) is None


def test_of_very_many_names_directories_are_the_machines(tmp_path, monkeypatch):
    monkeypatch.setattr(own_local, "MOST_NAMES", 10)
    for number in range(30):
        put(tmp_path, f"bin/{number}")
        put(tmp_path, f"share/{number}/x")
    found = own_local.find(str(tmp_path))
    assert set(found.directories) == {"/usr/local", "/usr/local/bin", "/usr/local/share"}


async def test_what_is_installed_is_there_counts_and_is_nobody_elses(backend, boxes):
    if not backend._layered or backend._facts.local is None:
        pytest.skip("this machine has no layers, or no /usr/local")
    before = sorted(os.listdir("/usr/local/bin"))
    install = (
        "printf '#!/bin/sh\\necho installed\\n' > tool && install -D -m 755 tool /usr/local/bin/aviato-tool && aviato-tool"
    )
    async with boxes.make_box(backend, limits={"disk": 8 << 20}) as box, boxes.make_box(backend) as other:
        assert (await box.sh(install)).stdout == "installed\n"
        assert (await box.sh("ls /usr/local/bin")).stdout.split() == sorted([*before, "aviato-tool"])
        assert (await other.sh("ls /usr/local/bin; rm -rf /usr/local/bin; ls /usr/local")).stdout.split()[
            : len(before)
        ] == before
        assert "bin" in os.listdir("/usr/local") and sorted(os.listdir("/usr/local/bin")) == before
        full = await box.sh("head -c 30000000 /dev/zero > /usr/local/lib/large; sleep 30")
        assert full.error is not None or full.returncode != 0, "it is the sandbox's disk"


async def test_what_the_machine_installs_comes_to_the_next_sandboxes(backend, boxes, tmp_path, monkeypatch):
    """Looked at every few seconds, as what is shared of /etc."""
    if not backend._layered or backend._facts.local is None:
        pytest.skip("this machine has no layers, or no /usr/local")
    found = backend._facts.local
    later = replace_links(found, ("/usr/local/bin/aviato-later", "/usr/bin/env"))
    monkeypatch.setattr(own_local, "find", lambda: later)
    monkeypatch.setattr("aviato.server.backends.local.base_roots.LOOK_SECONDS", 0.0)
    async with boxes.make_box(backend) as box:
        assert (await box.sh("readlink /usr/local/bin/aviato-later")).stdout == "/usr/bin/env\n"
    monkeypatch.setattr(own_local, "find", lambda: found)
    async with boxes.make_box(backend) as box:
        assert (await box.sh("ls /usr/local/bin")).returncode == 0
        assert (await box.sh("test -e /usr/local/bin/aviato-later")).returncode == 1


def replace_links(local, link):
    return local._replace(links=[*local.links, link])


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm on this machine")
async def test_where_it_cannot_be_ones_own_npm_installs_into_the_home(backend, boxes, monkeypatch):
    monkeypatch.setattr(own_local, "find", lambda: None)
    monkeypatch.setattr(backend, "_facts", replace(backend._facts, local=None))
    async with boxes.make_box(backend) as box:
        assert (await box.run("touch", "/usr/local/x")).returncode != 0
        assert (await box.run("npm", "prefix", "-g")).stdout == "/root/.local\n"
