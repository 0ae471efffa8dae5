"""A virtual environment for each peer, made once and kept below the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peers.catalogue import Peer

INSTALL_SECONDS = 600.0


class NotInstalledError(Exception):
    """A peer's packages could not be installed, or are not and must not be."""


def cache() -> Path:
    """Where the environments lie."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "aviato" / "benchmarks"


def interpreter(peer: Peer, *, install: bool = True) -> list[str]:
    """The command that runs a script in a peer's environment.

    Raises:
        NotInstalledError: with pip's last words.
    """
    base = getattr(sys, "_base_executable", sys.executable)
    if peer.kind == "aviato":
        return [sys.executable, "-P"]
    if not peer.requirements:
        return [base, "-I", "-S"]
    key = hashlib.sha256("\n".join((base, sys.version, *peer.requirements)).encode()).hexdigest()[:12]
    target = cache() / f"{peer.script}-{key}"
    python, done = target / "bin" / "python", target / "installed"
    if not done.exists():
        if not install:
            raise NotInstalledError(f"{' '.join(peer.requirements)} is not installed in {target}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{target}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                _make(target, python, peer.requirements)
                done.touch()
    return [str(python), "-I"]


def _make(target: Path, python: Path, requirements: tuple[str, ...]) -> None:
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target, with_pip=True, symlinks=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"pip took more than {INSTALL_SECONDS:.0f} s for {' '.join(requirements)}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise NotInstalledError(f"pip install {' '.join(requirements)}: {said[-1]}")
