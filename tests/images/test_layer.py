"""Layers of images become directories for overlayfs: what `tar` and umoci make of them arrives, and nothing hostile does."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.images.layers import (
    BLOCK,
    CHARACTER,
    DIRECTORY,
    FIFO,
    FILE,
    LINK,
    NOBODY,
    OPAQUE,
    Member,
    directory,
    hard_link,
    link,
    run,
    seen,
    tar,
    unpacked,
)

IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root gives files to others and mounts")
US = (os.geteuid(), os.getegid())
WAYS = ["root", "plain", "ordinary"] if IS_ROOT else ["plain"]
BOMB = ("--most-bytes", "1000000", "--most-files", "100")


@pytest.fixture(params=WAYS)
def way(request):
    """Whose files they become: the tar's owners', this user's, an ordinary user's."""
    return request.param


@pytest.fixture
def into(tmp_path):
    path = tmp_path / "inside" / "root"
    path.mkdir(parents=True)
    return path


def arrive(way, data, into, *flags, **more):
    options = {"root": {}, "plain": {}, "ordinary": {"user": NOBODY}}[way]
    return run(data, into, *(("--owners",) if way == "root" else ()), *flags, **options, **more)


def owners(way, uid, gid):
    return {"root": (uid, gid), "plain": US, "ordinary": (NOBODY, NOBODY)}[way]


# -- kinds


def test_each_kind_arrives_whole(way, into):
    members = (
        directory("./", 0o751, mtime=5),
        directory("etc", 0o755, uid=1, gid=2),
        Member("./etc/hosts", content=b"x" * 3000, mode=0o640, uid=3, gid=4, mtime=77.9),
        Member("/bin/su", content=b"su", mode=0o4755, uid=5, gid=6),
        Member("bin/write", mode=0o2755, uid=5, gid=6),
        directory("tmp", 0o1777),
        directory("closed", 0o500),
        Member("closed/secret", mode=0o000, content=b"s"),
        link("etc/link", "/etc/passwd", uid=7, gid=8, mtime=9),
        hard_link("etc/second", "./bin/su"),
        hard_link("etc/third", "etc/link"),
        Member("pipe", FIFO, mode=0o620, uid=9, gid=10),
        Member("dev/null", CHARACTER, device=(1, 3)),
        Member("dev/sda", BLOCK, device=(8, 0)),
        Member("café \udcff\n", content=b"odd"),
        Member("large", uid=65_535, gid=65_536, mode=0o6755),
        Member("d" * 200 + "/" + "f" * 255, content=b"long"),
    )
    said = arrive(way, tar(*members), into)
    assert said == {"size_bytes": 3010, "files": 16, "implied": 2, "left_out": 2, "says_top": True}
    if not IS_ROOT:
        (into / "closed/secret").chmod(0o400)
    found = seen(into)
    names = [".", "etc", "etc/hosts", "bin", "bin/su", "bin/write", "tmp", "closed", "closed/secret", "etc/link", "etc/second"]
    names += ["etc/third", "pipe", "café \udcff\n", "large", "d" * 200, "d" * 200 + "/" + "f" * 255]
    assert sorted(found) == sorted(names)
    shapes = {name: (one.kind, one.mode, one.owner, one.mtime, one.content) for name, one in found.items()}
    assert shapes["."] == ("directory", 0o751, owners(way, 0, 0), 5, "")
    assert shapes["etc"] == ("directory", 0o755, owners(way, 1, 2), 1000, "")
    assert shapes["etc/hosts"] == ("file", 0o640, owners(way, 3, 4), 77, b"x" * 3000)
    assert shapes["bin/su"] == ("file", 0o4755, owners(way, 5, 6), 1000, b"su")
    assert shapes["bin/write"] == ("file", 0o2755, owners(way, 5, 6), 1000, b"")
    assert shapes["bin"][:3] == ("directory", 0o755, owners(way, 0, 0))
    assert shapes["tmp"][:2] == ("directory", 0o1777)
    assert shapes["etc/link"] == ("link", 0o777, owners(way, 7, 8), 9, "/etc/passwd")
    assert shapes["pipe"] == ("fifo", 0o620, owners(way, 9, 10), 1000, "")
    assert shapes["large"][1:3] == (0o6755, owners(way, 65_535, 65_534))
    assert found["etc/second"].names == found["bin/su"].names == ("bin/su", "etc/second")
    assert found["etc/third"].names == ("etc/link", "etc/third")
    if IS_ROOT:
        assert shapes["closed"][1] == 0o500 and shapes["closed/secret"][:2] == ("file", 0o000)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_each_format_of_tar(tmp_path, into, format):
    long = "a" * 90 + "/" + "b" * 60
    members = [Member(long, content=b"x", uid=1000, gid=2000), link("l", "t" * 99)]
    if format != tarfile.USTAR_FORMAT:
        members += [Member("e" * 180, mtime=1 << 33), link("k", "t" * 300)]
    unpacked(tar(*members, format=format), into)
    found = seen(into)
    assert found[long].content == b"x" and found["l"].content == "t" * 99
    if format != tarfile.USTAR_FORMAT:
        assert found["e" * 180].mtime == 1 << 33 and found["k"].content == "t" * 300


TWICE = [
    ("a file over a file", [Member("a", content=b"1"), Member("a", content=b"22")], {"a": b"22"}),
    ("a file over a directory", [directory("a"), Member("a/b/c"), Member("a", content=b"1")], {"a": b"1"}),
    ("a directory over a file", [Member("a"), directory("a"), Member("a/b", content=b"1")], {"a": "", "a/b": b"1"}),
    ("a directory over a directory", [directory("a", 0o700), Member("a/b"), directory("a")], {"a": "", "a/b": b""}),
    ("a directory over a link", [link("a", "/"), directory("a"), Member("a/b")], {"a": "", "a/b": b""}),
    ("a link over a directory", [directory("a"), Member("a/b"), link("a", "x")], {"a": "x"}),
    ("a file over a link", [Member("x", content=b"x"), link("a", "x"), Member("a", content=b"1")], {"a": b"1", "x": b"x"}),
    ("a file over one of two names", [Member("x", content=b"x"), hard_link("a", "x"), Member("a")], {"a": b"", "x": b"x"}),
    (
        "a hard link over a file",
        [Member("x", content=b"x"), Member("a"), hard_link("a", "x"), hard_link("a", "x")],
        {"a": b"x", "x": b"x"},
    ),
    (
        "a directory that is made again",
        [Member("a/b/c"), Member("a"), Member("x"), directory("a"), Member("a/b/d")],
        {"a": "", "a/b": "", "a/b/d": b"", "x": b""},
    ),
    ("a fifo over a file", [Member("a"), Member("a", FIFO)], {"a": ""}),
]


@pytest.mark.parametrize(("members", "expected"), [row[1:] for row in TWICE], ids=[row[0] for row in TWICE])
def test_of_two_the_later_one_stays(way, into, members, expected):
    assert "error" not in arrive(way, tar(*members), into)
    found = seen(into)
    assert {name: one.content for name, one in found.items() if name != "."} == expected
    assert found["a"].mode == 0o755 or found["a"].kind != "directory"


def test_a_deep_tree_is_replaced_in_bounded_steps(way, into):
    deep = "/".join(["d"] * 250)
    said = arrive(way, tar(Member(f"a/{deep}/f"), Member("a", content=b"x")), into)
    assert "error" not in said and seen(into)["a"].content == b"x"


# -- whiteouts


def whiteouts(top):
    found = seen(top)
    gone = {name for name, one in found.items() if one.kind == "whiteout"}
    return gone, {name for name, one in found.items() if one.attributes == {OPAQUE: b"y"}}


GONE = [
    Member("a/.wh.gone"),
    Member(".wh.top"),
    directory("b"),
    Member("b/.wh..wh..opq"),
    Member("b/own"),
    Member(".wh.own"),
    Member("own", content=b"mine"),
    Member(".wh.c"),
    Member("c/new"),
    Member(".wh.l"),
    link("l", "elsewhere"),
    Member(".wh..wh.plnk/1.2"),
    Member(".wh..wh.aufs", content=b"x"),
    Member("a/.wh.odd", CHARACTER),
]


@pytest.mark.parametrize("seed", range(6))
def test_whiteouts_in_any_order(way, into, seed):
    members = list(GONE)
    random.Random(seed).shuffle(members)
    said = arrive(way, tar(*members), into)
    assert whiteouts(into) == ({"a/gone", "top", "a/odd"}, {"b", "c"})
    found = seen(into)
    assert found["own"].content == b"mine" and found["l"].kind == "link" and not [n for n in found if ".wh." in n]
    # As tar leaves it out: a and c, and whatever lies above.
    assert (said["files"], said["implied"]) == (13, 2)


# -- extended attributes


def test_only_what_a_user_says_of_his_own_is_kept(way, into):
    attributes = {
        "user.kept": "1",
        "user.empty": "",
        "user.overlay.opaque": "y",
        "user.overlay.redirect": "/etc",
        "user.overlay.whiteout": "y",
        "trusted.overlay.opaque": "y",
        "trusted.x": "1",
        "security.capability": "\x01\x00\x00\x02" + "\x00" * 16,
        "system.posix_acl_access": "x",
    }
    members = [directory("d", 0o555, attributes=attributes), Member("f", mode=0o444, attributes=attributes)]
    members += [link("l", "f", attributes=attributes), Member("p", FIFO, attributes=attributes)]
    assert "error" not in arrive(way, tar(*members), into)
    found = seen(into)
    assert found["d"].attributes == found["f"].attributes == {"user.kept": b"1", "user.empty": b""}
    assert (found["d"].mode, found["f"].mode) == (0o555, 0o444)
    for name in ("l", "p"):
        assert os.listxattr(into / name, follow_symlinks=False) == []


def test_an_attribute_without_room(into):
    said = run(tar(Member("f", attributes={"user.large": "x" * 70_000})), into)
    assert said["error"]["reason"] == "too_large" and "extended attribute" in said["error"]["message"]


# -- hostile layers

LONG_PART, LONG_PATH = "x" * 256, "/".join(["x" * 200] * 21)
HOSTILE = [
    ("a name that leads out", [Member("../evil")], "leads out of the layer"),
    ("one that goes in first", [Member("a/../../evil")], "leads out of the layer"),
    ("an absolute one", [Member("/../evil")], "leads out of the layer"),
    ("a directory above", [directory("..")], "leads out of the layer"),
    ("through a link", [link("l", "../../outside"), Member("l/evil")], "no directory"),
    ("through an absolute link", [link("l", "{outside}"), Member("l/evil")], "no directory"),
    ("a directory through a link", [link("l", "../../outside"), directory("l/evil")], "no directory"),
    ("a link through a link", [link("l", "../../outside"), link("l/evil", "x")], "no directory"),
    ("a whiteout through a link", [link("l", "../../outside"), Member("l/.wh.canary")], "no directory"),
    ("an opaque directory through a link", [link("l", "../../outside"), Member("l/.wh..wh..opq")], "no directory"),
    ("a fifo through a link", [link("l", "../../outside"), Member("l/evil", FIFO)], "no directory"),
    ("a hard link through a link", [link("l", "../../outside"), hard_link("l/evil", "l")], "no directory"),
    ("a hard link to what lies outside", [hard_link("h", "../../outside/canary")], "leads out of the layer"),
    ("by an absolute name", [hard_link("h", "{outside}/canary")], "not in the layer"),
    ("by a link", [link("l", "../../outside"), hard_link("h", "l/canary")], "not in the layer"),
    ("to a directory", [directory("d"), hard_link("h", "d")], "not in the layer"),
    ("to the top", [hard_link("h", ".")], "not in the layer"),
    ("to itself", [Member("h"), hard_link("h", "h")], "not in the layer"),
    ("to what it replaces", [Member("h/x"), hard_link("h", "h/x")], "not in the layer"),
    ("to what comes later", [hard_link("h", "x"), Member("x")], "not in the layer"),
    ("through a file", [Member("f"), Member("f/evil")], "no directory"),
    ("a part that is too long", [Member(LONG_PART)], "too long"),
    ("a path that is too long", [Member(LONG_PATH)], "longer than"),
    ("a path that is too deep", [Member("d/" * 256 + "f")], "directories deep"),
    ("a link as the top", [link(".", "/")], "the layer's top"),
    ("a link to nowhere", [link("l", "")], "no possible path"),
    ("a long link", [link("l", "x" * 5000)], "no possible path"),
    ("a whiteout of nothing", [Member("a/.wh.")], "no possible name"),
    ("a whiteout of itself", [Member("a/.wh..")], "no possible name"),
    ("a whiteout of what is above", [Member("a/.wh...")], "no possible name"),
    ("something in a whiteout", [Member(".wh.a/b")], "said not to be there"),
]


def outside_of(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    (outside / "canary").write_text("alive")
    (outside / "canary").chmod(0o666)
    return outside


@pytest.mark.parametrize(("members", "words"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_hostile_layers_are_refused(way, tmp_path, into, members, words):
    outside = outside_of(tmp_path)
    before = [*seen(outside).items()]
    named = [one._replace(name=one.name.format(outside=outside), target=one.target.format(outside=outside)) for one in members]
    error = arrive(way, tar(*named), into)["error"]
    assert error["reason"] == "hostile_archive" and words in error["message"], error
    assert [*seen(outside).items()] == before
    assert os.listdir(into.parent) == ["root"]


def test_a_name_with_a_null(into):
    for key in ("path", "linkpath"):
        made = tarfile.TarInfo("l")
        made.type, made.linkname, made.pax_headers = tarfile.SYMTYPE, "x", {key: "a\0b"}
        error = run(made.tobuf(tarfile.PAX_FORMAT), into)["error"]
        assert error["reason"] == "hostile_archive", error


def test_what_a_link_leads_to_stays_as_it_is(way, tmp_path, into):
    """Owners, modes and times are those of the link, also where it is told again."""
    outside = outside_of(tmp_path)
    before = [*seen(outside).items()]
    canary = str(outside / "canary")
    members = [link("l", canary, uid=5, gid=5), hard_link("h", "l"), link("d", str(outside), uid=6, gid=6, mtime=3)]
    assert "error" not in arrive(way, tar(*members, link("l", canary, uid=7, gid=7)), into)
    assert [*seen(outside).items()] == before
    assert {seen(into)[name].kind for name in "lhd"} == {"link"}


def test_devices_are_left_out(way, into):
    """Also the one by which overlayfs says that something is gone."""
    members = [Member(f"dev/{number}", kind, device=(0, number)) for number in range(3) for kind in (CHARACTER, BLOCK)]
    assert arrive(way, tar(*members), into)["left_out"] == 6
    assert list(seen(into)) == ["."]


def test_the_top_hands_its_group_to_nobody(into):
    if IS_ROOT:
        os.chown(into, 0, 50)
    into.chmod(0o2777)
    unpacked(tar(directory("d"), Member("f"), link("l", "f")), into)
    found = seen(into)
    assert [found[name].mode for name in (".", "d", "f")] == [0o755, 0o755, 0o644]
    assert {found[name].owner for name in "dfl"} == {US}


# -- bombs

LARGE = b"x" * 600_000
BOMBS = [
    ("bytes", tar(Member("a", content=LARGE), Member("b", content=LARGE)), "bytes"),
    ("one that is replaced", tar(Member("a", content=LARGE), Member("a", content=LARGE)), "bytes"),
    ("files", tar(*(Member(str(number)) for number in range(101))), "100"),
    ("hard links", tar(Member("x"), *(hard_link(str(number), "x") for number in range(100))), "100"),
    ("implied directories", tar(Member("/".join("d" * 101))), "100"),
    ("whiteouts", tar(*(Member(f".wh.{number}") for number in range(101))), "100"),
    ("fifos", tar(*(Member(str(number), FIFO) for number in range(101))), "100"),
]


@pytest.mark.parametrize(("data", "words"), [row[1:] for row in BOMBS], ids=[row[0] for row in BOMBS])
def test_bombs_end(into, data, words):
    error = run(data, into, *BOMB)["error"]
    assert error["reason"] == "too_large" and words in error["message"], error


def test_what_is_announced_counts_before_it_comes(into):
    made = tarfile.TarInfo("f")
    made.size = 1 << 40
    error = run(made.tobuf(tarfile.GNU_FORMAT), into, "--most-bytes", str(1 << 30))["error"]
    assert error["reason"] == "too_large"


def test_heads_without_end(into):
    """They take nothing of the disk, and bring no member."""
    made = tarfile.TarInfo("f").create_pax_global_header({"comment": "x" * 60_000})
    error = run(made * 1500, into, *BOMB)["error"]
    assert error["reason"] == "too_large" and "more bytes" in error["message"]


def test_names_are_remembered_in_bounded_memory(into):
    """Whiteouts of long names: by their number they would pass."""
    above = "/".join(["d" * 200] * 19)
    names = (f"{above}/.wh.{number:010}{'x' * 200}" for number in range(33_000))
    data = b"".join(tarfile.TarInfo(name).tobuf(tarfile.GNU_FORMAT) for name in names)
    error = run(data, into, most_memory_bytes=400 << 20)["error"]
    assert error["reason"] == "too_large" and "too many" in error["message"]


# -- damage


def test_a_layer_that_is_cut(tmp_path):
    data = tar(Member("a", content=b"x" * 700), Member("é" * 80, content=b"y" * 10))
    # One member, and the other one behind its extended head.
    ends = [1536, 1536 + 512 + 512 + 512 + 512]
    wholes = []
    for cut in sorted({*range(0, ends[1], 97), *range(0, ends[1] + 1025, 512)}):
        into = tmp_path / str(cut)
        into.mkdir()
        said = run(data[:cut], into)
        if "error" in said:
            assert said["error"]["reason"] == "damaged_archive", said
        else:
            wholes.append(cut)
    # Docker too takes one that ends between two members.
    assert wholes == [*ends, ends[1] + 512, ends[1] + 1024]


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 5000, b"\x1f\x8b" + b"z" * 600, tar(Member("a")) + b"more"])
def test_no_archive(into, data):
    assert run(data, into)["error"]["reason"] == "damaged_archive"


def test_a_layer_of_nothing(into):
    assert unpacked(b"\0" * 1024, into) == {"size_bytes": 0, "files": 0, "implied": 0, "left_out": 0, "says_top": False}


# -- directories that the tar leaves out


def test_directories_are_as_in_the_layers_below(way, tmp_path, into):
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for top in (upper, lower):
        top.mkdir()
    above = [directory("a", 0o700, uid=1, gid=2), Member("o/.wh..wh..opq"), Member("f"), Member(".wh.w"), link("l", "a")]
    assert "error" not in arrive(way, tar(*above), upper)
    under = [directory(f"{name}/b", 0o1771, uid=3, gid=4, mtime=5) for name in "aofwl"]
    assert "error" not in arrive(way, tar(directory("a", 0o711), directory("top", 0o2755, uid=6), *under), lower)
    members = [Member(f"{name}/b/c/x") for name in ("a", "o", "f", "w", "l", "top")]
    said = arrive(way, tar(*members), into, below=(upper, lower))
    assert said["implied"] == 18
    shapes = {name: (one.mode, one.owner) for name, one in seen(into).items()}
    assert shapes["a"] == (0o700, owners(way, 1, 2))
    assert shapes["a/b"] == (0o1771, owners(way, 3, 4)) and seen(into)["a/b"].mtime == 5
    assert shapes["top"] == (0o2755, owners(way, 6, 0))
    # What lies below is not seen through an opaque directory, a file, a whiteout or a link.
    assert {shapes[f"{name}/b"] for name in "ofwl"} == {(0o755, owners(way, 0, 0))}
    assert shapes["a/b/c"] == (0o755, owners(way, 0, 0))


# -- files with holes


@pytest.mark.parametrize("form", ["gnu", "pax 0.1", "pax 1.0", "none"])
def test_files_with_holes(tmp_path, into, form):
    source = tmp_path / "source"
    source.mkdir()
    with (source / "s").open("wb") as file:
        for number in range(60):
            file.seek(number * 200_000 + 7)
            file.write(b"data%d" % number)
        file.truncate(40_000_000)
    (source / "empty").touch()
    os.truncate(source / "empty", 1 << 24)
    flags = ["--format=gnu"]
    if form != "none":
        flags = ["-S", "--format=gnu"] if form == "gnu" else ["-S", "--format=pax", f"--sparse-version={form[-3:]}"]
    packed = subprocess.run(["tar", "-C", source, *flags, "-c", "s", "empty"], stdout=subprocess.PIPE, check=True).stdout
    # What takes place, which a file of nothing but holes does not, however long it is.
    assert 60 * 5 <= unpacked(packed, into)["size_bytes"] < 60 * (65 << 10)
    for name in ("s", "empty"):
        assert (into / name).read_bytes() == (source / name).read_bytes()
    assert (into / "s").stat().st_blocks * 512 < 60 * (65 << 10) and (into / "empty").stat().st_blocks == 0


def test_holes_of_a_form_that_is_not_read(tmp_path, into):
    source = tmp_path / "s"
    source.write_bytes(b"x")
    os.truncate(source, 1 << 20)
    flags = ["-S", "--format=pax", "--sparse-version=0.0"]
    packed = subprocess.run(["tar", "-C", tmp_path, *flags, "-c", "s"], stdout=subprocess.PIPE, check=True).stdout
    error = run(packed, into)["error"]
    assert error["reason"] == "damaged_archive" and "holes in a form" in error["message"]


# -- other programs


def oracle_tree(top):
    (top / "usr/bin").mkdir(parents=True)
    (top / "usr/bin/tool").write_bytes(os.urandom(300_000))
    (top / "usr/bin/tool").chmod(0o4711)
    os.link(top / "usr/bin/tool", top / "usr/bin/again")
    (top / "usr/link").symlink_to("../etc")
    (top / "zeros").write_bytes(b"a" + b"\0" * 500_000 + b"b")
    (top / "closed").mkdir()
    (top / "closed/file").write_text("x")
    os.setxattr(top / "closed/file", "user.note", b"\x00\xff")
    os.setxattr(top / "usr", "user.note", b"1")
    os.mkfifo(top / "fifo")
    (top / ("n" * 99)).touch()
    for number in range(300):
        (top / f"usr/{number}").write_text("x" * number)
    os.utime(top / "usr", (5, 5))
    (top / "closed").chmod(0o2550)
    if IS_ROOT:
        os.chown(top / "usr/link", 10, 20, follow_symlinks=False)
        os.chown(top / "usr/bin/tool", 1, 2)
        os.chmod(top / "usr/bin/tool", 0o6711)
        os.chown(top / "closed", 30, 40)


@pytest.mark.parametrize("format", ["gnu", "pax", "ustar"])
def test_as_tar_unpacks_it(tmp_path, into, format):
    source, theirs = tmp_path / "source", tmp_path / "theirs"
    source.mkdir()
    theirs.mkdir()
    oracle_tree(source)
    flags = ["--xattrs", "--xattrs-include=user.*"] if format == "pax" else []
    packed = tmp_path / "layer.tar"
    subprocess.run(["tar", "-C", source, f"--format={format}", *flags, "-cf", packed, "."], check=True)
    owner = ["--same-owner"] if IS_ROOT else ["--no-same-owner"]
    subprocess.run(["tar", "-C", theirs, "-p", "--numeric-owner", *owner, *flags, "-xf", packed], check=True)
    unpacked(packed.read_bytes(), into, *(["--owners"] if IS_ROOT else []))
    assert seen(into) == seen(theirs)


@as_root
@pytest.mark.skipif(shutil.which("umoci") is None, reason="no umoci")
def test_as_umoci_and_overlayfs_see_it(tmp_path):
    """Of three layers, one on the other, mounted as a sandbox has them."""
    lowest = [directory("./"), directory("a", 0o750, uid=3), Member("a/1", content=b"1"), Member("a/2"), directory("b")]
    lowest += [Member("b/x"), Member("c/d/e"), Member("f", content=b"low"), link("l", "a"), Member("keep/k")]
    middle = [directory("a", 0o700, uid=4), Member("a/.wh.1"), Member("b/.wh..wh..opq"), directory("b"), Member("b/new")]
    middle += [Member(".wh.c"), Member("f", content=b"high", mode=0o600), directory("l"), Member("l/under")]
    middle += [Member("g"), hard_link("h", "g")]
    highest = [directory("c"), Member("c/again", content=b"c"), Member(".wh.f"), directory("a", 0o711)]
    highest += [Member("a/1", content=b"back")]
    layers = [lowest, middle, highest]
    image, bundle = tmp_path / "image", tmp_path / "bundle"

    def umoci(*words):
        subprocess.run(["umoci", *words], check=True, capture_output=True, timeout=250)

    umoci("init", "--layout", image)
    umoci("new", "--image", f"{image}:x")
    roots = []
    for number, members in enumerate(layers):
        packed, root = tmp_path / f"{number}.tar", tmp_path / f"root{number}"
        packed.write_bytes(tar(*members))
        umoci("raw", "add-layer", "--image", f"{image}:x", packed)
        root.mkdir()
        unpacked(packed.read_bytes(), root, "--owners", below=tuple(reversed(roots)))
        roots.append(root)
    umoci("unpack", "--image", f"{image}:x", bundle)
    merged = tmp_path / "merged"
    merged.mkdir()
    lower = ":".join(str(root) for root in reversed(roots))
    mount = ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={lower},userxattr", str(merged)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no overlayfs may be mounted here")
    try:
        ours, theirs = seen(merged), seen(bundle / "rootfs")
    finally:
        subprocess.run(["umount", merged], check=True)

    def alike(one):
        # umoci sets the time of a directory anew when it removes something in it. Opaque is what only we need to say.
        return one._replace(attributes={}, mtime=0 if one.kind == "directory" else one.mtime)

    assert {name: alike(one) for name, one in ours.items()} == {name: alike(one) for name, one in theirs.items()}


# -- the disk


@as_root
@pytest.mark.parametrize("options", ["size=256k", "size=8m,nr_inodes=20"])
def test_a_full_disk_is_no_fault_of_the_layer(tmp_path, options):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", small], capture_output=True).returncode != 0:
        pytest.skip("nothing may be mounted here")
    try:
        error = run(tar(*(Member(str(number), content=b"x" * 20_000) for number in range(100))), small)["error"]
    finally:
        subprocess.run(["umount", small], check=True)
    assert error["reason"] == "disk_full" and "No space left" in error["message"]


# -- anything

NAMES = st.lists(st.sampled_from(["a", "b", "c", "é", "x y"]), min_size=1, max_size=3).map("/".join)
CONTENT = st.one_of(st.binary(max_size=1500), st.integers(1, 3).map(lambda number: b"\0" * (70_000 * number) + b"1"))
MODES, IDS = st.integers(0, 0o7777), st.sampled_from([0, 1, 1000, 65_535])
FILES = st.tuples(NAMES, st.just(FILE), CONTENT, MODES, IDS, IDS)
DIRECTORIES = st.tuples(NAMES, st.just(DIRECTORY), st.just(b""), MODES, IDS, IDS)
LINKS = st.tuples(NAMES, st.text("abcé/.", min_size=1, max_size=150))
MEMBERS = st.lists(
    st.one_of(st.one_of(FILES, DIRECTORIES).map(lambda words: Member(*words)), LINKS.map(lambda words: link(*words))),
    max_size=12,
)


def model(members):
    """What is to be there: of each name the last one, unless a later one has taken the place of what it lay in."""
    there = {}
    for member in members:
        name = member.name
        parts = name.split("/")
        for end in range(1, len(parts)):
            above = "/".join(parts[:end])
            if above in there and there[above].type != DIRECTORY:
                return None
            there.setdefault(above, Member(above, DIRECTORY, mode=0o755))
        if not (name in there and there[name].type == member.type == DIRECTORY):
            for below in [other for other in there if other == name or other.startswith(f"{name}/")]:
                del there[below]
        there[name] = member
    return there


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MEMBERS, st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_any_members(tmp_path_factory, members, format):
    into = tmp_path_factory.mktemp("layer")
    said = run(tar(*members, format=format), into, *(["--owners"] if IS_ROOT else []))
    expected = model(members)
    if expected is None:
        assert said["error"]["reason"] == "hostile_archive"
        return
    assert "error" not in said, said
    if not IS_ROOT:
        return
    found = {name: one for name, one in seen(into).items() if name != "."}
    assert {name: (one.mode, one.owner) for name, one in found.items()} == {
        name: (0o777 if one.type == LINK else one.mode, (one.uid, one.gid)) for name, one in expected.items()
    }
    contents = {name: {FILE: one.content, LINK: one.target, DIRECTORY: ""}[one.type] for name, one in expected.items()}
    assert {name: one.content for name, one in found.items()} == contents


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 6000), st.binary(min_size=1, max_size=30)), max_size=12), st.binary(max_size=20))
def test_any_damage(tmp_path_factory, changes, behind):
    """It unpacks or it says why, and what lies beside is as it was."""
    above = tmp_path_factory.mktemp("damaged")
    (above / "canary").write_text("alive")
    (above / "root").mkdir()
    data = bytearray(tar(*GONE, link("k", ".."), hard_link("m", "own"), Member("n", FIFO)) + behind)
    for at, piece in changes:
        data[at : at + len(piece)] = piece
    for start in range(0, len(data) - 511, 512):
        head = data[start : start + 512]
        if head[257:262] == b"ustar":
            data[start + 148 : start + 156] = b"%06o\0 " % (sum(head[:148]) + sum(head[156:]) + 8 * 32)
    said = run(bytes(data), above / "root", *BOMB)
    assert set(said) in ({"error"}, {"size_bytes", "files", "implied", "left_out", "says_top"})
    assert "error" not in said or said["error"]["reason"] != "unpack_failed", said
    assert sorted(os.listdir(above)) == ["canary", "root"] and (above / "canary").read_text() == "alive"
    shutil.rmtree(above, ignore_errors=True)
