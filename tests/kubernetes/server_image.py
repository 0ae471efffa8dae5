"""The server's image, by `deploy/docker/Dockerfile` and this project's own builder, without a registry.

`python -m tests.kubernetes.server_image FILE.tar NAME:TAG` writes it to an archive that `docker load` and `ctr images import`
take. It begins with a root of Debian, which root makes by debootstrap once, and has wheels that pip makes here. Where none can
be made it says why, with 77.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.conftest import make_state_dir, remove, start_server
from tests.images import debian

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("python3", "python3-venv", "ca-certificates", "libcap2-bin", "libseccomp2", "uidmap")
"""What the Dockerfile asks of its BASE, and would have apt install."""
BACKENDS = ("docker", "kubernetes")
"""Extras of backends, as far as this version has them."""


def make(archive: Path, name: str) -> None:
    """Write it.

    Raises:
        debian.NoImageError: why this machine cannot make one.
    """
    base = debian.layout(PACKAGES)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = ",".join(extra for extra in BACKENDS if extra in known)
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder, "context")
        shutil.copytree(ROOT / "deploy" / "docker", context / "deploy" / "docker", ignore=shutil.ignore_patterns("wheels"))
        wheels = context / "deploy" / "docker" / "wheels"
        run(sys.executable, "-m", "pip", "wheel", "-q", "-w", str(wheels), f"{ROOT}[{extras}]")
        state = make_state_dir()
        server = start_server(state)
        try:
            aviato = [sys.executable, "-c", "from aviato.cli.main import main; main()", "image"]
            at = {"AVIATO_BASE_URL": server.url}
            run(*aviato, "import", str(base), "--as", "localhost/aviato/base:1", **at)
            arguments = ["--build-arg=BASE=localhost/aviato/base:1", f"--build-arg=EXTRAS={extras}", f"--tag={name}"]
            run(*aviato, "build", "--file", str(context / "deploy/docker/Dockerfile"), *arguments, str(context), **at)
            run(*aviato, "export", name, str(archive), **at)
        finally:
            server.stop()
            remove(state)


def run(*command: str, **variables: str) -> None:
    """A command that has to go well."""
    done = subprocess.run(command, env={**os.environ, **variables}, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    try:
        make(Path(sys.argv[1]).absolute(), sys.argv[2])
    except debian.NoImageError as error:
        print(error)
        sys.exit(debian.CANNOT)
