"""`aviato-init probe`: what it says of a machine is what util-linux's unshare(1) can do there."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from aviato.server.backends.local import binary

pytestmark = pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")

UID = 1_950_000_000
IN = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
ALL = ("user_namespaces", "id_map", "mounts", "filters", "network", "root", "proc", "overlay")
SITUATIONS = {
    "here": ([], {}),
    "no user namespaces are left": ([*IN, 'echo 0 > /proc/sys/user/max_user_namespaces; "$@"', "sh"], {"user_namespaces": 28}),
    "no network namespaces are left": ([*IN, 'echo 0 > /proc/sys/user/max_net_namespaces; "$@"', "sh"], {"network": 28}),
    "parts of /proc are covered": ([*IN, 'mount -t tmpfs none /proc/tty; "$@"', "sh"], {"proc": errno.EPERM}),
    "ids are not mapped": (["unshare", "--user"], {"user_namespaces": errno.EPERM}),
}
ORACLES = {
    "user_namespaces": ["--user"],
    "mounts": ["--user", "--map-root-user", "--mount"],
    "network": ["--user", "--map-root-user", "--net"],
    "root": ["--user", "--map-root-user", "--mount"],
    "proc": ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"],
}


@pytest.fixture
def scratch():
    """On a file system that overlays lie on, and where root's ids of sandboxes pass through."""
    directory = Path(tempfile.mkdtemp(prefix="aviato-test-", dir="/var/tmp"))
    directory.chmod(0o777)
    yield directory
    for path in (directory / "work").glob("*"):
        path.chmod(0o700)
    shutil.rmtree(directory)


def tried(scratch, before, *flags):
    argv = [*before, binary.found(), "probe", "--scratch", str(scratch), *flags]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=250, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_it_says_what_can_be_done(scratch, situation):
    before, failing = SITUATIONS[situation]
    said = tried(scratch, before)
    for name, number in failing.items():
        assert (said[name]["ok"], said[name]["errno"]) == (False, number)
        assert said[name]["step"] in ("clone", "inside")
    for name, flags in ORACLES.items():
        can = subprocess.run([*before, "unshare", *flags, "true"], capture_output=True, check=False).returncode == 0
        assert said.get(name, {"ok": False})["ok"] == can, (name, said)
    if not failing:
        assert {name for name in ALL if said[name] != {"ok": True}} <= {"overlay"}  # Of the file system.
        assert ("idmapped" in said) == (os.geteuid() == 0)
    assert ("chroot" in said) == (said["user_namespaces"].get("errno") == errno.EPERM)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives sandboxes ids of their own")
def test_under_root_it_tries_with_a_sandboxes_id(scratch):
    said = tried(scratch, [], "--uid", str(UID))
    assert said["id_map"] == {"ok": True} and (scratch / "upper").stat().st_uid == UID


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its root")
def test_a_chroot_is_told(tmp_path):
    place = tmp_path / "root"
    place.mkdir()
    script = 'mount --bind / "$0" && mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    said = tried("/tmp", ["unshare", "--mount", "sh", "-c", script, str(place)])
    assert said == {"user_namespaces": {"ok": False, "step": "clone", "errno": errno.EPERM}, "chroot": True}


@pytest.mark.parametrize(
    ("flags", "said"), [([], "--scratch needs a directory"), (["--scratch", "/tmp", "--uid", "x"], "--uid x: it is no number")]
)
def test_what_it_cannot_be_told(flags, said):
    done = subprocess.run([binary.found(), "probe", *flags], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr
