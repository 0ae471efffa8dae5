"""Files through the real program."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from aviato.exceptions import AviatoValidationError, SandboxFileError, SandboxUnavailableError
from aviato.wire.files import FilePart

pytestmark = pytest.mark.anyio


async def size_of(reader):
    return sum([len(piece) async for piece in reader])


async def refused(awaitable):
    with pytest.raises(SandboxFileError) as caught:
        await awaitable
    return caught.value.reason


async def test_round_trip(box):
    data = os.urandom(3_000_000)
    await box.put("deep/er/file", data)
    assert await box.get("/workspace/deep/er/file") == data
    stat = await box.link.stat("deep/er/file")
    assert (stat["path"], stat["size_bytes"], stat["mode"], stat["type"]) == (
        "/workspace/deep/er/file",
        len(data),
        0o644,
        "file",
    )
    assert abs(stat["mtime"] - time.time()) < 60
    await box.put("empty", b"")
    assert await box.get("empty") == b""


async def test_modes(box):
    await box.put("f", b"1", mode=0o750)
    await box.put("f", b"2")
    assert (await box.link.stat("f"))["mode"] == 0o750
    await box.put("f", b"3", mode=0o600)
    assert (await box.link.stat("f"))["mode"] == 0o600
    await box.link.make_directory("d", 0o700)
    assert (await box.link.stat("d"))["mode"] == 0o700


async def test_a_write_is_whole_or_nothing(box):
    await box.put("f", b"old")

    async def failing():
        yield b"new" * 100_000
        raise RuntimeError("source")

    with pytest.raises(RuntimeError, match="source"):
        await box.link.write_file("f", failing())
    assert await refused(box.put("f", b"new", size_bytes=4)) == "file"
    assert await refused(box.put("f", b"new", size_bytes=2)) == "file"
    assert await box.get("f") == b"old"
    assert [entry["path"] for entry in await box.link.list_files("/workspace")] == ["/workspace/f"]


async def test_a_cancelled_write_leaves_nothing(box):
    async def endless():
        while True:
            yield b"x" * 65536
            await asyncio.sleep(0)

    task = asyncio.create_task(box.link.write_file("big", endless()))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await box.link.ping()
    assert await box.link.list_files("/workspace") == []


async def test_a_copy_that_overtakes_a_write_makes_it_come_again(box):
    """A proxy may send a request twice: the caller waits on one connection while the other one has the file."""
    part = FilePart("the key", 0, last=True)
    going, ended = asyncio.Event(), asyncio.Event()

    async def slowly():
        yield b"first half"
        going.set()
        await ended.wait()
        yield b", second half"

    async def whole():
        yield b"first half, second half"
        ended.set()

    first = asyncio.create_task(box.link.write_file("f", slowly(), part=part))
    await going.wait()
    await box.link.write_file("f", whole(), part=part)
    with pytest.raises(SandboxUnavailableError) as caught:
        await first
    assert (caught.value.reason, caught.value.retryable, caught.value.is_infrastructure) == ("replaced", True, True)
    await box.link.write_file("f", whole(), part=part)
    assert await box.get("f") == b"first half, second half"


async def test_readers_see_old_or_new(box):
    await box.put("f", b"a" * 100_000)
    exec_id, subscription = box.start("python3", "-c", "while True:\n assert len(set(open('f').read())) == 1")
    for byte in b"abcdefgh":
        await box.put("f", bytes([byte]) * 100_000)
    await box.link.cancel(exec_id)
    assert (await box.finish(exec_id, subscription)).stderr == ""


async def test_a_file_takes_the_place_of_another_one_in_one_step(box, monkeypatch):
    """By an exchange of names, and where that cannot be by a rename: nobody sees a name without a file."""
    await box.put("f", b"0" * 1000)
    watcher = "while [ -e f ]; do [ -e done ] && exit 7; done; exit 8"
    exec_id, subscription = box.start("sh", "-c", watcher)
    for number in range(1, 40):
        content = b"%d" % number * (3_000_000 if number % 10 == 0 else 1000)
        await box.put("f", content)  # One larger than what is exchanged, too.
        assert await box.get("f") == content
    await box.put("done", b"1")
    assert (await box.finish(exec_id, subscription)).exit["returncode"] == 7
    assert [one["path"].rpartition("/")[2] for one in await box.link.list_files(".")] == ["done", "f"]


async def test_links_are_followed_inside(box):
    await box.sh("ln -s /workspace/target link; ln -s /etc/passwd passwd; echo old > target")
    await box.put("link", b"new")
    assert await box.get("target") == b"new"
    assert (await box.link.stat("link"))["type"] == "symlink"
    assert (await box.link.stat("link"))["link_target"] == "/workspace/target"
    assert (await box.get("passwd")).startswith(b"root:x:0:0:")


async def test_reasons(box):
    await box.sh("mkdir d full; touch full/x; mkfifo fifo; echo x > f; ln -s loop loop")
    link = box.link
    cases = {
        "no_such_file": [box.get("nothing"), link.stat("nothing"), link.list_files("nothing"), link.remove("nothing")],
        "is_a_directory": [box.get("d"), box.put("d", b""), box.put("x/", b"")],
        "not_a_directory": [link.list_files("f"), box.get("f/x"), box.put("f/x", b""), link.make_directory("f/x")],
        "not_a_regular_file": [box.get("fifo"), box.get("/dev/zero"), box.put("fifo", b""), box.put("/dev/null", b"")],
        "directory_not_empty": [link.remove("full")],
        "file_exists": [link.make_directory("f")],
        "read_only": [box.put("/usr/x", b""), link.make_directory("/usr/x"), link.remove("/usr/bin/env")],
        "too_large": [box.get("f", max_bytes=1)],
        "permission_denied": [link.remove("/", recursive=True), link.remove("/workspace/..")],
    }
    for reason, calls in cases.items():
        for call in calls:
            assert await refused(call) == reason
    assert await refused(box.get("loop")) == "file"
    assert await refused(box.get("a" * 300)) == "file"


async def test_a_growing_file_is_cut_at_the_limit(box):
    """The limit of the call: without one it is read to its end, as far as any file may be long."""
    for limit in (None, 5_000_000):
        await box.sh("head -c 4000000 /dev/zero > grows")
        reader = box.link.read_file("grows", max_bytes=limit)
        assert (await reader.opened())["size_bytes"] == 4_000_000
        await box.sh("head -c 4000000 /dev/zero >> grows")
        if limit is None:
            assert await size_of(reader) == 8_000_000
        else:
            assert await refused(size_of(reader)) == "too_large"


async def test_listing(box):
    await box.sh("mkdir d; cd d; touch b a; mkdir c; ln -s /nowhere l; touch \"$(printf 'new\\nline\\377')\"")
    entries = await box.link.list_files("d")
    assert [entry["path"] for entry in entries] == [f"/workspace/d/{name}" for name in ("a", "b", "c", "l", "new\nline\ufffd")]
    assert [entry["type"] for entry in entries] == ["file", "file", "directory", "symlink", "file"]
    assert await box.link.list_files("d/c") == []


async def test_a_listing_is_cut_into_frames_that_fit(box):
    script = "import os\nos.mkdir('d')\nfor n in range(700): os.symlink(b'\\xff' * 4095, f'd/{n}')"
    assert (await box.python(script)).returncode == 0
    entries = await box.link.list_files("d")
    assert [entry["link_target"] for entry in entries] == ["\ufffd" * 4095] * 700
    assert (await box.python("import os\nfor n in range(700, 3000): os.symlink(b'\\xff' * 4095, f'd/{n}')")).returncode == 0
    assert await refused(box.link.list_files("d")) == "too_large"
    assert (await box.run("true")).returncode == 0


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
async def test_every_request_is_answered(box, path):
    for call in (box.link.list_files, box.link.stat, box.link.remove, box.link.make_directory, box.get):
        with pytest.raises(AviatoValidationError):
            await asyncio.wait_for(call(path), 5)


@pytest.mark.deep
async def test_a_huge_listing_is_refused_and_holds_nobody_back(box):
    await box.python("import os\nos.mkdir('many')\nfor n in range(100_001): os.mknod(f'many/{n}')")
    listing = asyncio.create_task(refused(box.link.list_files("many")))
    waits = []
    begin = time.monotonic()
    while not listing.done():
        since = time.monotonic()
        await box.run("true")
        waits.append(time.monotonic() - since)
    assert await listing == "too_large"
    # Of a listing that held it back the first command would see all.
    assert max(waits) < (time.monotonic() - begin) / 2
    await box.link.remove("many/0")
    assert len(await box.link.list_files("many")) == 100_000
    await box.link.remove("many", recursive=True)


async def test_removing(box):
    deep = "import os\nfor n in range(3000):\n os.mkdir('d'); os.chdir('d')\nopen('f', 'w')"
    await box.python(deep)
    await box.sh("mkdir -p locked/in; touch locked/in/f; chmod 000 locked/in locked; ln -s /etc out")
    await box.link.remove("d", recursive=True)
    await box.link.remove("locked", recursive=True)
    await box.link.remove("out", recursive=True)
    assert await box.link.list_files(".") == []
    assert (await box.run("cat", "/etc/hosts")).returncode == 0


async def test_removing_what_resists(box):
    """Deep, without any permission, and with the names taken that a removal might want for itself."""
    script = """
