"""Every way of installation is told apart, and the commands that are printed are those of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASK = """
import json, sys
sys.path[:0] = sys.argv[1].split(":")
for name in sys.argv[2].split():
    sys.modules[name] = None
from aviato import installation
print(json.dumps([installation.extra_command("wandb"), installation.__file__]))
"""
METADATA = """Metadata-Version: 2.4
Name: aviato-sandbox
Version: 9.1.2
Provides-Extra: wandb
Requires-Dist: click<9,>=8.1
Requires-Dist: wandb<0.32,>=0.24; extra == 'wandb'
Requires-Dist: weave>=1; (python_version >= '3.8') and extra == "wandb"
Requires-Dist: harbor; extra == 'harbor'
"""
PIP = [sys.executable, "-m", "pip", "install"]


def site(path: Path, direct: dict[str, Any] | None = None) -> Path:
    """A directory of packages with this aviato in it, as an installer leaves it."""
    (path / "aviato").mkdir(parents=True)
    for name in ("__init__.py", "installation.py"):
        shutil.copy(ROOT / "aviato" / name, path / "aviato")
    information = path / "aviato_sandbox-9.1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(METADATA)
    if direct is not None:
        (information / "direct_url.json").write_text(json.dumps(direct))
    return path


def ask(*path: Path, without: str = "", **environment: str) -> str:
    """What is printed for the extra, by the aviato in the first of these paths."""
    command = [sys.executable, "-I", "-c", ASK, ":".join(map(str, path)), without]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=250)
    extra, file = json.loads(done.stdout)
    assert file == str(path[0] / "aviato" / "installation.py")
    return str(extra)


def test_from_an_index(tmp_path: Path) -> None:
    extra = ask(site(tmp_path / "site"))
    assert shlex.split(extra) == [*PIP, "aviato-sandbox[wandb]"]


@pytest.mark.parametrize("name", ["aviato_sandbox-9.1.2-py3-none-any.whl", "aviato_sandbox-9.1.2.tar.gz"])
@pytest.mark.parametrize("folder", ["plain", "with a space", "it's [odd]"])
def test_from_a_file(tmp_path: Path, name: str, folder: str) -> None:
    file = tmp_path / folder / name
    file.parent.mkdir()
    file.touch()
    extra = ask(site(tmp_path / "site", {"url": file.as_uri(), "archive_info": {}}))
    assert shlex.split(extra) == [*PIP, f"{file}[wandb]"]


def test_from_a_directory(tmp_path: Path) -> None:
    extra = ask(site(tmp_path / "site", {"url": tmp_path.as_uri(), "dir_info": {}}))
    assert shlex.split(extra) == [*PIP, f"{tmp_path}[wandb]"]


@pytest.mark.parametrize("info", ["dir_info", "archive_info"])
def test_what_it_came_from_is_gone(tmp_path: Path, info: str) -> None:
    """The extra's own requirements are what can be installed."""
    extra = ask(site(tmp_path / "site", {"url": (tmp_path / "gone.whl").as_uri(), info: {}}))
    assert shlex.split(extra) == [*PIP, "wandb<0.32,>=0.24", "weave>=1"]


@pytest.mark.parametrize(
    ("direct", "requirement"),
    [
        ({"url": "https://example.org/a.whl", "archive_info": {}}, "https://example.org/a.whl"),
        (
            {
                "url": "https://example.org/a.git",
                "vcs_info": {"vcs": "git", "commit_id": "c0ffee"},
            },
            "git+https://example.org/a.git@c0ffee",
        ),
        (
            {"url": "https://example.org/a", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}, "subdirectory": "below/it"},
            "git+https://example.org/a@c0ffee#subdirectory=below/it",
        ),
    ],
)
def test_from_an_address(tmp_path: Path, direct: dict[str, Any], requirement: str) -> None:
    extra = ask(site(tmp_path / "site", direct))
    assert shlex.split(extra) == [*PIP, f"aviato-sandbox[wandb] @ {requirement}"]


@pytest.mark.parametrize("beside", [False, True], ids=["on the path", "on the path, before an installed one"])
def test_a_source_tree(tmp_path: Path, beside: bool) -> None:
    """The tree that runs is installed, whatever else is there."""
    tree = tmp_path / "a tree"
    (tree / "aviato").mkdir(parents=True)
    for name in ("pyproject.toml", "aviato/__init__.py", "aviato/installation.py"):
        shutil.copy(ROOT / name, tree / name)
    extra = ask(tree, *([site(tmp_path / "site")] if beside else []))
    assert shlex.split(extra) == [*PIP, "-e", f"{tree}[wandb]"]


@pytest.mark.parametrize("text", ["", "no [ TOML", '[project]\nname = "another"\n'])
def test_a_project_around_it_is_not_its_own(tmp_path: Path, text: str) -> None:
    (site(tmp_path / "site") / "pyproject.toml").write_text(text)
    assert shlex.split(ask(tmp_path / "site")) == [*PIP, "aviato-sandbox[wandb]"]


def test_without_pip_uv_installs(tmp_path: Path) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    extra = ask(site(tmp_path / "site"), without="pip", PATH=str(uv.parent))
    assert shlex.split(extra) == ["uv", "pip", "install", "--python", sys.executable, "aviato-sandbox[wandb]"]


def test_without_both_pip_is_brought(tmp_path: Path) -> None:
    extra = ask(site(tmp_path / "site"), without="pip", PATH=str(tmp_path))
    python = shlex.quote(sys.executable)
    assert extra == f"{python} -m ensurepip && {python} -m pip install 'aviato-sandbox[wandb]'"


STRANGERS = re.compile(r"""(?:pip3? install|uv add|--with)\b[^\n`"#]*?[\s'"]aviato(?![\w/.-])""")
"""Commands that would bring a project of that name from the registry."""


@pytest.mark.parametrize(
    "line",
    [
        "pip install aviato",
        "pip install 'aviato[wandb]'",
        "pip install -U aviato==1",
        "uv pip install aviato[x]",
        "uv add aviato",
    ],
)
def test_what_would_be_found(line: str) -> None:
    assert STRANGERS.search(line)


def test_nothing_tells_anybody_to_install_the_stranger_s_project() -> None:
    found = []
    for path in texts():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [f"{path.relative_to(ROOT)}:{n}: {line}" for n, line in enumerate(lines, 1) if STRANGERS.search(line)]
    assert found == []


def texts() -> Iterator[Path]:
    """All that people read or run, but this file, and the changelog, which tells of the name."""
    for top in ("README.md", "CONTRIBUTING.md", "pyproject.toml", ".ci", "aviato", "benchmarks", "docs", "examples", "tests"):
        for path in [ROOT / top, *(ROOT / top).rglob("*")]:
            known = path.suffix in {".py", ".md", ".txt", ".toml", ".c", ".sh"} or path.parent.name == ".ci"
            if known and path.is_file() and path != Path(__file__).resolve():
                yield path
