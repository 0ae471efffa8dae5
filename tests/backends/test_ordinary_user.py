"""The same suites as an ordinary user, where this run is root and there is such a user with an environment it can read."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USERS = ("aviato-test", "aviato-ci")
SUITES = ("tests/backends", "tests/images", "tests/supervisor/test_killing.py", "tests/supervisor/test_ending.py")


def user():
    for name in USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def interpreter(who):
    candidates = [os.environ.get("AVIATO_TEST_USER_PYTHON", ""), str(ROOT.parent / "venv-user" / "bin" / "python")]
    for candidate in candidates:
        argv = ["runuser", "-u", who.pw_name, "--", candidate, "-c", "import pytest, anyio, pydantic, hypothesis"]
        if candidate and os.path.exists(candidate) and subprocess.run(argv, cwd="/", capture_output=True).returncode == 0:
            return candidate
    return None


@pytest.mark.skipif(os.geteuid() != 0, reason="this run is an ordinary user's")
@pytest.mark.skipif(user() is None or shutil.which("runuser") is None, reason="no ordinary user to run as")
@pytest.mark.slow
def test_as_an_ordinary_user(tmp_path):
    who = user()
    python = interpreter(who)
    if python is None:
        pytest.skip("no environment that the ordinary user can read (AVIATO_TEST_USER_PYTHON)")
    home = Path("/var/tmp") / f"aviato-tests-{os.getpid()}"
    try:
        home.mkdir(mode=0o755)
        for name in ("aviato", "tests", "pyproject.toml"):
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, home / name)
        subprocess.run(["chown", "-R", who.pw_name, home], check=True)
        argv = ["runuser", "-u", who.pw_name, "--", "env", "-i", f"HOME={home}", "PATH=/usr/local/bin:/usr/bin:/bin", python]
        argv += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", f"--basetemp={home}/tmp", *SUITES]
        done = subprocess.run(argv, cwd=home, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    finally:
        shutil.rmtree(home, ignore_errors=True)
