"""What keeps sandboxes from running is found by trying, here under conditions made for real, and each has its remedy."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

AVIATO = [sys.executable, "-m", "aviato"]
FORBID = [sys.executable, str(Path(__file__).with_name("forbid_namespaces.py"))]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can arrange the machine like that")
x86_64_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter is for x86-64")


@pytest.fixture
def state(tmp_path: Path) -> Iterator[dict[str, str]]:
    directory = Path(tempfile.mkdtemp(prefix="aviato-doctor-", dir="/tmp"))
    directory.chmod(0o711)
    yield {**os.environ, "AVIATO_STATE_DIR": str(directory), "AVIATO_IDLE_EXIT": "1"}
    shutil.rmtree(directory, ignore_errors=True)


def doctor(state: dict[str, str], *before: str) -> tuple[int, dict[str, Any]]:
    command = [*before, *AVIATO, "doctor", "--json"]
    done = subprocess.run(command, env=state, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout, done.stderr
    return done.returncode, {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def in_own_mounts(commands: str) -> list[str]:
    """A shell in a mount namespace of its own that runs `commands` and then its arguments."""
    return ["unshare", "-m", "sh", "-ec", f'{commands}; exec "$@"', "sh"]


@x86_64_only
def test_user_namespaces_forbidden_by_seccomp(state: dict[str, str]) -> None:
    status, checks = doctor(state, *FORBID)
    failed = checks["user namespaces"]
    assert status == 1 and not failed["ok"]
    assert "EPERM" in failed["detail"] and failed["remedy"]


@x86_64_only
def test_a_create_says_the_same_remedy(state: dict[str, str]) -> None:
    _, checks = doctor(state, *FORBID)
    command = [*FORBID, *AVIATO, "run", "true"]
    done = subprocess.run(command, env=state, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 125
    assert checks["user namespaces"]["remedy"] in done.stderr


@x86_64_only
def test_forbidden_namespaces_are_infrastructure_and_never_a_reward(state: dict[str, str]) -> None:
    code = "import aviato\ntry:\n aviato.Sandbox().exec(['true']).result()\n"
    code += "except aviato.AviatoError as error: print(type(error).__name__, error.is_infrastructure)"
    command = [*FORBID, sys.executable, "-c", code]
    done = subprocess.run(command, env=state, capture_output=True, text=True, timeout=250, check=True)
    assert done.stdout == "SandboxUnavailableError True\n"


@root_only
def test_a_masked_proc(state: dict[str, str]) -> None:
    mask = next(path for path in ("/proc/acpi", "/proc/bus", "/proc/fs") if os.path.isdir(path))
    status, checks = doctor(state, *in_own_mounts(f"mount -t tmpfs none {mask}"))
    assert status == 1
    assert "masked" in checks["own /proc"]["detail"]
    assert "systempaths=unconfined" in checks["own /proc"]["remedy"] or "procMount" in checks["own /proc"]["remedy"]


@root_only
def test_state_on_an_overlay(state: dict[str, str]) -> None:
    mounts = "mount -t tmpfs none /mnt; cd /mnt; chmod 711 .; mkdir l u w m; "
    mounts += "mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w m; cd /"
    status, checks = doctor({**state, "AVIATO_STATE_DIR": "/mnt/m/state"}, *in_own_mounts(mounts))
    assert status == 0, "`host` sandboxes need no overlay"
    assert not checks["overlay"]["ok"] and not checks["overlay"]["required"]
    assert "AVIATO_STATE_DIR" in checks["overlay"]["remedy"]


def in_a_tree(enter: str, *left_out: str) -> list[str]:
    """A shell that puts this machine's directories into one of its own and runs its arguments where `enter` leads to."""
    made = []
    for name in sorted(set(os.listdir("/")) - {"lost+found", "mnt", "media", *left_out}):
        if os.path.islink(f"/{name}"):
            made.append(f"ln -s {os.readlink(f'/{name}')} {name}")
        elif os.path.isdir(f"/{name}"):
            made.append(f"mkdir {name} && mount --rbind /{name} {name}")
    tree = "mount -t tmpfs none /mnt && mkdir /mnt/tree && cd /mnt/tree"
    return in_own_mounts(f'{"; ".join([tree, *made])}; set -- {enter} "$@"')


