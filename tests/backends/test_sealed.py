"""The copy of an interpreter that no sandbox can change."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from aviato.server.backends.local import sealed


@pytest.fixture
def owned(tmp_path, monkeypatch):
    """A program of the user's, who is an ordinary one here."""
    program = tmp_path / "bin" / "program"
    program.parent.mkdir()
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(program, 12345, 12345)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    return program


def test_it_runs_and_cannot_be_changed(owned):
    copy = sealed.copy_of(str(owned))
    assert copy is not None
    try:
        path = f"/proc/self/fd/{copy}"
        assert subprocess.run(["true"], executable=path, pass_fds=[copy], check=False).returncode == 0
        assert os.pread(copy, 1 << 20, 0) == owned.read_bytes()
        os.chmod(path, 0o755)
        for change in (
            lambda: os.write(os.open(path, os.O_WRONLY), b"x"),
            lambda: os.truncate(path, 0),
            lambda: os.truncate(path, 1 << 24),
        ):
            with pytest.raises(OSError) as caught:
                change()
            assert caught.value.errno in (errno.EPERM, errno.EACCES)
        assert os.pread(copy, 1 << 20, 0) == owned.read_bytes()
    finally:
        os.close(copy)


def test_there_is_none_where_no_sandbox_could_change_the_file(owned, monkeypatch):
    assert sealed.copy_of(str(owned.parent / "missing")) is None
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert sealed.copy_of(str(owned)) is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert sealed.copy_of(str(owned)) is None
