"""`./bootstrap` on machines that lack something: what it installs and how, by programs that only write down their arguments."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.installation.conftest import ROOT

NEEDED = ("sh", "id", "env", "dirname")
LOG = '#!/bin/sh\necho "${0##*/} $*" >>"$LOG"\n'
PYTHON = f"""#!/bin/sh
case "$*" in
  *ensurepip*) [ ! -e "$ROOM/no-venv" ] ;;
  *libseccomp*) ;;
  "-m venv"*)
    echo "python3 $*" >>"$LOG"
    {shutil.which("mkdir")} -p .venv/bin
    {shutil.which("cp")} "$0" .venv/bin/python ;;
  *) echo "python $*" >>"$LOG" ;;
esac
"""
CC = '#!/bin/sh\necho "$ROOM/libc.a"\n'
"""It has everything that a static program is made of."""
INSTALLS_ALL = LOG + 'case "$*" in *install*python3-venv*) /bin/rm "$ROOM/no-venv" ;; esac\n'
VENV, INSTALL = "python3 -m venv --clear .venv", "python -m pip install -q -e .{}"
APT = "apt-get install -y -q --no-install-recommends"


@dataclass
class Machine:
    """Programs of a machine that there is not.

    Attributes:
        room: where they are.
        calls: what was called, a line each.
    """

    room: Path
    calls: list[str] = field(default_factory=list)

    def has(self, **programs: str) -> None:
        for name, text in programs.items():
            path = self.room / "bin" / name.replace("_", "-")
            path.write_text(text)
            path.chmod(0o755)

    def user(self, number: int) -> None:
        (self.room / "bin" / "id").unlink()
        self.has(id=f"#!/bin/sh\necho {number}\n")

    def bootstrap(self, *arguments: str, **variables: str) -> tuple[int, str]:
        log = self.room / "log"
        log.write_text("")
        variables = {"PATH": f"{self.room}/bin", "HOME": "/", "LOG": str(log), "ROOM": str(self.room), **variables}
        command = [str(self.room / "tree" / "bootstrap"), *arguments]
        done = subprocess.run(
            command, env=variables, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=250, check=False
        )
        self.calls = log.read_text().splitlines()
        return done.returncode, done.stderr


@pytest.fixture
def machine(tmp_path):
    """One that has everything, and root as its user."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "libc.a").touch()
    shutil.copy(ROOT / "bootstrap", tmp_path / "tree" / "bootstrap")
    for name in NEEDED:
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    machine = Machine(tmp_path)
    machine.has(python3=PYTHON, cargo=LOG, cc=CC)
    machine.user(0)
    return machine


@pytest.mark.parametrize(("arguments", "extras"), [((), ""), (("dev",), "[dev]"), (("dev,trl",), "[dev,trl]")])
def test_a_machine_that_has_everything(machine, arguments, extras):
    machine.has(apt_get=LOG)
    assert machine.bootstrap(*arguments) == (0, "")
    assert machine.calls == [VENV, INSTALL.format(extras)]
    # Once more: the environment is there.
    assert machine.bootstrap(*arguments) == (0, "")
    assert INSTALL.format(extras) in machine.calls and VENV not in machine.calls


def test_root_installs_by_apt(machine):
    machine.has(apt_get=INSTALLS_ALL)
    (machine.room / "no-venv").touch()
    (machine.room / "bin" / "cargo").unlink()
    status, said = machine.bootstrap()
    assert (status, said) == (0, "bootstrap: installing python3-venv\nbootstrap: installing cargo gcc libc6-dev\n")
    assert machine.calls == [
        *("apt-get update -q", f"{APT} python3-venv", f"{APT} cargo gcc libc6-dev"),
        *(VENV, INSTALL.format("")),
    ]


def test_a_linker_without_what_static_programs_need(machine):
    machine.has(dnf=LOG)
    (machine.room / "libc.a").unlink()
    assert machine.bootstrap()[0] == 0
    assert machine.calls == ["dnf install -y -q cargo gcc glibc-static", VENV, INSTALL.format("")]


def test_a_user_installs_by_sudo(machine):
    machine.user(1000)
    machine.has(apt_get=LOG, sudo=LOG)
    (machine.room / "bin" / "cargo").unlink()
    assert machine.bootstrap()[0] == 0
    assert machine.calls[:2] == [
        "sudo -n apt-get update -q",
        f"sudo -n env DEBIAN_FRONTEND=noninteractive {APT} cargo gcc libc6-dev",
    ]


def test_a_user_without_sudo_is_told_what_to_install(machine):
    machine.user(1000)
    machine.has(apt_get=LOG)
    (machine.room / "bin" / "cargo").unlink()
    status, said = machine.bootstrap()
    assert status == 0 and machine.calls == [VENV, INSTALL.format("")]
    assert "this user cannot install anything; somebody who can: apt-get install cargo gcc libc6-dev\n" in said
    (machine.room / "no-venv").touch()
    status, said = machine.bootstrap()
    assert status == 1 and machine.calls == []
    assert "apt-get install python3-venv\n" in said and "name it by PYTHON=" in said


def test_a_machine_with_another_installer(machine):
    (machine.room / "bin" / "cargo").unlink()
    status, said = machine.bootstrap()
    assert status == 0 and "bootstrap: install these, by whatever this machine has for it: cargo gcc libc6-dev\n" in said


def test_cargo_of_rustup_is_seen(machine):
    machine.has(apt_get=LOG)
    home = machine.room / "home" / ".cargo"
    home.mkdir(parents=True)
    (machine.room / "bin" / "cargo").rename(home / "cargo")
    (home / "bin").mkdir()
    (home / "cargo").rename(home / "bin" / "cargo")
    assert machine.bootstrap(HOME=str(home.parent)) == (0, "")


def test_another_python_can_be_named(machine):
    machine.has(own=PYTHON)
    assert machine.bootstrap(PYTHON="own") == (0, "")
    status, said = machine.bootstrap(PYTHON="none")
    assert status == 1 and said.startswith("bootstrap: PYTHON=none is no Python 3.11 or newer with venv")
