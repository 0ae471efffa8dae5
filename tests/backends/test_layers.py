"""Places and layers that one sandbox after the other has: given again only where nobody can tell them from new ones."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from aviato.server.backends.local import left
from aviato.server.backends.local.backend import LocalBackend
from tests.attacks.programs import LOCKED_IN_SOCKETS
from tests.real_backend import CARRIER, open_backend

pytestmark = pytest.mark.anyio


@pytest.fixture
async def backend(anyio_backend, monkeypatch):
    monkeypatch.setattr(left, "REST_SECONDS", 0)
    async for opened in open_backend(CARRIER):
        if not opened._layered:
            pytest.skip("without layers a sandbox has names of its own")
        yield opened


HELD = []


@pytest.fixture(autouse=True)
def holding():
    yield
    while HELD:
        os.close(HELD.pop())


def layer_of(backend, box):
    """What tells one upper directory from another: its number, which no other one gets while it is held."""
    HELD.append(os.open(f"{backend._directories.path(box.id)}/upper", os.O_PATH))
    return os.fstat(HELD[-1]).st_ino


async def used(backend, boxes, script, **options):
    """Whether the next sandbox has the layers of one in which this ran, as if nothing had."""
    async with boxes.make_box(backend, **options) as box:
        first = layer_of(backend, box), backend._held[box.id].uid
        result = await box.sh(script)
        assert (result.returncode, result.stderr) == (0, "")
    async with boxes.make_box(backend) as box:
        second = layer_of(backend, box), backend._held[box.id].uid
        seen = await look(box)
    await backend._left.clear()
    async with boxes.make_box(backend) as box:
        assert seen == await look(box), script
    await backend._left.clear()
    if os.geteuid() == 0:
        assert (first[1] == second[1]) == (first[0] == second[0])
    return first[0] == second[0]


LOOK = r"""
import array, fcntl, os, sys
def flags(path):
    held = os.open(path, os.O_RDONLY)
    found = []
    for number, size in ((0x80086601, 8), (0x801c581f, 28)):
        room = array.array("B", bytes(size))
        try:
            fcntl.ioctl(held, number, room)
        except OSError as error:
            room = error.errno
        found.append(room)
    return found
top = os.stat("/")
print(oct(top.st_mode), top.st_uid, top.st_gid, os.listxattr("/"), flags("/"))
others = ("/proc", "/usr", "/sys", "/dev", "/root/.pyenv")
for path, directories, files in os.walk("/", onerror=print):
    directories[:] = sorted(name for name in directories if os.path.join(path, name) not in others)
    for name in sorted(directories + files):
        name = os.path.join(path, name)
        found = os.lstat(name)
        size = "" if os.path.isdir(name) else found.st_size
        print(name, oct(found.st_mode), found.st_uid, found.st_gid, size, os.listxattr(name, follow_symlinks=False))
"""


async def look(box):
    """All of its tree but for what is nobody's to change, and of the top all that can be told."""
    result = await box.python(LOOK)
    assert result.returncode == 0, result.stderr
    return result.stdout.replace(box.id, "")


