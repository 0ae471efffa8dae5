"""References and interpreters, as tables."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aviato.exceptions import SandboxImageError
from aviato.server.images.interpreters import Interpreter, bin_directories, choose, find_interpreters, inspect
from aviato.server.images.reference import Reference, parse
from aviato.server.images.resolve import LocalImages


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, Reference("host")),
        ("host", Reference("host")),
        ("python:3.11", Reference("python", "11")),
        ("host:3.11", Reference("host", "11")),
        ("host:5000/a", Reference("other", "host:5000/a")),
        ("python:3", Reference("other", "python:3")),
        ("python:3.11-slim", Reference("other", "python:3.11-slim")),
        ("python:2.7", Reference("other", "python:2.7")),
        ("dir:name", Reference("name", "name")),
        ("dir:/a/b", Reference("path", "/a/b")),
        ("dir:", Reference("other", "dir:")),
        ("dir:../x", Reference("other", "dir:../x")),
        ("dir:a/b", Reference("other", "dir:a/b")),
        ("ubuntu:24.04", Reference("other", "ubuntu:24.04")),
        ("", Reference("other", "")),
        ("python:3.11\n", Reference("other", "python:3.11\n")),
    ],
)
def test_parse(text, expected):
    assert parse(text) == expected


@given(st.text())
@settings(deadline=None)
def test_parse_takes_anything(text):
    assert parse(text).kind in ("host", "python", "name", "path", "other")


def python(minor, prefix="/usr"):
    return Interpreter(minor=minor, executable=f"{prefix}/bin/python3.{minor}", prefix=prefix)


FOUND = [python(11), python(9, "/opt/a"), python(13, "/opt/b"), python(11, "/opt/c")]


@pytest.mark.parametrize(
    ("minor", "fallback", "expected"),
    [
        (11, None, FOUND[0]),
        (9, None, FOUND[1]),
        (10, None, None),
        (10, "nearest", FOUND[0]),
        (12, "nearest", FOUND[2]),
        (14, "nearest", None),
        (8, "nearest", FOUND[1]),
    ],
)
def test_choose(minor, fallback, expected):
    assert choose(FOUND, minor, fallback) == expected


@pytest.fixture
def images(tmp_path):
    (tmp_path / "image").mkdir()
    return LocalImages(FOUND, {"task": tmp_path / "image", "gone": tmp_path / "gone"}, False)


def test_resolving(images, tmp_path):
    assert images.resolve(None).interpreter == "/usr/bin/python3.11"
    assert images.resolve("python:3.9").interpreter == "/opt/a/bin/python3.9"
    near = images.resolve("python:3.10", "nearest")
    assert (near.reference, near.interpreter) == ("python:3.11", "/usr/bin/python3.11")
    assert "3.10" in near.note
    assert images.resolve("python:3.9", "nearest").note is None
    chosen = images.resolve("dir:task")
    assert (chosen.kind, chosen.layers, chosen.interpreter) == ("dir", (str(tmp_path / "image"),), None)


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (
            "python:3.10",
            r"no registry; there are python:3.11, python:3.9, python:3.13 and 3 more; AVIATO_IMAGE_FALLBACK=nearest",
        ),
        ("python:3.14", r"there are python:3.13, python:3.11, python:3.9 and 3 more$"),
        ("python:3.10-slim", r"there are python:3.11, python:3.9, python:3.13 and 3 more$"),
        ("docker.io/library/python:3.9", r"there are python:3.9, python:3.11, python:3.13 and 3 more$"),
        ("Python3.11", r"there are python:3.11, "),
        ("python", r"there are python:3.11, "),
        ("hots", r"there are host, python:3.11, "),
        ("dir:other", r"there are dir:gone, dir:task, host and 3 more"),
        ("dir:gone", "not a directory"),
        ("dir:/etc", r"registered directories only \(--image NAME=DIR\); there are dir:gone, dir:task, host"),
        ("ubuntu:24.04", r"'ubuntu:24.04' is not here, and this server pulls from no registry; there are host, python:3.11, "),
    ],
)
def test_what_is_not_there(images, reference, text):
    with pytest.raises(SandboxImageError, match=text) as caught:
        images.resolve(reference)
    assert "/opt" not in str(caught.value) and "/usr" not in str(caught.value)


def test_any_directory_where_allowed(tmp_path):
    images = LocalImages([], {}, True)
    (tmp_path / "link").symlink_to(tmp_path)
    assert images.resolve(f"dir:{tmp_path}/link").layers == (str(tmp_path),)
    assert images.resolve("host").interpreter is None
    with pytest.raises(SandboxImageError, match="no Python interpreter"):
        images.resolve("python:3.11")


def test_a_registered_python_comes_first(tmp_path):
    images = LocalImages(FOUND, {"python:3.11": tmp_path}, False)
    assert images.resolve("python:3.11").layers == (str(tmp_path),)


def make_interpreter(root, minor, library="lib"):
    (root / "bin").mkdir(parents=True)
    executable = root / "bin" / f"python3.{minor}"
    executable.touch(mode=0o755)
    (root / library / f"python3.{minor}").mkdir(parents=True)
    (root / library / f"python3.{minor}" / "os.py").touch()
    return executable


def test_finding(tmp_path):
    one = make_interpreter(tmp_path / "one", 12)
    two = make_interpreter(tmp_path / "two", 11, "lib64")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python3.12").symlink_to(one)
    (tmp_path / "venv" / "python3.12-config").touch(mode=0o755)
    (tmp_path / "venv" / "python3.10").touch(mode=0o755)
    own = make_interpreter(tmp_path / "own", 13)
    found = find_interpreters([str(tmp_path / name) for name in ("missing", "venv", "two/bin", "one/bin")], str(own))
    assert [interpreter.executable for interpreter in found] == [str(one), str(two), str(own)]
    assert found[0].prefix == str(tmp_path / "one")


def test_what_is_no_interpreter(tmp_path):
    executable = make_interpreter(tmp_path / "a", 12)
    executable.chmod(0o644)
    assert inspect(str(executable)) is None
    assert inspect(str(tmp_path / "nothing")) is None
    assert inspect(str(make_interpreter(tmp_path / "b", 5))) is None


def test_this_machine_has_one():
    assert find_interpreters()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_home_that_may_not_be_entered_has_no_interpreters(tmp_path):
    """As of a process that has become another user and keeps its HOME."""
    (tmp_path / ".pyenv" / "versions").mkdir(parents=True)
    tmp_path.chmod(0o700)
    uid = os.geteuid()
    os.seteuid(12345)
    try:
        assert f"{tmp_path}/miniconda3/bin" in bin_directories(str(tmp_path))
    finally:
        os.seteuid(uid)
