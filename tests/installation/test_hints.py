"""Each command that aviato prints to install something works as printed, in an environment that has just been made."""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installation.conftest import call

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

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
    # What is compiled makes no difference here, and takes most of the time.
    variables = {"PATH": f"{uv.parent}:/usr/local/bin:/usr/bin:/bin", "CC": "no-such-compiler"}
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
@pytest.mark.parametrize("way", ["checkout", "sources", "index"])
def test_the_hint_for_the_compiled_part(way: str, tool: str, clone: Path, uv: Path, built: Path, tmp_path: Path) -> None:
    """Installed where no compiler was, then with one."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler on this machine")
    python, install = make(tmp_path / "environment", tool, uv, clone)
    variables = {"PATH": f"{uv.parent}:/usr/local/bin:/usr/bin:/bin"}
    tree = tmp_path / "tree"
    if way == "checkout":
        shutil.copytree(clone, tree)
    [sources] = built.glob("*.tar.gz")
    if way == "index":
        variables |= {"PIP_FIND_LINKS": str(built), "UV_FIND_LINKS": str(built)}
    given = {"checkout": ["-e", tree], "sources": [sources], "index": ["--no-binary", "aviato-sandbox", "aviato-sandbox"]}[way]
    fresh = [] if tool == "pip" else ["--no-cache"]
    call(*install, *fresh, *given, environment=variables | {"CC": "no-such-compiler", "PIP_NO_CACHE_DIR": "1"})
    ask = "from aviato.server.backends.local import native; print(native.load() is not None)"
    assert call(python, "-c", ask) == "False\n"
    from_doctor = "from aviato.server.backends.local import probe; print(probe.native_check(False).remedy)"
    packages, both, hint = call(python, "-c", from_doctor, environment=variables).strip().partition(" && ")
    assert packages == "sudo apt install gcc libc6-dev" and both
    call("bash", "-c", hint, environment=variables)
    assert call(python, "-c", ask) == "True\n"