import os
os.mkdir("tree")
for number in range(1, 200):
    os.makedirs(f"tree/.aviato-1-{number}/inner")
os.chdir("tree")
for _ in range(120):
    os.mkdir("d")
    os.chdir("d")
for _ in range(120):
    os.chmod(".", 0o500)
    os.chdir("..")
"""
    assert (await box.python(script)).returncode == 0
    await box.link.remove("tree", recursive=True)
    assert await box.link.list_files(".") == []


async def test_a_big_transfer_does_not_hold_commands_back(box):
    async def chunks():
        for _ in range(400):
            yield b"x" * (1 << 18)

    writing = asyncio.create_task(box.link.write_file("big", chunks(), size_bytes=400 << 18))
    waits = []
    while not writing.done():
        begin = time.monotonic()
        await box.run("true")
        waits.append(time.monotonic() - begin)
    await writing
    assert max(waits) < 0.5
    reader = box.link.read_file("big")
    assert (await reader.opened())["size_bytes"] == 400 << 18
    first = await anext(reader)
    await asyncio.sleep(0.1)
    await box.run("true")
    await reader.aclose()
    assert set(first) == {ord("x")}
    assert len(await box.get("big")) == 400 << 18


async def test_a_full_disk(box):
    small = "/.aviato/own"  # A file system of its own.
    before = await box.link.list_files(small)
    assert await refused(box.put(f"{small}/big", b"x" * (2 << 20))) == "disk_full"
    assert await box.link.list_files(small) == before


@pytest.mark.parametrize(
    ("made", "path", "place"),
    [
        ("mkdir d; ln -s d/f link", "link", "d/f"),
        ("mkdir d; touch d/f; ln -s ../d/f d/link", "d/link", "d/f"),
        ("ln -s other link", "link/f", "other/f"),
        ("mkdir d; ln -s d link", "link/f", "d/f"),
        ("ln -s none/f link", "link", "none/f"),
        ("", "none/../f", "f"),
        ("mkdir d", "d/../f", "f"),
        ("", "a/b/c/f", "a/b/c/f"),
        ("mkdir d; touch d/f; chmod 640 d/f; ln -s d/f link", "./link", "d/f"),
    ],
)
async def test_where_a_file_is_written(box, made, path, place):
    """Links at the end of a path, on its way and to nowhere, and parents that are missing."""
    await box.sh(made)
    await box.put(path, b"content")
    assert await box.get(place) == b"content"
    assert (await box.link.stat(place))["mode"] == (0o640 if "640" in made else 0o644)
    assert (await box.sh("find . -name '.aviato-*'")).stdout == ""


@pytest.mark.parametrize(
    ("made", "path", "reason"),
    [
        ("mkdir d", "d", "is_a_directory"),
        ("mkdir d; ln -s d link", "link", "is_a_directory"),
        ("touch f", "f/g", "not_a_directory"),
        ("ln -s b a; ln -s a b", "a", "file"),
        ("mkfifo f", "f", "not_a_regular_file"),
    ],
)
async def test_where_no_file_is_written(box, made, path, reason):
    await box.sh(made)
    with pytest.raises(SandboxFileError) as caught:
        await box.put(path, b"content")
    assert caught.value.reason == reason
    assert (await box.sh("find . -name '.aviato-*'")).stdout == ""
