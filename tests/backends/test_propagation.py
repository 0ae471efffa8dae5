"""Machines whose mounts are shared, as systemd makes them: what is mounted there later comes to no sandbox."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.environments import make_environment, site_of

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, subprocess, sys
from tests.backends.boxes import make_box
from tests.real_backend import open_backend

async def main(packages, later):
    async for backend in open_backend("local"):
        async with make_box(backend) as box:
            assert (await box.sh("echo works")).stdout == "works\\n"
        async with make_box(backend, packages=packages) as box:
            subprocess.run(["mount", "-t", "tmpfs", "none", later], check=True)
            try:
                print((await box.sh("grep -c /site-packages /proc/self/mountinfo")).stdout.strip())
            finally:
                subprocess.run(["umount", later], check=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only the machine's root mounts")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")
def test_what_is_mounted_later_is_not_seen():
    place = Path(tempfile.mkdtemp(prefix="aviato-test-", dir="/tmp"))
    try:
        environment = make_environment(place / "env", greetings="")
        later = site_of(environment) / "later"
        later.mkdir()
        script = 'mount --make-rshared / && exec "$@"'
        own = ["unshare", "--mount", "--propagation", "shared", "sh", "-c", script, "sh"]
        argv = [*own, sys.executable, "-c", PROGRAM, str(environment), str(later)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=250)
        if "unshare failed" in done.stderr:
            pytest.skip(done.stderr)
        assert done.stdout.split() == ["1"], done.stderr
    finally:
        shutil.rmtree(place)
