"""Removing trees: any depth and mode, and never through a link."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviato.trees.removal import remove_tree


def remove(path):
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        return sum(1 for _ in remove_tree(parent, path.name))
    finally:
        os.close(parent)


def test_depth(tmp_path):
    here = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("top", dir_fd=here)
    inner = os.open("top", os.O_RDONLY, dir_fd=here)
    for _ in range(3000):
        os.mkdir("d", dir_fd=inner)
        os.close(os.open("f", os.O_CREAT, dir_fd=inner))
        deeper = os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = deeper
    os.close(inner)
    os.close(here)
    before = len(os.listdir("/proc/self/fd"))
    remove(tmp_path / "top")
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_links_are_not_followed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "link").symlink_to(tmp_path / "outside")
    remove(tmp_path / "top")
    assert os.listdir(tmp_path) == ["outside"]
    assert os.listdir(tmp_path / "outside") == ["kept"]
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        remove(tmp_path / "link")


def test_work_comes_in_pieces(tmp_path):
    (tmp_path / "top").mkdir()
    for number in range(1000):
        (tmp_path / "top" / str(number)).touch()
    assert remove(tmp_path / "top") >= 4


trees = st.recursive(st.none(), lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=4), max_leaves=12)


@given(trees, st.sampled_from([0o000, 0o500, 0o700]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
def test_any_tree(tmp_path, tree, mode):
    def make(path, node):
        if node is None:
            path.touch()
        else:
            path.mkdir()
            for name, inner in node.items():
                make(path / name, inner)
            path.chmod(mode)

    make(tmp_path / "top", tree or {})
    remove(tmp_path / "top")
    assert not (tmp_path / "top").exists()
