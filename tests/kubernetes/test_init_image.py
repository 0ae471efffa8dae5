"""The image that brings aviato-init into pods, for one architecture and for several: by programs that have nothing of ours."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from aviato.server.backends.local import binary
from tests.images.real_registry import real_registry
from tests.images.whole_images import ARCHITECTURE

TOOL = Path(__file__).parents[2] / "deploy" / "docker" / "init_image.py"
VARIABLE = "AVIATO_TEST_ARM64_INIT"
ARM64 = os.environ.get(VARIABLE)
"""Now: tests are made without variables of ours. `.ci/aarch64` compiles it, and names it."""
TAG = "0.1.0"


def made(folder: Path, *programs: str | Path, name: str = f"registry.example.org/team/aviato-init:{TAG}") -> Path:
    """The archive."""
    path = folder / "init.tar"
    done = run(sys.executable, TOOL, path, name, *programs)
    assert done.returncode == 0, done.stderr
    return path


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(one) for one in command], capture_output=True, text=True, check=False)


def skopeo(*words: str | Path) -> str:
    if shutil.which("skopeo") is None:
        pytest.skip("needs skopeo")
    done = run("skopeo", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def program_in(image: Path) -> tuple[dict[str, Any], bytes]:
    """The configuration of an image that skopeo has left in a directory, and the program in its only layer."""
    manifest = json.loads((image / "manifest.json").read_text())
    config = json.loads((image / manifest["config"]["digest"].partition(":")[2]).read_text())
    (layer,) = manifest["layers"]
    with tarfile.open(image / layer["digest"].partition(":")[2]) as tar:
        (entry,) = (one for one in tar.getmembers() if one.isfile())
        assert (entry.name, entry.mode) == ("usr/local/bin/aviato-init", 0o755)
        content = tar.extractfile(entry)
        assert content is not None
        return config, content.read()


@pytest.fixture
def arm64() -> Path:
    """The program for the other architecture, or the reason why there is none."""
    if ARM64 is None:
        pytest.skip(f"{VARIABLE}: not set; .ci/aarch64 compiles aviato-init for arm64, where it can, and names it")
    return Path(ARM64)


def test_for_this_machine(tmp_path: Path) -> None:
    """Any program of images reads it, the same comes twice, and what is in it runs."""
    path = made(tmp_path, binary.found())
    digest = hashlib.sha256(path.read_bytes()).digest()
    assert hashlib.sha256(made(tmp_path, binary.found()).read_bytes()).digest() == digest
    skopeo("copy", f"oci-archive:{path}", f"dir:{tmp_path}/image")
    config, program = program_in(tmp_path / "image")
    assert (config["os"], config["architecture"]) == ("linux", ARCHITECTURE)
    (tmp_path / "program").write_bytes(program)
    (tmp_path / "program").chmod(0o755)
    assert run(tmp_path / "program", "--version").stdout == run(binary.found(), "--version").stdout != ""


def test_for_several(tmp_path: Path, arm64: Path) -> None:
    """One name for all of them: a registry has the index, and each machine gets its own."""
    path = made(tmp_path, arm64, binary.found())
    said = json.loads(skopeo("inspect", "--raw", f"oci-archive:{path}"))
    assert [one["platform"]["architecture"] for one in said["manifests"]] == ["amd64", "arm64"]
    with real_registry(tmp_path) as host:
        name = f"docker://{host}/aviato-init:{TAG}"
        skopeo("copy", "--all", "--dest-tls-verify=false", f"oci-archive:{path}", name)
        for architecture, there in (("arm64", arm64), ("amd64", Path(binary.found()))):
            image = tmp_path / architecture
            skopeo("--override-arch", architecture, "copy", "--src-tls-verify=false", name, f"dir:{image}")
            config, program = program_in(image)
            assert config["architecture"] == architecture and program == there.read_bytes()


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ([__file__], "is no program"),
        (["/none"], "No such file"),
        ([binary.found(), binary.found()], "there is another one for"),
    ],
)
def test_what_it_cannot_use_is_named(tmp_path: Path, programs: list[str], message: str) -> None:
    done = run(sys.executable, TOOL, tmp_path / "init.tar", "aviato-init:1", *programs)
    assert done.returncode == 1 and message in done.stderr and programs[-1] in done.stderr
    assert not (tmp_path / "init.tar").exists()


def test_other_machines_are_named(tmp_path: Path) -> None:
    other = bytearray(Path(binary.found()).read_bytes())
    other[18:20] = (243).to_bytes(2, "little")
    (tmp_path / "riscv").write_bytes(other)
    done = run(sys.executable, TOOL, tmp_path / "init.tar", "aviato-init:1", tmp_path / "riscv")
    assert done.returncode == 1 and "machine 243; there are images for amd64, arm64" in done.stderr


def test_it_is_told_its_tag(tmp_path: Path) -> None:
    done = run(sys.executable, TOOL, tmp_path / "init.tar", "localhost:5000/aviato-init", binary.found())
    assert done.returncode == 1 and "NAME:TAG" in done.stderr
