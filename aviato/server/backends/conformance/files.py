"""docs/protocol.md: Files."""

from __future__ import annotations

import io
import json
import os
import tarfile
from typing import Any

import pytest

from aviato.server.backends.conformance.peer import Peer, Refused
from aviato.server.backends.conformance.process_1 import Process1
from aviato.wire.frames import FrameType

pytestmark = pytest.mark.anyio

SIZES = (0, 1, 100_000, 3 << 20)


async def refused(call) -> tuple[str, str | None]:
    with pytest.raises(Refused) as caught:
        await call
    return caught.value.code, caught.value.reason


@pytest.mark.parametrize("size", SIZES)
async def test_a_file_comes_back_as_it_was(peer: Peer, size) -> None:
    content = os.urandom(size)
    assert await peer.put("made/below/file", content) == {}
    said, found = await peer.get("made/below/file")
    assert found == content
    assert (said["size_bytes"], said["type"], said["mode"], said["link_target"]) == (size, "file", 0o644, None)


async def test_a_file_keeps_its_mode_unless_another_is_asked_for(peer: Peer) -> None:
    await peer.put("f", b"1", mode=0o750)
    await peer.put("f", b"2")
    assert (await peer.ask("stat", path="f"))["mode"] == 0o750
    await peer.put("f", b"3", mode=0o600)
    assert (await peer.ask("stat", path="f"))["mode"] == 0o600


async def test_a_file_that_is_not_whole_is_not_there(peer: Peer) -> None:
    await peer.put("f", b"before")
    channel = await peer.begin("write", path="f", mode=None, size=100)
    await peer.send(FrameType.DATA, b"half", channel=channel)
    await peer.send(FrameType.END, channel=channel)
    assert await refused(peer.reply(channel)) == ("FILE", "file")
    assert (await peer.get("f"))[1] == b"before"
    assert [entry["path"].rsplit("/", 1)[1] for entry in await listed(peer, ".")] == ["f"]


async def listed(peer: Peer, path: str) -> list[dict[str, Any]]:
    return list(json.loads(await peer.rest(await peer.begin("list", path=path))))


async def test_parts_go_on_where_a_cut_left_them(process_1: Process1) -> None:
    peer, content = process_1.peer, os.urandom(500_000)
    fields: dict[str, Any] = {"path": "f", "mode": None, "key": "a"}
    channel = await peer.begin("write", **fields, offset=0, size=300_000, last=False)
    await peer.send(FrameType.DATA, content[:300_000], channel=channel)
    await peer.send(FrameType.END, channel=channel)
    await peer.reply(channel)
    other = await process_1.connect()
    for _ in range(2):  # The second time it was done.
        channel = await other.begin("write", **fields, offset=200_000, size=300_000, last=True)
        await other.send(FrameType.DATA, content[200_000:], channel=channel)
        await other.send(FrameType.END, channel=channel)
        assert await other.reply(channel) == {}
    assert (await other.get("f"))[1] == content
    lost = await other.begin("write", path="g", mode=None, key="b", offset=5, size=1, last=True)
    assert await refused(other.reply(lost)) == ("UNAVAILABLE", "upload_lost")


async def test_reading_goes_on_while_the_file_is_the_same(peer: Peer) -> None:
    await peer.put("f", b"0123456789")
    said, _ = await peer.get("f")
    again, rest = await peer.get("f", offset=4, version=said["version"])
    assert rest == b"456789" and again["version"] == said["version"]
    await peer.put("f", b"0123456789")
    assert await refused(peer.get("f", offset=4, version=said["version"])) == ("FILE", "changed")


async def test_no_more_is_sent_than_the_window(peer: Peer) -> None:
    await peer.put("f", bytes(3 << 20))
    channel = await peer.begin("read", path="f", max_bytes=None, window=300_000)
    assert (await peer.next(channel)).type == FrameType.REPLY
    got = 0
    for _ in range(3):
        await peer.ask("ping")
        while not peer.silent(channel):
            got += len((await peer.next(channel)).payload)
    assert 0 < got <= 300_000 + (256 << 10)
    await peer.send(FrameType.CLOSE, channel=channel)
    while (await peer.next(channel)).type != FrameType.CLOSE:
        pass


async def test_refusals_have_their_reasons(peer: Peer) -> None:
    await peer.put("d/f", b"x" * 100)
    await peer.sh("mkfifo pipe; ln -s /proc/self/maps maps; ln -s loop loop; mkdir closed")
    reasons = {
        "no_such_file": (
            peer.get("nothing"),
            peer.ask("stat", path="nothing"),
            peer.ask("remove", path="nothing", recursive=False),
        ),
        "is_a_directory": (peer.get("d"),),
        "not_a_directory": (peer.ask("stat", path="d/f/x"), listed(peer, "d/f"), peer.get("d/f", op="read_tree")),
        "file_exists": (peer.ask("mkdir", path="d/f", mode=0o755),),
        "directory_not_empty": (peer.ask("remove", path="d", recursive=False),),
        "too_large": (peer.get("d/f", max_bytes=99),),
        "permission_denied": (peer.ask("remove", path="/", recursive=True),),
        "not_a_regular_file": (peer.get("pipe"), peer.get("maps"), peer.get("/proc/1/status"), peer.get("/dev/null")),
    }
    for reason, calls in reasons.items():
        for number, call in enumerate(calls):
            assert await refused(call) == ("FILE", reason), (reason, number)


