"""Commands of ordinary programs: what plain Linux does, and what happens in a sandbox.

A file of this directory is a topic: a list of `Row`, and `test_a_command = table(ROWS)`. A row whose `bare` is set is made on
the machine itself, too, in an empty directory and a clean environment, and has to say the same there: so the table says what
plain Linux does, and a sandbox is compared with that. What cannot be the same names the part of the guide that says why.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import pytest

from tests.environments import interpreter
from tests.matrices import every
from tests.ordinary.environments import installed

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USERS = "Users and owners"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "inside.md"


@dataclass(frozen=True)
class Row:
    """One command.

    Attributes:
        name: of the row.
        command: for `bash -e`, in an empty directory that it may write to.
        says: a regular expression that all it prints matches, white space at the ends aside. A dot is any character.
        needs: programs without which the row is skipped.
        users: whether it takes other users than root, which not every server can give.
        bare: whether it is made on the machine, too: it needs no root and leaves nothing outside its directory.
        returncode: of the command.
        differs: by the backend's name, what it prints there instead, or None where it cannot be made there.
        guide: a heading of `docs/guides/inside.md` that says why, for each that differs.
        packages: of Python's, from the registry; a sandbox sees them (`packages=`).
        limits: of the sandbox, by resource.
        timeout_seconds: on a busy machine.
    """

    name: str
    command: str
    says: str
    needs: tuple[str, ...] = ()
    _: KW_ONLY
    users: bool = False
    bare: bool = False
    returncode: int = 0
    differs: dict[str, str | None] = field(default_factory=dict)
    guide: str = ""
    packages: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    timeout_seconds: float = 120.0


def table(rows: Iterable[Row], *, always: int = 4):
    """A test of these rows on each backend: one of so many always, the others with `--long`."""
    by_name = {row.name: row for row in rows}

    @pytest.mark.anyio
    @pytest.mark.timeout(900)  # Each command has a limit of its own, in the sandbox and on the machine.
    @pytest.mark.parametrize("name", every(always, by_name))
    async def test(name, carrier, boxes):
        row = by_name[name]
        for program in row.needs:
            if shutil.which(program, path=PATH) is None:
                pytest.skip(f"no {program} on this machine")
        kind, backend = carrier
        says = row.differs.get(kind, row.says)
        if kind in row.differs:
            assert row.guide in headings(), f"what differs stands in {GUIDE.name}"
        if row.users and backend.ids_each == 1:
            assert USERS in headings(), f"{USERS!r} stands in {GUIDE.name}"
            pytest.skip(f"sandboxes have one id here: {USERS}")
        if says is None:
            pytest.skip(f"not in the backend {kind}: {row.guide}")
        packages = installed(row.packages) if row.packages else None
        if row.bare and kind == "local":
            done = on_the_machine(row, packages)
            said = os.fsdecode(done.stdout)
            why = f"on the machine itself: {said}{os.fsdecode(done.stderr)}"
            assert (done.returncode, matches(row.says, said)) == (row.returncode, True), why
        async with boxes.make_box(backend, packages=packages and str(packages), limits=row.limits) as box:
            started = box.start("bash", "-ec", row.command, timeout=row.timeout_seconds)
            result = await box.finish(*started)
        if kind in row.differs:
            assert matches(says, result.stdout), result.stdout + result.stderr
            return
        assert result.returncode == row.returncode, result.stdout + result.stderr
        assert matches(says, result.stdout), result.stdout + result.stderr

    return test


def headings() -> list[str]:
    """Of the guide."""
    return [line.lstrip("# ").strip() for line in GUIDE.read_text().splitlines() if line.startswith("#")]


def matches(says: str, said: str) -> bool:
    """Whether all that was printed is as expected."""
    return re.fullmatch(says, said.strip(), re.DOTALL) is not None


def on_the_machine(row: Row, packages: Path | None) -> subprocess.CompletedProcess[bytes]:
    """How a command ends without a sandbox, and what it prints."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        environment = {"PATH": PATH, "HOME": directory, "TMPDIR": directory, "LANG": "C.UTF-8", "USER": "root"}
        if packages is not None:
            environment["PYTHONPATH"] = str(packages)
            (Path(directory) / ".bin").mkdir()
            (Path(directory) / ".bin" / "python3").symlink_to(interpreter().executable)
            environment["PATH"] = f"{directory}/.bin:{PATH}"
        return subprocess.run(
            ["bash", "-ec", row.command],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=row.timeout_seconds,
            check=False,
        )