@root_only
@pytest.mark.parametrize("where", ["a directory", "a mount"])
def test_a_chroot_is_told_from_a_filter(state: dict[str, str], where: str) -> None:
    enter = in_a_tree("chroot .") if where == "a directory" else in_own_mounts('mount --rbind / /mnt; set -- chroot /mnt "$@"')
    status, checks = doctor(state, *enter)
    failed = checks["user namespaces"]
    assert status == 1 and "chroot" in failed["detail"]
    assert "seccomp" not in failed["detail"] and "docker" not in failed["remedy"]


@root_only
def test_a_chroot_without_proc(state: dict[str, str]) -> None:
    status, checks = doctor(state, *in_a_tree("chroot .", "proc"))
    assert status == 1 and "mount -t proc" in checks["own /proc"]["remedy"]


needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
BWRAP = ["bwrap", "--ro-bind", "/", "/", "--bind", "/tmp", "/tmp", "--dev", "/dev"]
NO_ROOT = ["--unshare-user", "--uid", "1000", "--gid", "1000"]


@root_only
@needs_bwrap
def test_what_is_said_in_a_chroot_repairs_it(state: dict[str, str]) -> None:
    _, checks = doctor(state, *in_a_tree("chroot ."))
    assert "`sudo bwrap --dev-bind DIRECTORY / …`" in checks["user namespaces"]["remedy"]
    status, _ = doctor(state, *in_a_tree("bwrap --dev-bind /mnt/tree /"))
    assert status == 0


@needs_bwrap
@pytest.mark.parametrize(
    ("wrong", "check", "advice", "right"),
    [
        # Bubblewrap covers what it could write to, so of an ordinary user nothing.
        pytest.param(
            ["--unshare-pid", "--proc", "/proc"],
            "own /proc",
            "--bind /proc /proc",
            ["--bind", "/proc", "/proc"],
            marks=root_only,
        ),
        pytest.param(
            [*NO_ROOT, "--unshare-pid", "--proc", "/proc"],
            "own /proc",
            "--bind /proc /proc",
            [*NO_ROOT, "--bind", "/proc", "/proc"],
            marks=root_only,
        ),
        (
            [*NO_ROOT, "--unshare-pid", "--bind", "/proc", "/proc"],
            "user id map",
            "without --unshare-pid",
            [*NO_ROOT, "--bind", "/proc", "/proc"],
        ),
        (
            [*NO_ROOT, "--disable-userns", "--bind", "/proc", "/proc"],
            "user namespaces",
            "without --disable-userns",
            [*NO_ROOT, "--bind", "/proc", "/proc"],
        ),
        (
            ["--unshare-user", "--uid", "0", "--proc", "/proc"],
            "host uids",
            "--unshare-user --uid 1000 --gid 1000",
            [*NO_ROOT, "--bind", "/proc", "/proc"],
        ),
    ],
)
def test_what_is_said_in_bubblewrap_repairs_it(
    state: dict[str, str], wrong: list[str], check: str, advice: str, right: list[str]
) -> None:
    Path(state["AVIATO_STATE_DIR"]).chmod(0o777)
    status, checks = doctor(state, *BWRAP, *wrong)
    assert status == 1 and not checks[check]["ok"]
    assert advice in checks[check]["remedy"]
    assert doctor(state, *BWRAP, *right)[0] == 0


@needs_bwrap
@pytest.mark.parametrize("command", ["doctor", "serve", "run true"])
def test_a_state_directory_to_which_nothing_can_be_written(state: dict[str, str], command: str) -> None:
    """As in bubblewrap, with the usual `--ro-bind / /`: it is there, and the advice names another."""
    line = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", *AVIATO, *command.split()]
    done = subprocess.run(line, env=state, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert f"AVIATO_STATE_DIR is '{state['AVIATO_STATE_DIR']}': " in done.stderr
    assert "Read-only file system" in done.stderr


def test_what_doctor_says_is_lines_that_can_be_read(state: dict[str, str]) -> None:
    _, checks = doctor(state)
    assert max(len(name) for name in checks["files of /etc"]["detail"].split("; ")[0].split(", ")) < 80
    assert len(checks["files of /etc"]["detail"].split("; ")[0]) < 300


@x86_64_only
def test_a_filter_is_named_where_no_container_is(state: dict[str, str]) -> None:
    _, checks = doctor(state, *FORBID)
    failed = checks["user namespaces"]
    assert "seccomp" in failed["detail"] or "forbidden in a" in failed["detail"]