async def test_directories_are_made_listed_and_removed(peer: Peer) -> None:
    await peer.ask("mkdir", path="a/b/c", mode=0o700)
    await peer.ask("mkdir", path="a/b/c", mode=0o700)
    await peer.put("a/z", b"1")
    await peer.sh("ln -s z a/link")
    entries = await listed(peer, "a")
    assert [(entry["path"].rsplit("/", 1)[1], entry["type"]) for entry in entries] == [
        ("b", "directory"),
        ("link", "symlink"),
        ("z", "file"),
    ]
    assert entries[1]["link_target"] == "z" and (await peer.ask("stat", path="a/b/c"))["mode"] == 0o700
    await peer.ask("remove", path="a", recursive=True, key="r")
    await peer.ask("mkdir", path="a", mode=0o755)
    await peer.ask("remove", path="a", recursive=True, key="r")
    assert (await peer.ask("stat", path="a"))["type"] == "directory"


async def test_a_tree_comes_back_as_it_was(peer: Peer) -> None:
    await peer.sh("mkdir -p t/d; echo 1 > t/a; echo 2 > t/d/b; ln -s ../a t/d/l; chmod 755 t/a")
    said, archive = await peer.get("t", op="read_tree")
    assert said["type"] == "directory"
    await peer.put_tree("u", archive)
    shown = await peer.sh("cd u; cat a d/b d/l; readlink d/l; stat -c %a a")
    assert shown.stdout == "1\n2\n1\n../a\n755\n"


async def test_an_exact_tree_comes_back_as_it_was(peer: Peer) -> None:
    made = "mkdir -p t/d u/d; echo 1 > t/a; ln t/a t/d/b; ln -s ../a t/d/l; chmod 700 u"
    owned = "chown 5:6 t/a t/d 2>/dev/null; chown -h 7:8 t/d/l 2>/dev/null"
    await peer.sh(f"{made}; {owned}; chmod 4750 t/a; chmod 2751 t/d")
    _, archive = await peer.get("t", op="read_tree", exact=True)
    await peer.put_tree("u", archive, exact=True)
    listed = "find . -mindepth 1 -printf '%P %y %m %U:%G %n %l\n' | sort; cat d/b"
    expected = (await peer.sh(f"cd t; {listed}")).stdout
    assert "a f 4750" in expected and expected.count(" 2 \n") >= 2
    assert (await peer.sh(f"cd u; {listed}")).stdout == expected
    assert (await peer.ask("stat", path="u"))["mode"] == 0o700
    said, archive = await peer.get("t/d/l", op="read_tree", exact=True)
    await peer.put_tree("v", archive, exact=True)
    assert said["type"] == "file" and (await peer.sh("stat -c %a v/file; ls v")).stdout == "4750\nfile\n"


async def test_an_owner_that_it_cannot_have_is_refused(peer: Peer) -> None:
    ids = (await peer.sh("cat /proc/self/uid_map")).stdout.split()
    if ids[2:] not in (["1"], ["65536"], ["65535"]):
        pytest.skip("it can have all")
    assert await refused(peer.put_tree("u", archive(name="f", uid=70_000), exact=True)) == ("FILE", "owner")
    assert (await peer.sh("ls")).stdout == ""


def archive(**fields: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        entry = tarfile.TarInfo()
        for name, value in fields.items():
            setattr(entry, name, value)
        made.addfile(entry, io.BytesIO(b"x" * entry.size))
    return buffer.getvalue()


HOSTILE: dict[str, dict[str, Any]] = {
    "above": {"name": "../out", "size": 1},
    "absolute": {"name": "/tmp/out", "size": 1},
    "a device": {"name": "null", "type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
    "a hard link out": {"name": "l", "type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"},
    "a hard link to what is there": {"name": "l", "type": tarfile.LNKTYPE, "linkname": "etc/passwd"},
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
async def test_no_archive_leaves_its_directory(peer: Peer, name, exact) -> None:
    try:
        await peer.put_tree("u", archive(**HOSTILE[name]), exact=exact)
    except Refused as caught:
        assert caught.code == "FILE"
    shown = await peer.sh("ls /tmp out ../out 2>/dev/null; test -c u/null && echo device; test -e u/l && echo linked; true")
    assert shown.stdout.replace("/tmp:\n", "").strip() == ""
