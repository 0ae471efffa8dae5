"""Packages from the registry that rows need, installed once for all runs in this checkout."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.environments import interpreter

MADE = Path(__file__).parents[2] / ".venv" / "ordinary"
SECONDS = 900


def installed(requirements: tuple[str, ...]) -> Path:
    """A directory with them, for the Python of sandboxes; the test is skipped where pip cannot have them."""
    executable = interpreter().executable
    name = hashlib.sha256(repr((executable, requirements)).encode()).hexdigest()[:16]
    MADE.mkdir(parents=True, exist_ok=True)
    directory = MADE / name
    with (MADE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            making = MADE / f"{name}.making"
            shutil.rmtree(making, ignore_errors=True)
            done = subprocess.run(
                [executable, "-m", "pip", "install", "-q", "--no-compile", "--target", making, *requirements],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            if done.returncode:
                shutil.rmtree(making, ignore_errors=True)
                pytest.skip(f"pip could not install {' '.join(requirements)}: {done.stderr[-300:]}")
            making.rename(directory)
    return directory