UNNAMED = 'import os; os.write(os.open("/tmp", os.O_TMPFILE | os.O_RDWR), b"x")'
NOTHING = {
    "nothing": "true",
    "a program of the machine": "python3 -I -c 'import json; print(1)'",
    "everything was read": "ls -laR /etc /opt /home >/dev/null; ls /; cat /etc/passwd; find / -xdev >/dev/null",
    "files in memory": "echo x > /dev/shm/x; echo x > /.aviato/own/x",
    "a file without a name": f"python3 -I -c '{UNNAMED}'",
    "what cannot be": "touch /usr/x /proc/x /dev/x 2>/dev/null; rm -rf /usr/bin /proc/sys 2>/dev/null; true",
}
SOMETHING = {
    "a file": "echo x > /tmp/x",
    "a file that was removed": "echo x > /tmp/x; rm /tmp/x",
    "a file at the top": "touch /x",
    "a file at the top that was removed": "touch /x; rm /x",
    "a directory": "mkdir -p /opt/a/b",
    "what lies below was removed": "rmdir /opt",
    "what lies below was renamed": "mv /opt /other",
    "what lies below was changed": "chmod 700 /home",
    "times of what lies below": "touch -d @12345 /home",
    "a file of what lies below": "echo nobody >> /etc/passwd",
    "a link": "ln -s /tmp /x",
    "a pipe": "mkfifo /workspace/p",
    "the mode of the top": "chmod 700 /",
    "the time of the top": "touch -d @12345 /",
    "an attribute of the top": 'python3 -I -c \'import os; os.setxattr("/", "user.x", b"from the one to the other")\'',
}
TOP_FLAGS = """
import array, fcntl, os
held = os.open("/", os.O_RDONLY)
found = array.array("L", [0])
fcntl.ioctl(held, 0x80086601, found)
found[0] |= 0x40
try:
    fcntl.ioctl(held, 0x40086602, found)
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize("what", NOTHING)
async def test_layers_that_nobody_changed_are_had_again(backend, boxes, what):
    assert await used(backend, boxes, NOTHING[what]) or what == "a file without a name"


@pytest.mark.parametrize("what", SOMETHING)
async def test_layers_that_somebody_changed_are_not(backend, boxes, what):
    assert not await used(backend, boxes, SOMETHING[what])


async def test_flags_of_the_top_are_a_change(backend, boxes):
    async with boxes.make_box(backend) as box:
        first = layer_of(backend, box)
        result = await box.python(TOP_FLAGS)
        assert result.returncode == 0, result.stderr
    if result.stdout:
        pytest.skip("this file system takes no such flags")
    async with boxes.make_box(backend) as box:
        assert layer_of(backend, box) != first


async def test_when_the_top_was_read_is_not_told_to_the_next(backend, boxes):
    """Any time can be set there, so it would be a way to send it something."""
    async with boxes.make_box(backend) as box:
        first = layer_of(backend, box)
        set_it = "import os; found = os.stat('/'); os.utime('/', ns=(123456789, found.st_mtime_ns))"
        assert (await box.python(set_it)).returncode == 0
    async with boxes.make_box(backend) as box:
        assert layer_of(backend, box) == first
        told = await box.python("import os; print(os.stat('/').st_atime_ns)")
        assert int(told.stdout) > 123456789  # Process 1 may have counted what is there.


async def test_when_the_top_was_changed_is_not_told_to_the_next(backend, boxes):
    """Who tries until the clock says what he wants could choose it."""
    ask = "import os; found = os.stat('/'); os.utime('/', ns=(found.st_mtime_ns,) * 2); print(os.stat('/').st_ctime_ns)"
    async with boxes.make_box(backend) as box:
        first = layer_of(backend, box)
        chosen = int((await box.python(ask)).stdout)
    async with boxes.make_box(backend) as box:
        assert layer_of(backend, box) == first
        assert int((await box.python("import os; print(os.stat('/').st_ctime_ns)")).stdout) > chosen


LOCK = "import fcntl, os; fcntl.flock(os.open('/', os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"


async def test_nobody_has_what_the_one_before_still_has_open(backend, boxes):
    """What is on its way in sockets outlives all processes: with its locks, and what it counts for."""
    async with boxes.make_box(backend) as box:
        first = layer_of(backend, box)
        result = await box.python(LOCKED_IN_SOCKETS)
        assert result.returncode == 0, result.stderr
    async with boxes.make_box(backend) as box:
        assert layer_of(backend, box) != first
        assert (await box.python(LOCK)).returncode == 0


async def test_one_rests_until_the_kernel_has_closed_what_was_open(backend, boxes, monkeypatch):
    monkeypatch.setattr(left, "REST_SECONDS", 0.5)
    async with boxes.make_box(backend) as box:
        first = layer_of(backend, box)
    async with boxes.make_box(backend) as box:
        assert layer_of(backend, box) != first
    await asyncio.sleep(0.5)
    async with boxes.make_box(backend) as box:
        assert layer_of(backend, box) == first


async def test_it_is_another_sandbox_in_all_else(backend, boxes):
    seen = []
    for _ in range(3):
        async with boxes.make_box(backend) as box:
            result = await box.sh("hostname; cat /etc/hosts; cat /proc/self/mountinfo; ls -A /run /dev/shm; echo $$")
            assert box.id in result.stdout and not any(other in result.stdout for other, _ in seen)
            assert not os.path.exists(f"{backend._directories.path(box.id)}/p")
            seen.append((box.id, layer_of(backend, box)))
    assert len({layer for _, layer in seen}) == 1
    assert os.listdir(backend._directories.left) == [seen[-1][0]] and os.listdir(backend._directories.sandboxes) == []


async def test_it_is_used_like_any_other(backend, boxes):
    """Written to, counted, and read through the link."""
    for number in range(4):
        async with boxes.make_box(backend) as box:
            if number % 2:
                await box.put("/workspace/f", b"x" * 100_000)
                assert await box.get("/workspace/f") == b"x" * 100_000
                assert (await box.sh("rm /etc/passwd; stat -c %u:%s /workspace/f; df / | tail -1")).stdout.startswith(
                    "0:100000\n"
                )
            else:
                assert (await box.sh("test -e /workspace/f || cat /etc/passwd")).stdout.startswith("root:")


async def test_as_many_as_there_were_at_once(backend, boxes):
    async def one(script):
        async with boxes.make_box(backend) as box:
            return layer_of(backend, box), (await box.sh(script)).stdout

    first = await asyncio.gather(*(one("sleep 0.2") for _ in range(8)))
    second = await asyncio.gather(*(one("sleep 0.2; ls /tmp") for _ in range(8)))
    assert {layer for layer, _ in first} == {layer for layer, _ in second} and len(dict(first)) == 8
    assert all(said == "" for _, said in second)
    assert len(backend._left) == 8 and await backend.place_ids() == []


async def test_other_kinds_of_sandboxes_have_their_own(backend, boxes, tmp_path, monkeypatch):
    monkeypatch.setattr(left, "KEPT_SECONDS", 60.0)
    tmp_path.chmod(0o755)
    async with boxes.make_box(backend, requests={}) as box:
        first = layer_of(backend, box)
    assert len(backend._left) == 1
    async with boxes.make_box(backend, exposes_ports=True) as box:
        assert layer_of(backend, box) != first
    other = next((one for one in backend._interpreters if one.minor != backend._interpreters[0].minor and one.minor >= 8), None)
    if other is not None:
        async with boxes.make_box(backend, f"python:3.{other.minor}") as box:
            assert layer_of(backend, box) != first
    async with boxes.make_box(backend) as box:
        assert layer_of(backend, box) == first


async def test_nobody_keeps_them_for_long(backend, boxes, monkeypatch):
    monkeypatch.setattr(left, "KEPT_SECONDS", 0.2)
    async with boxes.make_box(backend):
        pass
    assert len(backend._left) == 1
    async with asyncio.timeout(60):
        while os.listdir(backend._directories.left) or backend._left._removing:
            await asyncio.sleep(0.02)
    assert len(backend._left) == 0 and not backend._uids._used and not backend._held


async def test_no_more_are_kept_than_there_is_use_for(backend, boxes, monkeypatch):
    monkeypatch.setattr(left, "MOST", 2)
    async with boxes.make_box(backend), boxes.make_box(backend), boxes.make_box(backend), boxes.make_box(backend):
        pass
    async with asyncio.timeout(60):
        while backend._left._removing:
            await asyncio.sleep(0.02)
    assert len(backend._left) == 2 == len(os.listdir(backend._directories.left))


@pytest.mark.parametrize("how", ["the zygote was killed", "the zygote forgot it", "the place is gone"])
async def test_one_that_cannot_be_had_is_made_anew(backend, boxes, how):
    async with boxes.make_box(backend) as box:
        first = layer_of(backend, box)
    (place,) = backend._left._left.values()
    if how == "the zygote was killed":
        backend._zygote._process.kill()
        while backend._zygote.alive:
            await asyncio.sleep(0.01)
    elif how == "the zygote forgot it":
        backend._zygote.forget([place.lent.number])
    else:
        os.rename(backend._directories.left_path(place.sandbox_id), backend._directories.trash / "x")
    async with boxes.make_box(backend) as box:
        assert layer_of(backend, box) != first
        assert (await box.run("true")).returncode == 0
    await backend._left.clear()
    assert os.listdir(backend._directories.sandboxes) == [] == os.listdir(backend._directories.left) and not backend._uids._used


async def test_who_cannot_ask_the_template_removes_the_place(backend, boxes, monkeypatch):
    from aviato.server.backends.local import zygote

    monkeypatch.setattr(zygote, "BURIAL_SECONDS", 0.1)
    async with boxes.make_box(backend):
        pid = backend._zygote._process.pid
        os.kill(pid, 19)
    try:
        assert len(backend._left) == 0 and os.listdir(backend._directories.sandboxes) == []
    finally:
        os.kill(pid, 18)
    async with boxes.make_box(backend) as box:
        assert (await box.run("true")).returncode == 0


async def test_what_the_template_says_too_late_is_taken_away_all_the_same(backend, boxes, monkeypatch):
    from aviato.server.backends.local import zygote

    monkeypatch.setattr(zygote, "BURIAL_SECONDS", 0.1)
    real = backend._directories.remove

    def remove(*arguments, **options):
        os.kill(pid, 18)  # It comes to the burial before the place is removed.
        while os.path.exists(backend._directories.path(arguments[0])):
            time.sleep(0.01)
        real(*arguments, **options)

    monkeypatch.setattr(backend._directories, "remove", remove)
    async with boxes.make_box(backend):
        pid = backend._zygote._process.pid
        os.kill(pid, 19)
    async with asyncio.timeout(60):
        while os.listdir(backend._directories.left) or backend._left._removing:
            await asyncio.sleep(0.02)
    assert len(backend._left) == 0 and not backend._uids._used


async def test_who_is_always_refused_asks_no_more(backend, boxes, caplog):
    for _ in range(8):
        async with boxes.make_box(backend) as box:
            assert (await box.run("true")).returncode == 0
        for place in backend._left._left.values():
            backend._zygote.forget([place.lent.number])
    assert sum("could not be had" in record.message for record in caplog.records) == 3
    assert len(backend._left) <= 1


async def test_results_that_were_kept_are_not_written_over(backend, boxes, tmp_path):
    """The note of a sandbox has another name then, by which a later server or reader finds it."""
    async with boxes.make_box(backend) as box:
        first = layer_of(backend, box)
        await box.finish(*box.start("echo", "word"), done=False)
        await box.link.stop(1)
        kept = Path(backend._directories.trash) / "kept"
        assert backend.leave_results(box.id, str(kept))
    async with boxes.make_box(backend) as box:
        assert layer_of(backend, box) != first
    assert b'"exec_id"' in kept.read_bytes()


async def test_what_another_server_left_is_taken_away(backend, boxes):
    async with boxes.make_box(backend) as box:
        pass
    assert os.listdir(backend._directories.left) == [box.id]
    other = LocalBackend(backend._directories.sandboxes.parent)
    await other.open()
    assert os.listdir(backend._directories.left) == [] and not other._uids._used
    await other.close()


@pytest.fixture
async def fragile(anyio_backend, monkeypatch, tmp_path):
    """A backend whose disk can fail: a file of a file system in memory that is smaller than it. And a way to mend it."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("a disk is made by root, with mkfs.ext4")
    monkeypatch.setattr(left, "REST_SECONDS", 0)
    memory, disk = tmp_path / "memory", Path(tempfile.mkdtemp(prefix="aviato-disk-", dir="/tmp"))
    memory.mkdir()
    mounted = []

    def run(*argv):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0 and argv[0] == "mount":
            pytest.skip(f"{' '.join(map(str, argv))}: {done.stderr.strip()}")

    try:
        run("mount", "-t", "tmpfs", "-o", "size=40m", "none", memory)
        mounted.append(memory)
        with open(memory / "disk", "wb") as file:
            file.truncate(256 << 20)
        run("mkfs.ext4", "-q", "-O", "^has_journal", memory / "disk")
        run("mount", "-o", "loop,errors=continue", memory / "disk", disk)
        mounted.append(disk)
        async for opened in open_backend("local", disk):
            if not opened._layered:
                pytest.skip("without layers a sandbox has names of its own")
            yield opened, lambda: run("mount", "-o", "remount,size=400m", memory)
    finally:
        for path in reversed(mounted):
            run("umount", "-l", path)
        disk.rmdir()


SAVED = """
import os
with open("/g", "w") as file:
    file.write("x")
    file.flush()
    try:
        os.fsync(file)
        print("saved")
    except OSError:
        print("failed")
os.remove("/g")
"""


async def test_nobody_has_a_root_whose_disk_has_failed(fragile, boxes):
    """Each `fsync` in a volatile layer fails from then on, for whoever has it, whoever wrote what was lost."""
    backend, mend = fragile
    async with boxes.make_box(backend) as box:
        first = layer_of(backend, box)
        async with boxes.make_box(backend) as other:
            assert (await other.sh("head -c 80000000 /dev/zero > /f")).returncode == 0
            await asyncio.to_thread(subprocess.run, ["sync", "-f", backend._directories.sandboxes], capture_output=True)
            assert (await other.python(SAVED)).stdout == "failed\n"
    assert len(backend._left) == 1
    mend()
    async with boxes.make_box(backend) as box:
        assert layer_of(backend, box) != first
        assert (await box.python(SAVED)).stdout == "saved\n"
