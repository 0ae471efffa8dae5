"""Layers that are packed again: of each the tar that makes it, and always the same one."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import tarfile
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from aviato.exceptions import SandboxImageError
from aviato.server.backends.local import binary
from aviato.server.images.packing import Packing
from aviato.server.images.unpacking import Unpacking
from tests.images.layers import FIFO, Member, directory, hard_link, link, seen, tar, unpacked
from tests.images.test_layer import MEMBERS
from tests.images.test_unpacking import LIMITS, children, cut, mapping, until

IS_ROOT = os.geteuid() == 0
OWNERS = ["--owners"] if IS_ROOT else []
LONG = "/".join(["x" * 200] * 3)
LAYER = tar(
    directory("./", 0o751, mtime=5),
    directory("a", 0o2775, uid=7, gid=8, mtime=6),
    Member("a/b", content=b"x" * 5000, uid=5, gid=6, mode=0o4755, mtime=1_500_000_000, attributes={"user.one": "v"}),
    Member("a/none", content=b"secret", mode=0, uid=9),
    directory("a/closed", 0o000),
    Member("a/closed/in", content=b"in"),
    *(directory("/".join(["x" * 200] * count)) for count in (1, 2, 3)),
    Member(f"{LONG}/é\n", content=b"long"),
    Member("hole", content=b"\0" * 300_000 + b"end"),
    link("l", "t" * 300),
    hard_link("second", "a/b"),
    Member("pipe", FIFO, mode=0o640),
    directory("opaque"),
    Member("opaque/.wh..wh..opq"),
    Member(".wh.gone"),
)
pytestmark = pytest.mark.anyio


async def packed(root, **settings):
    async with aclosing(Packing(binary.found, **settings)(root)) as pieces:
        return b"".join([piece async for piece in pieces])


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    path.mkdir()
    unpacked(LAYER, path, *OWNERS)
    return path


def unpack(data, path):
    path.mkdir()
    unpacked(data, path, *OWNERS)
    return path


async def test_it_is_unpacked_to_what_it_was(root, tmp_path):
    found = await packed(root, owners=IS_ROOT)
    again = unpack(found, tmp_path / "again")
    if IS_ROOT:  # Else some of it can be read by nobody.
        assert seen(again) == seen(root)
        assert seen(again)["second"].names == ("a/b", "second") and seen(again)["gone"].kind == "whiteout"
    assert await packed(again, owners=IS_ROOT) == found


async def test_what_is_in_it(root):
    with tarfile.open(fileobj=io.BytesIO(await packed(root, owners=IS_ROOT))) as archive:
        members = {member.name: member for member in archive}
    assert members["."].mode == 0o751 and members["."].mtime == 5
    assert members[".wh.gone"].size == members["opaque/.wh..wh..opq"].size == 0
    assert members["hole"].size == 300_003 and not members["hole"].issparse(), "other programs need not know of holes"
    assert members["l"].linkname == "t" * 300 and members["pipe"].isfifo() and f"{LONG}/é\n" in members
    assert members["a/none"].mode == 0 and members["a/none"].size == 6, "also what its owner may not read"
    assert "a/closed/in" in members
    kinds = {members[name].type for name in ("a/b", "second")}
    assert kinds == {tarfile.REGTYPE, tarfile.LNKTYPE}
    assert not any("overlay" in key for member in members.values() for key in member.pax_headers)
    first = next(member for name, member in members.items() if name in ("a/b", "second") and member.isreg())
    assert first.pax_headers["SCHILY.xattr.user.one"] == "v" and first.mode == 0o4755
    assert (first.uid, first.gid) == ((5, 6) if IS_ROOT else (0, 0))


async def test_without_owners_all_is_roots(root):
    with tarfile.open(fileobj=io.BytesIO(await packed(root))) as archive:
        assert {(member.uid, member.gid) for member in archive} == {(0, 0)}


async def test_subordinate_ids_are_what_they_are_inside(tmp_path):
    _, map_ids = mapping()
    for name in ("root", "again"):
        (tmp_path / name).mkdir()
    data = tar(Member("a", uid=5, gid=6, mode=0o4700), Member("b", content=b"b", mode=0), directory("d", 0, uid=65_533))
    await Unpacking(binary.found, map_ids=map_ids)(cut(data), tmp_path / "root", [], LIMITS)
    found = await packed(tmp_path / "root", map_ids=map_ids)
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        members = {member.name: (member.uid, member.gid, member.mode) for member in archive}
    assert (members["a"], members["b"], members["d"]) == ((5, 6, 0o4700), (0, 0, 0), (65_533, 0, 0))
    await Unpacking(binary.found, map_ids=map_ids)(cut(found), tmp_path / "again", [], LIMITS)
    assert await packed(tmp_path / "again", map_ids=map_ids) == found


@pytest.mark.skipif(not IS_ROOT or shutil.which("setpriv") is None, reason="only root becomes somebody else")
async def test_an_ordinary_user_without_other_ids(tmp_path):
    """He reads what is his, and it belongs to root."""
    into, program = tmp_path / "root", tmp_path / "aviato-init"
    into.mkdir()
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == 0 and path.is_relative_to(tmp_path.parents[1]):
            path.chmod(0o755)
    shutil.copy(binary.found(), program)
    unpacked(LAYER, into, user=65_534)
    fd = os.open(into, os.O_DIRECTORY)
    try:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(program), "layer", "--pack", str(fd)]
        done = subprocess.run(command, pass_fds=[fd], capture_output=True)
    finally:
        os.close(fd)
    if b"Permission denied" in done.stderr:
        pytest.skip("ordinary users get no user namespaces here")
    assert (done.returncode, done.stderr) == (0, b"")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        members = {member.name: member for member in archive}
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}
    assert members["a/none"].size == 6 and "a/closed/in" in members


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MEMBERS)
def test_any_members(tmp_path_factory, members):
    above = tmp_path_factory.mktemp("any")
    root = above / "root"
    root.mkdir()
    try:
        unpacked(tar(*members), root, *OWNERS)
    except AssertionError:
        return  # One that no honest program writes.
    found = asyncio.run(packed(root, owners=IS_ROOT))
    again = unpack(found, above / "again")
    if IS_ROOT:
        assert seen(again) == seen(root)
    assert asyncio.run(packed(again, owners=IS_ROOT)) == found
    subprocess.run(["chmod", "-R", "u+rwx", str(above)], check=True)


async def test_what_cannot_be_packed_is_named(tmp_path):
    (tmp_path / ".wh.x").write_text("")
    with pytest.raises(SandboxImageError, match=r"cannot be packed: '\.wh\.x'") as caught:
        await packed(tmp_path)
    assert caught.value.reason == "name" and caught.value.is_infrastructure
    with pytest.raises(SandboxImageError, match="No such file") as caught:
        await packed(tmp_path / "none")
    assert caught.value.reason == "pack_failed"
    with pytest.raises(SandboxImageError, match="cannot be started"):
        async with aclosing(Packing(lambda: "/no/such/program")(tmp_path)) as pieces:
            await anext(pieces)


async def test_who_stops_early_leaves_no_process(tmp_path):
    (tmp_path / "large").write_bytes(bytes(30 << 20))
    before = children()
    async with aclosing(Packing(binary.found)(tmp_path)) as pieces:
        assert await anext(pieces)
        assert children() - before
    await until(lambda: not children() - before)
    assert Path(tmp_path, "large").exists()
