"""Trees through archives, on this disk: round trips, what is hostile, and what others change meanwhile."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviato.trees import tar
from aviato.trees.errors import TreeError
from aviato.trees.pack import Surplus, gathered, open_below, pack
from aviato.trees.unpack import Arrival, stays_below


def snapshot(top: Path | str) -> dict[bytes, Any]:
    """All that a copy keeps, by name below the top."""
    found: dict[bytes, Any] = {}
    root = os.fsencode(top)
    for folder, folders, files in os.walk(root):
        for name in (b".", *folders, *files):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            content: Any = None
            if stat.S_ISREG(info.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            elif stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            found[os.path.relpath(path, root)] = (stat.S_IFMT(info.st_mode), info.st_mode & 0o777, int(info.st_mtime), content)
    return found


def without_directory_times(found: dict[bytes, Any]) -> dict[bytes, Any]:
    """Something is put into a directory and taken out of it again: its time is new."""
    return {
        name: (kind, mode, None if stat.S_ISDIR(kind) else mtime, content)
        for name, (kind, mode, mtime, content) in found.items()
    }


def archive_of(top: Path | str, skipped: list[bytes] | None = None) -> bytes:
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return b"".join(gathered(pack(fd, skipped), 1000, 10))
    finally:
        os.close(fd)


def put(archive: bytes, target: Path | str, *, links: Any = "refuse", umask: int = 0) -> list[bytes]:
    arrival = Arrival(str(target), outside_links=links, umask=umask)
    try:
        for start in range(0, len(archive), 700):
            for _ in arrival.feed(archive[start : start + 700]):
                pass
        for _ in arrival.finish():
            pass
    finally:
        for _ in arrival.abort():
            pass
    return arrival.skipped


def made(*members: tuple[Any, ...]) -> bytes:
    """An archive of (name, kind) or (name, kind, content or target)."""
    parts = []
    for name, kind, *rest in members:
        content = rest[0] if rest and kind == tar.FILE else b""
        target = rest[0] if rest and kind != tar.FILE else b""
        parts += [tar.header(tar.Member(name, kind, 0o644, len(content), 0, target)), content, tar.padding(len(content))]
    return b"".join(parts) + tar.END


NAMES = st.binary(min_size=1, max_size=60).filter(lambda name: name not in (b".", b"..") and not {0, 0x2F} & set(name))
TREES = st.recursive(
    st.one_of(st.binary(max_size=1200), st.integers(0, 9)),
    lambda inner: st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def build(path: bytes, tree: Any, draw: Any) -> None:
    if isinstance(tree, dict):
        os.mkdir(path)
        for name, inner in tree.items():
            build(os.path.join(path, name), inner, draw)
    elif isinstance(tree, int):
        os.symlink(b"to/%d" % tree, path)
        return
    else:
        with open(path, "wb") as file:
            file.write(tree)
    os.chmod(path, draw(st.sampled_from([0o600, 0o644, 0o755, 0o777])) | (0o700 if isinstance(tree, dict) else 0))
    os.utime(path, (10**9, draw(st.integers(0, 2 * 10**9))))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, TREES, max_size=5), st.data())
def test_random_trees_arrive_as_they_were(tmp_path_factory: pytest.TempPathFactory, tree: Any, data: Any) -> None:
    folder = tmp_path_factory.mktemp("trees")
    build(os.fsencode(folder / "from"), tree, data.draw)
    archive = archive_of(folder / "from")
    put(archive, folder / "to")
    before = snapshot(folder / "from")
    assert snapshot(folder / "to") == before
    put(archive, folder / "to")
    assert without_directory_times(snapshot(folder / "to")) == without_directory_times(before)
    assert sorted(path.name for path in folder.iterdir()) == ["from", "to"]


HOSTILE = {
    "up": made((b"../x", tar.FILE, b"x")),
    "up in the middle": made((b"a/../../x", tar.FILE, b"x")),
    "absolute": made((b"/tmp/x", tar.FILE, b"x")),
    "through a link": made((b"a", tar.LINK, b"b"), (b"b", tar.DIRECTORY), (b"a/x", tar.FILE, b"x")),
    "a directory over a link": made((b"a", tar.LINK, b"b"), (b"a", tar.DIRECTORY)),
    "link out": made((b"a", tar.LINK, b"../x")),
    "link out, absolute": made((b"a", tar.LINK, b"/etc/passwd")),
    "link out over a link": made((b"p", tar.DIRECTORY), (b"p/d", tar.LINK, b"../e"), (b"p/y", tar.LINK, b"d/../..")),
    "hard link": made((b"a", tar.HARD_LINK, b"/etc/passwd")),
    "twice": made((b"x", tar.FILE, b"1"), (b"x", tar.FILE, b"2")),
    "file over a link": made((b"x", tar.LINK, b"y"), (b"x", tar.FILE, b"2")),
    "no directory": made((b".", tar.FILE, b"1")),
    "below a file": made((b"x", tar.FILE, b"1"), (b"x/y", tar.FILE, b"2")),
    "long name": made((b"n" * 256, tar.FILE, b"")),
    "long path": made((b"/".join([b"n" * 200] * 30), tar.FILE, b"")),
    "cut off": made((b"x", tar.FILE, b"1"))[: -len(tar.END)],
    "not an archive": b"hello" * 1000,
    "contents that are none": tar.header(tar.Member(b"d", tar.LINK, 0, 600, 0, b"x")) + bytes(4096),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_everything_as_it_was(tmp_path: Path, what: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").write_text("old")
    before = snapshot(tmp_path)
    for target in ("new", "there"):
        with pytest.raises(TreeError) as caught:
            put(made((b"good", tar.FILE, b"1"))[: -len(tar.END)] + HOSTILE[what], tmp_path / target)
        assert caught.value.reason == "hostile_archive"
        if what != "not an archive":
            assert caught.value.member in HOSTILE[what] or what == "long path"
            assert caught.value.member
    assert without_directory_times(snapshot(tmp_path)) == without_directory_times(before)


def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    source = tmp_path / "from"
    source.mkdir()
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(source / "socket"))
    (source / "file").write_text("1")
    skipped: list[bytes] = []
    archive = archive_of(source, skipped)
    assert sorted(skipped) == [b"fifo", b"socket"]
    assert put(archive, tmp_path / "a") == []
    # Announced by the other side, and devices of anybody's, they are left out here.
    assert sorted(put(archive_of(source), tmp_path / "b")) == [b"fifo", b"socket"]
    assert put(made((b"null", tar.OTHER)), tmp_path / "c") == [b"null"]
    assert os.listdir(tmp_path / "a") == os.listdir(tmp_path / "b") == ["file"]
    assert put(made((b"out", tar.LINK, b"/x")), tmp_path / "d", links="skip") == [b"out"]
    assert put(made((b"out", tar.LINK, b"/x")), tmp_path / "e", links="keep") == []
    assert os.readlink(tmp_path / "e" / "out") == "/x"


def test_no_more_bits_than_asked_for(tmp_path: Path) -> None:
    archive = tar.header(tar.Member(b"f", tar.FILE, 0o6777)) + tar.header(tar.Member(b"d", tar.DIRECTORY, 0o7777)) + tar.END
    put(archive, tmp_path / "to", umask=0o027)
    assert [stat.S_IMODE((tmp_path / "to" / name).stat().st_mode) for name in ("f", "d")] == [0o750, 0o750]


def test_a_directory_that_is_there_is_merged(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "both" / "deep").mkdir(parents=True)
    (there / "both" / "kept").write_text("kept")
    (there / "both" / "file").write_text("old")
    (there / "both").chmod(0o700)
    (there / "link").symlink_to(tmp_path / "elsewhere")
    put(
        made(
            (b".", tar.DIRECTORY),
            (b"both", tar.DIRECTORY),
            (b"both/file", tar.FILE, b"new"),
            (b"both/deep/er/x", tar.FILE, b"x"),
            (b"link", tar.FILE, b"file"),
        ),
        there,
    )
    assert (there / "both" / "kept").read_text() == "kept"
    assert (there / "both" / "file").read_text() == "new"
    assert (there / "both" / "deep" / "er" / "x").read_text() == "x"
    assert (there / "link").read_text() == "file"
    assert not (there / "link").is_symlink()
    assert stat.S_IMODE((there / "both").stat().st_mode) == 0o700
    assert sorted(os.listdir(there)) == ["both", "link"]


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "d").mkdir(parents=True)
    (there / "f").write_text("old")
    (there / "l").symlink_to("d")
    for members, error in (
        ([(b"a", tar.FILE, b"1"), (b"d", tar.FILE, b"1")], IsADirectoryError),
        ([(b"a", tar.FILE, b"1"), (b"f", tar.DIRECTORY)], NotADirectoryError),
        ([(b"a", tar.FILE, b"1"), (b"l/x", tar.FILE, b"1")], NotADirectoryError),
    ):
        with pytest.raises(error) as caught:
            put(made(*members), there)
        assert caught.value.filename in (b"d", b"f", b"l")
        assert sorted(os.listdir(there)) == ["d", "f", "l"]
    with pytest.raises(NotADirectoryError):
        put(made((b"a", tar.FILE, b"1")), there / "f")
    assert os.listdir(there / "d") == []


@pytest.mark.deep
def test_deep_and_unwritable_directories(tmp_path: Path) -> None:
    names = [b"d"] * 1500
    put(made((b"/".join(names), tar.DIRECTORY), (b"r", tar.DIRECTORY)), tmp_path / "deep")
    fd = os.open(tmp_path / "deep", os.O_RDONLY)
    try:
        os.close(open_below(fd, b"/".join(names)))
        assert b"".join(pack(fd)).count(b"L") > 0
    finally:
        os.close(fd)
    archive = tar.header(tar.Member(b"d", tar.DIRECTORY, 0o555)) + made((b"d/f", tar.FILE, b"1"))
    put(archive, tmp_path / "sealed")
    assert stat.S_IMODE((tmp_path / "sealed" / "d").stat().st_mode) == 0o555
    (tmp_path / "sealed" / "d").chmod(0o755)
    arrival = Arrival(str(tmp_path / "deep"), outside_links="refuse", umask=0)
    for _ in arrival.feed(made((b"/".join(names), tar.DIRECTORY))):
        pass
    for _ in arrival.abort():
        pass
    assert sorted(os.listdir(tmp_path / "deep")) == ["d", "r"]
    # pytest's own clean-up cannot go that deep.
    subprocess.run(["rm", "-rf", tmp_path / "deep"], check=True)


def test_zeros_take_no_place(tmp_path: Path) -> None:
    source = tmp_path / "from"
    source.mkdir()
    with (source / "big").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(1 << 20)
        file.write(b"x")
    put(archive_of(source), tmp_path / "to")
    assert (tmp_path / "to" / "big").stat().st_blocks * 512 < 1 << 20
    assert (tmp_path / "to" / "big").read_bytes() == (source / "big").read_bytes()


def test_what_changes_while_it_is_read(tmp_path: Path) -> None:
    """What goes, or becomes a link or shorter between being seen and being opened is skipped or refused, never followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    source = tmp_path / "from"
    (source / "d").mkdir(parents=True)
    (source / "d" / "secret").write_text("mine")
    fd = os.open(source, os.O_RDONLY)
    try:
        pieces = pack(fd)
        seen = [next(pieces), next(pieces)]
        (source / "d").rename(tmp_path / "away")
        (source / "d").symlink_to(outside)
        rest = b"".join([*seen, *pieces])
        assert b"secret" not in rest
        (source / "d").unlink()
        with (source / "f").open("wb") as file:
            file.truncate(1 << 20)
        pieces = pack(fd)
        while b"ustar" not in (piece := next(pieces)) or piece.startswith(b"./"):
            pass
        os.truncate(source / "f", 10)
        with pytest.raises(TreeError, match="became shorter"):
            list(pieces)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("depth", "target", "stays"),
    [
        (0, b"a/b", True),
        (0, b"..", False),
        (1, b"../a", True),
        (1, b"./../a", True),
        (2, b"../../a", True),
        (2, b"../../../a", False),
        (5, b"a/../b", False),
        (5, b"/a", False),
        (0, b"...", True),
    ],
)
def test_where_a_link_may_lead(depth: int, target: bytes, stays: bool) -> None:
    assert stays_below(depth, target) is stays


def copied(top: Path, most_bytes: int) -> int:
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return sum(map(len, pack(fd, surplus=Surplus(most_bytes))))
    finally:
        os.close(fd)


@pytest.mark.parametrize("kind", ["holes", "hard links"])
def test_a_copy_is_not_much_longer_than_the_tree(tmp_path, kind):
    """A few bytes on disk would be terabytes elsewhere."""
    for number in range(8):
        if kind == "holes":
            with open(tmp_path / str(number), "wb") as file:
                file.truncate(1 << 20)
        elif number:
            os.link(tmp_path / "0", tmp_path / str(number))
        else:
            (tmp_path / "0").write_bytes(os.urandom(1 << 20))
    assert copied(tmp_path, 8 << 20) > 8 << 20
    with pytest.raises(TreeError, match="holes and hard links") as caught:
        copied(tmp_path, 4 << 20)
    assert caught.value.reason == "too_large"


def test_what_is_on_disk_may_be_of_any_length(tmp_path):
    (tmp_path / "one").write_bytes(os.urandom(1 << 20))
    (tmp_path / "two").write_bytes(os.urandom(5000))
    assert copied(tmp_path, 0) > 1 << 20
