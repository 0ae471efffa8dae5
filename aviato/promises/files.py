"""Files, by calls and not by commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import aviato
from aviato.promises.declared import keeps


@pytest.mark.parametrize("size", [0, 1, 100_000, 9_000_000])
def test_there_and_back(sandbox: aviato.Sandbox, size: int) -> None:
    """What was written is read, byte for byte; a relative path counts from where commands start."""
    content = os.urandom(size)
    sandbox.write_file("a/b/f", content).result()
    assert sandbox.read_file("a/b/f").result() == content
    assert sandbox.exec(["sh", "-c", "wc -c < a/b/f"]).result().stdout.strip() == str(size)


def test_in_pieces(sandbox: aviato.Sandbox) -> None:
    """`write_file_streaming` and `read_file_streaming` take any size in pieces."""
    pieces = [os.urandom(300_000) for _ in range(12)]
    sandbox.write_file_streaming("f", iter(pieces)).result()
    assert b"".join(sandbox.read_file_streaming("f")) == b"".join(pieces)


def test_modes(sandbox: aviato.Sandbox) -> None:
    """`mode=None` is 0644 for a new file and keeps that of one there is."""
    sandbox.write_file("f", b"x").result()
    assert sandbox.stat("f").result().mode & 0o7777 == 0o644
    sandbox.write_file("f", b"#!/bin/sh\necho ran\n", mode=0o755).result()
    sandbox.write_file("f", b"#!/bin/sh\necho again\n").result()
    assert sandbox.stat("f").result().mode & 0o7777 == 0o755
    assert sandbox.exec(["./f"]).result().stdout == "again\n"


def test_stat_and_lists(sandbox: aviato.Sandbox) -> None:
    """`stat` and `list_files` tell of path, size, kind and the target of a link."""
    sandbox.exec(["sh", "-c", "mkdir d; printf 12345 > d/f; ln -s f d/link; mkdir d/sub"], check=True).result()
    found = {os.path.basename(one.path): one for one in sandbox.list_files("d").result()}
    assert {name: one.type for name, one in found.items()} == {"f": "file", "link": "symlink", "sub": "directory"}
    assert found["f"].size_bytes == 5 and found["link"].link_target == "f"
    assert sandbox.stat("d/f").result().size_bytes == 5


def test_made_and_removed(sandbox: aviato.Sandbox) -> None:
    """`make_directory` makes parents; `remove` takes a file, and a tree with `recursive`."""
    sandbox.make_directory("a/b/c").result()
    sandbox.write_file("a/b/f", b"x").result()
    sandbox.remove("a/b/f").result()
    with pytest.raises(aviato.SandboxFileError):
        sandbox.remove("a").result()
    sandbox.remove("a", recursive=True).result()
    assert sandbox.list_files(".").result() == []


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda sandbox: sandbox.read_file("nothing"), "no_such_file"),
        (lambda sandbox: sandbox.read_file("."), "is_a_directory"),
        (lambda sandbox: sandbox.list_files("nothing"), "no_such_file"),
        (lambda sandbox: sandbox.stat("nothing"), "no_such_file"),
        (lambda sandbox: sandbox.remove("nothing"), "no_such_file"),
    ],
    ids=["missing", "directory", "list", "stat", "remove"],
)
def test_what_goes_wrong(sandbox: aviato.Sandbox, call, reason: str) -> None:
    """A missing file, or a directory in place of one: SandboxFileError with the path and a reason, a matter of the task."""
    with pytest.raises(aviato.SandboxFileError) as caught:
        call(sandbox).result()
    assert caught.value.reason == reason and caught.value.filepath and not caught.value.is_infrastructure


def test_text_is_no_content(sandbox: aviato.Sandbox) -> None:
    """`str` contents are a TypeError."""
    with pytest.raises(TypeError):
        sandbox.write_file("f", "text")  # type: ignore[arg-type]


def test_readers_see_old_or_new(sandbox: aviato.Sandbox) -> None:
    """Writing is atomic: who reads meanwhile sees the old content or the new one, never half."""
    old, new = b"a" * 3_000_000, b"b" * 3_000_000
    sandbox.write_file("f", old).result()
    code = "while sha256sum < f; [ ! -e over ]; do :; done | sort -u | wc -l"
    reading = sandbox.exec(["sh", "-c", f"touch begun; {code}"])
    while True:
        try:
            sandbox.stat("begun").result()
            break
        except aviato.SandboxFileError:
            continue
    for content in (new, old, new):
        sandbox.write_file("f", content).result()
    sandbox.write_file("over", b"").result()
    assert reading.result().stdout.strip() in ("1", "2")


def test_trees(sandbox: aviato.Sandbox, tmp_path: Path) -> None:
    """`upload` and `download` take files and trees, with their modes and links."""
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "program").write_text("#!/bin/sh\necho ran\n")
    (tree / "program").chmod(0o755)
    (tree / "sub" / "data").write_bytes(os.urandom(100_000))
    (tree / "link").symlink_to("sub/data")
    sandbox.upload(tree, "up").result()
    assert sandbox.exec(["./up/program"]).result().stdout == "ran\n"
    sandbox.download("up", tmp_path / "down").result()
    assert (tmp_path / "down" / "sub" / "data").read_bytes() == (tree / "sub" / "data").read_bytes()
    assert os.readlink(tmp_path / "down" / "link") == "sub/data"
    assert os.access(tmp_path / "down" / "program", os.X_OK)


@keeps("paths")
def test_a_root_of_its_own(sandbox: aviato.Sandbox) -> None:
    """An absolute path is the sandbox's own, and so is /tmp."""
    sandbox.write_file("/tmp/aviato-promises/f", b"x").result()
    assert sandbox.exec(["cat", "/tmp/aviato-promises/f"]).result().stdout == "x"
    assert not Path("/tmp/aviato-promises").exists()


def test_links_are_followed_inside(sandbox: aviato.Sandbox) -> None:
    """Links are followed inside the root, and lead nowhere else."""
    sandbox.exec(["sh", "-c", "echo inside > f; ln -s f link; ln -s loop loop"], check=True).result()
    assert sandbox.read_file("link").result() == b"inside\n"
    with pytest.raises(aviato.SandboxFileError):
        sandbox.read_file("loop").result()
