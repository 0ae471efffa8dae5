"""Each command that aviato prints to install something works as printed, in an environment that has just been made."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installation.conftest import call, clean

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WAYS = ("checkout", "path", "directory", "wheel", "sources", "index", "address", "repository", "gone")
EXTRA = "prometheus"
MODULE = "prometheus_client"
SAID = "import aviato.integrations.prometheus"
LOOK = """
import importlib.metadata as m, os, aviato, MODULE
assert not any(d.metadata["Name"] == "aviato" for d in m.distributions()), "somebody else's project is here"
print(os.path.dirname(aviato.__file__))
"""


@pytest.fixture(scope="module")
def built(clone: Path, uv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel and the sources."""
    folder = tmp_path_factory.mktemp("built")
    call(uv, "build", "-q", "--out-dir", folder, clone)
    return folder


@pytest.fixture(scope="module")
def site(built: Path) -> Iterator[str]:
    """The folder, served on this machine."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(built))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def make(environment: Path, tool: str, uv: Path, clone: Path) -> tuple[Path, list[str | Path]]:
    """An environment with what aviato depends on: its Python, and the beginning of a command that installs there."""
    python = environment / "bin" / "python"
    call(uv, "venv", "-q", "--python", sys.executable, *(["--seed"] if tool == "pip" else []), environment)
    needed = tomllib.loads((clone / "pyproject.toml").read_text())["project"]["dependencies"]
    call(uv, "pip", "install", "-q", "--python", python, *needed)
    command = [python, "-m", "pip", "install"] if tool == "pip" else [uv, "pip", "install", "--python", python]
    return python, [*command, "-q"]


@pytest.mark.parametrize("tool", ["pip", "uv"])
@pytest.mark.parametrize("way", WAYS)
def test_the_hint_for_an_extra(way: str, tool: str, clone: Path, uv: Path, built: Path, site: str, tmp_path: Path) -> None:
    python, install = make(tmp_path / "it's an environment", tool, uv, clone)
    own = tmp_path / "with a space"
    own.mkdir()
    [wheel], [sources] = built.glob("*.whl"), built.glob("*.tar.gz")
    tree = own / "tree"
    variables = {"PATH": f"{uv.parent}:/usr/local/bin:/usr/bin:/bin"}
    if way in ("checkout", "path", "directory"):
        shutil.copytree(clone, tree)
    if way == "path":
        variables["PYTHONPATH"] = str(tree)
    elif way == "index":
        variables |= {"PIP_FIND_LINKS": str(built), "UV_FIND_LINKS": str(built)}
        call(*install, "aviato-sandbox", environment=variables)
    else:
        from_where: dict[str, list[str | Path]] = {
            "checkout": ["-e", tree],
            "directory": [tree],
            "wheel": [shutil.copy(wheel, own)],
            "gone": [shutil.copy(wheel, own)],
            "sources": [shutil.copy(sources, own)],
            "address": [f"aviato-sandbox @ {site}/{wheel.name}"],
            "repository": [f"aviato-sandbox @ git+{clone.as_uri()}"],
        }
        call(*install, *from_where[way], environment=variables)
    if way == "gone":
        (own / wheel.name).unlink()

    refused = f"try: {SAID}\nexcept ImportError as error: print(error)"
    said = call(python, "-c", refused, environment=variables)
    _, told, hint = said.strip().partition("install it with: ")
    assert told, said
    before = call(python, "-c", "import aviato; print(aviato.__file__.rpartition('/')[0])", environment=variables)
    call("bash", "-c", hint, environment=variables)
    assert call(python, "-c", LOOK.replace("MODULE", MODULE), environment=variables) == before
    call(python, "-c", SAID)
    assert hint.startswith("uv pip install") == (tool == "uv")


@pytest.mark.parametrize("tool", ["pip", "uv"])
@pytest.mark.parametrize("way", ["checkout", "sources"])
def test_what_a_build_without_cargo_says(way: str, tool: str, clone: Path, uv: Path, built: Path, tmp_path: Path) -> None:
    """Nothing is installed that could make no sandbox; with cargo the same command works."""
    python, install = make(tmp_path / "environment", tool, uv, clone)
    without = tmp_path / "without"
    without.mkdir()
    for directory in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in Path(directory).iterdir():
            if program.name not in ("cargo", "rustc") and not os.path.lexists(without / program.name):
                (without / program.name).symlink_to(program)
    tree = tmp_path / "tree"
    if way == "checkout":
        shutil.copytree(clone, tree)
    [sources] = built.glob("*.tar.gz")
    given = {"checkout": ["-e", tree], "sources": [sources]}[way]
    fresh = ["--no-cache-dir"] if tool == "pip" else ["--no-cache"]
    environment = clean({"PATH": f"{uv.parent}:{without}", "CARGO_HOME": str(tmp_path / "nowhere")})
    done = subprocess.run(
        [*install, *fresh, *given], env=environment, capture_output=True, text=True, timeout=840, cwd=tmp_path, check=False
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0 and "there is no cargo; repair: sudo apt install cargo libc6-dev" in said, said
    call(*install, *fresh, *given)
    ask = "from aviato.server.backends.local import binary; print(binary.trouble())"
    assert call(python, "-c", ask) == "None\n"
