"""What a server calls itself towards an engine, kept in a file."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from aviato.server.backends.own_name import own_name


def test_it_is_the_same_each_time(tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    assert own_name(first) == own_name(first) != own_name(second)
    assert len(own_name(first)) == 32


def test_a_disk_that_is_full_leaves_no_empty_name(tmp_path, monkeypatch):
    write = Path.write_text

    def full(path, text):
        write(path, "")
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="no space"):
            own_name(tmp_path / "one")
    assert own_name(tmp_path / "one") == own_name(tmp_path / "one") != ""


def test_one_that_an_earlier_version_left_empty(tmp_path):
    (tmp_path / "one").touch()
    assert own_name(tmp_path / "one") == own_name(tmp_path / "one") != ""
