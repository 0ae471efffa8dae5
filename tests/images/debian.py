"""The image of a distribution: a layout of the root that `.ci/root` makes by debootstrap, once for all users of the machine.

`python -m tests.images.debian` prints its reference, for `AVIATO_TEST_IMAGE`. Where none can be made it says why, with 77.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.images.whole_images import make_layout

SCRIPT = Path(__file__).parents[2] / ".ci" / "root"
PACKAGES = ("python3", "python-is-python3", "python3-pytest", "python3-pygments", "procps")
"""What programs of the tests need beside Debian's base; debootstrap knows of no alternatives, such as pytest has."""
CONFIG = {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["bash"]}
CANNOT = 77


class NoImageError(Exception):
    """Why there is none."""


def layout(packages: Sequence[str] = PACKAGES) -> Path:
    """Where it lies, made if it is not there.

    Args:
        packages: beside Debian's base.

    Raises:
        NoImageError: why this machine cannot make one.
    """
    made_of = [SCRIPT.read_text(), tuple(packages), CONFIG, Path("/etc/os-release").read_text()]
    name = f"debian-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]}"
    of_root = directory(0) / name
    if of_root.exists() and of_root.lstat().st_uid == 0:  # Nobody else could have put it there.
        return of_root
    if os.geteuid() != 0:
        raise NoImageError("only root makes the root of a Debian, and none is there")
    directory(0).mkdir(mode=0o711, parents=True, exist_ok=True)
    lock = os.open(directory(0), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not of_root.exists():
            make(of_root, packages)
    finally:
        os.close(lock)
    return of_root


def directory(uid: int) -> Path:
    """Where the tests of a user keep what others may read; see `base_roots.py`."""
    return Path(tempfile.gettempdir()) / f"aviato-test-{uid}"


def make(there: Path, packages: Sequence[str]) -> None:
    """Make it."""
    with tempfile.TemporaryDirectory(dir=there.parent) as folder:
        root, tar, image = (Path(folder, name) for name in ("root", "root.tar", "image"))
        done = subprocess.run([SCRIPT, root, ",".join(packages)], capture_output=True, text=True)
        if done.returncode == CANNOT:
            raise NoImageError(done.stdout.strip().splitlines()[-1])
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        subprocess.run(["tar", "--numeric-owner", "--xattrs", "-C", root, "-cf", tar, "."], check=True)
        make_layout(image, [tar], CONFIG)
        image.rename(there)


if __name__ == "__main__":
    try:
        print(f"oci:{layout()}")
    except NoImageError as error:
        print(error)
        sys.exit(CANNOT)
