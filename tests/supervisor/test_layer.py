"""What a sandbox has written over its image, sent as a layer while all of its commands stand still."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import time
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from aviato.exceptions import AviatoError, AviatoValidationError, SandboxFileError, SandboxUnavailableError
from aviato.server.backends.local import binary
from aviato.server.images.unpacked_layer import UnpackLimits
from aviato.server.images.unpacking import Unpacking
from tests.images.layers import seen

IS_ROOT = os.geteuid() == 0
LIMITS = UnpackLimits(1 << 30, 100_000)
pytestmark = pytest.mark.anyio


@pytest.fixture
async def box(make_box):
    async with make_box() as made:
        if not upper_of(made).is_dir():
            pytest.skip("writable layers lie over nothing here")
        yield made


def upper_of(box):
    return Path(box.backend._directories.path(box.id)) / "upper"


async def packed(box):
    async with aclosing(box.link.read_layer()) as reader:
        return b"".join([piece async for piece in reader])


async def members(box):
    with tarfile.open(fileobj=io.BytesIO(await packed(box))) as archive:
        return {member.name: member for member in archive}


async def reason(box):
    with pytest.raises(AviatoError) as caught:
        await packed(box)
    return caught.value.reason


def shown(top):
    """What a layer is to have of a directory, with owners as they are inside."""
    base, found = os.lstat(top).st_uid, {}
    for name, one in seen(top).items():
        attributes = {key: value for key, value in one.attributes.items() if not key.startswith("user.overlay.")}
        if one.attributes.get("user.overlay.opaque") == b"y":
            attributes["opaque"] = b"y"
        one = one._replace(owner=(one.owner[0] - base, one.owner[1] - base), attributes=attributes)
        if one.kind == "whiteout":  # Nothing else is said of one.
            one = one._replace(owner=(0, 0), mode=0, mtime=0, names=())
        if one.kind != "other":
            found[name] = one
    return found


# -- what is in it ----------------------------------------------------------------------------------------------------------

MAKE = r"""
import os, socket
os.chdir('/workspace')
for name in ('plain/below', 'closed/in', 'sticky', 'x' * 200 + '/' + 'y' * 200):
    os.makedirs(name)
open('plain/f', 'w').write('content')
open('plain/below/deep', 'wb').write(os.urandom(700_000))
os.link('plain/f', 'plain/below/second')
os.symlink('t' * 300, 'link')
os.link('link', 'link again', follow_symlinks=False)
os.mkfifo('pipe')
os.link('pipe', 'pipe again')
socket.socket(socket.AF_UNIX).bind('socket')
open(b'\xff\xfe\n', 'w').close()
for name, mode in (('plain/setuid', 0o4711), ('plain/none', 0), ('plain/all', 0o6777)):
    open(name, 'w').write(name)
    os.chmod(name, mode)
with open('holes', 'wb') as file:
    file.truncate(50 << 20)
    for at in (0, 10 << 20, 40 << 20):
        os.pwrite(file.fileno(), b'data', at)
open('hole', 'wb').truncate(30 << 20)
os.setxattr('plain/f', 'user.one', b'\0=\n')
os.setxattr('plain/f', 'user.long', b'v' * 3000)
os.setxattr('plain', 'user.of.directory', b'')
for name, uid, gid in (('plain/f', 5, 6), ('link', 7, 8), ('pipe', 9, 10), ('sticky', 1000, 1000), ('plain/setuid', 65533, 3)):
    os.chown(name, uid, gid, follow_symlinks=False)
os.chmod('plain/setuid', 0o4711)
open('closed/in/f', 'w').close()
os.chown('closed/in', 5, 5)
os.chmod('closed/in', 0o100)
os.chmod('closed', 0)
os.chmod('sticky', 0o1777)
os.remove('/etc/magic')
for name in ('skel', 'vim', 'fonts'):
    assert os.system('rm -r /etc/' + name) == 0
os.mkdir('/etc/skel')
open('/etc/fonts', 'w').write('1')
assert os.system('mv /etc/perl /etc/moved') == 0
os.utime('plain/f', ns=(1, 1_500_000_000_123_456_789))
os.utime('link', (7, 7), follow_symlinks=False)
os.utime('plain/below', ns=(1, 1_400_000_000_000_000_001))
"""


@pytest.mark.skipif(not IS_ROOT, reason="only root reads and gives files of other users")
async def test_it_is_unpacked_to_what_it_was(box, tmp_path):
    assert (await box.python(MAKE)).stderr == ""
    assert box.link.knows_layers
    said = await Unpacking(binary.found, owners=True)(box.link.read_layer(), tmp_path, [], LIMITS)
    assert (said.implied, said.left_out) == (0, 0)
    there, expected = shown(tmp_path), shown(upper_of(box))
    assert there.keys() == expected.keys()
    wrong = {name: (one, expected[name]) for name, one in there.items() if one != expected[name]}
    assert not wrong, {name: (str(one)[:300], str(other)[:300]) for name, (one, other) in wrong.items()}
    assert there["workspace/plain/f"].names == ("workspace/plain/below/second", "workspace/plain/f")
    assert there["workspace/link"].names == ("workspace/link", "workspace/link again")
    assert there["workspace/plain/setuid"].mode == 0o4711 and there["workspace/closed/in/f"].kind == "file"
    assert there["etc/magic"].kind == there["etc/vim"].kind == "whiteout"
    assert there["etc/skel"].attributes == {"opaque": b"y"} and there["etc/fonts"].content == b"1"
    assert "workspace/socket" not in there
    assert (tmp_path / "workspace/holes").stat().st_blocks < 2000


async def test_other_programs_read_it(box):
    assert (await box.python(MAKE.replace("os.chown", "(lambda *a, **b: None)"))).stderr == ""
    found = await members(box)
    plain = found["workspace/plain/f"] if found["workspace/plain/f"].isreg() else found["workspace/plain/below/second"]
    assert plain.pax_headers["mtime"] == "1500000000.123456789"
    assert plain.pax_headers["SCHILY.xattr.user.one"] == "\0=\n"
    assert found["etc/.wh.magic"].size == 0 and "etc/skel/.wh..wh..opq" in found
    assert list(found).index("etc/skel/.wh..wh..opq") == list(found).index("etc/skel") + 1
    assert not any("user.overlay" in key for member in found.values() for key in member.pax_headers)
    assert found["workspace/holes"].size == 50 << 20 and found["workspace/holes"].sparse[1][0] == 10 << 20


async def test_a_hole_takes_no_time(box):
    await box.sh("truncate -s 7T /workspace/hole")
    assert len(await packed(box)) < 1 << 20


DEEP = """python3 -I -c "
import os
os.chdir('/workspace')
for _ in range({0}):
    os.mkdir('d' * {1})
    os.chdir('d' * {1})
" """


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("touch /workspace/.wh.f", "name"),
        ("mkdir /workspace/.wh.d", "name"),
        ("ln -s x /workspace/.wh..wh.l", "name"),
        ("mkfifo /workspace/.wh.", "name"),
        (DEEP.format(300, 1), "too_large"),
        (DEEP.format(30, 200), "too_large"),
    ],
)
async def test_what_no_layer_can_say_is_named(box, change, expected):
    assert (await box.sh(change)).returncode == 0
    with pytest.raises(SandboxFileError) as caught:
        await packed(box)
    assert caught.value.reason == expected and "'workspace/" in str(caught.value)
    assert (await box.sh("echo $((1 + 1))")).stdout == "2\n"


async def test_an_attribute_that_no_layer_can_have(box):
    await box.python("import os; open('/workspace/f', 'w'); os.setxattr('/workspace/f', 'user.a=b', b'')")
    assert await reason(box) == "name"


async def test_where_there_is_no_layer(box, make_box, monkeypatch):
    monkeypatch.setattr(box.backend, "_layered", False)
    async with make_box() as other:
        with pytest.raises(AviatoValidationError) as caught:
            await packed(other)
        assert caught.value.reason == "no_layer"
        assert (await other.sh("echo fine")).stdout == "fine\n"


# -- how it stands still ----------------------------------------------------------------------------------------------------

COUNT = "n=0; while :; do n=$((n+1)); echo $n > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.002; done"
LARGE = "import os; open('/workspace/large', 'wb').write(os.urandom(16 << 20))"
"""More than a window and what sockets hold: what sends it waits for its reader."""


async def count(box):
    return int(await box.get("/tmp/count") or b"0")


async def moves(box, *, patience=10.0):
    """Whether the counter does, in a while."""
    first, deadline = await count(box), time.monotonic() + patience
    while time.monotonic() < deadline:
        if await count(box) != first:
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.fixture
async def counting(box):
    await box.python(LARGE)
    box.start("sh", "-c", COUNT)
    while not (await box.sh("cat /tmp/count")).stdout:
        pass
    return box


@asynccontextmanager
async def paused(box):
    async with aclosing(box.link.read_layer()) as reader:
        await asyncio.wait_for(reader.opened(), 20)
        yield reader


async def test_everybody_stands_still_until_it_is_read(counting):
    async with paused(counting) as reader:
        assert not await moves(counting, patience=0.3)
        read = b"".join([piece async for piece in reader])
        assert len(read) > 16 << 20
        assert await moves(counting)


async def test_everybody_goes_on_when_it_is_given_up(counting):
    async with paused(counting) as reader:
        await anext(reader)
        assert not await moves(counting, patience=0.2)
    assert await moves(counting)


async def test_everybody_goes_on_when_it_fails(counting):
    await counting.sh("touch /workspace/.wh.f")
    assert await reason(counting) == "name"
    assert await moves(counting)


async def test_the_pause_ends_with_the_last_of_several(counting):
    async with paused(counting):
        async with paused(counting) as reader:
            await anext(reader)
        assert not await moves(counting, patience=0.2)
    assert await moves(counting)


async def test_everybody_goes_on_when_the_connection_is_lost(counting):
    async with paused(counting) as reader:
        await anext(reader)
        assert not await moves(counting, patience=0.2)
        before = await count(counting)
        counting.link._transport.abort()
    sock = counting.backend._directories.connect(counting.id)
    assert sock is not None
    seen_path = upper_of(counting) / "tmp/count"
    deadline = time.monotonic() + 10
    while int(seen_path.read_text() or before) == before:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    sock.close()


STATES = "import sys; print(*[open(f'/proc/{pid}/stat').read().rpartition(') ')[2][0] for pid in sys.argv[1:]])"


async def test_who_was_stopped_before_stays_so(counting):
    stopped, first = counting.start("sh", "-c", "kill -STOP $$; echo went on")
    going, second = counting.start("sh", "-c", "read line; echo fine", stdin=True)
    number = ""
    while not number or (await counting.python(STATES, number)).stdout != "T\n":
        number = (await counting.run("pgrep", "-f", "went on")).stdout.split("\n")[0]
    for _ in range(3):
        async with paused(counting):
            pass
        assert await moves(counting)
        assert (await counting.python(STATES, number)).stdout == "T\n"
    await counting.sh(f"kill -CONT {number}")
    await counting.link.write_stdin(going, b"\n", 0, True)
    assert (await counting.finish(stopped, first)).stdout == "went on\n"
    assert (await counting.finish(going, second)).stdout == "fine\n"


async def test_what_is_started_meanwhile_begins_afterwards(counting):
    async with paused(counting) as reader:
        exec_id, subscription = counting.start("sh", "-c", "cat; cat /tmp/count; touch /workspace/ran", stdin=True)
        await counting.link.write_stdin(exec_id, b"given\n", 0, True)
        before = await count(counting)
        await asyncio.sleep(0.3)
        assert not (upper_of(counting) / "workspace/ran").exists()
        read = b"".join([piece async for piece in reader])
    result = await counting.finish(exec_id, subscription)
    given, counted = result.stdout.split()
    assert given == "given" and int(counted) >= before and result.returncode == 0
    assert b"workspace/ran" not in read


async def test_who_is_killed_meanwhile_is_dead(counting):
    timed = counting.start("sh", "-c", "sleep 60 & sleep 60", timeout=0.5)
    cancelled = counting.start("sh", "-c", "sleep 60 & sleep 60")
    await asyncio.sleep(0.1)
    async with paused(counting):
        late = counting.start("sleep", "60", timeout=0.2)
        given_up = counting.start("sleep", "60")
        for exec_id, _ in (cancelled, given_up):
            await asyncio.wait_for(counting.link.cancel(exec_id), 10)
        results = [await asyncio.wait_for(counting.finish(*one), 10) for one in (timed, late, cancelled, given_up)]
        assert [one.exit["timed_out"] for one in results] == [True, True, False, False]
        assert [one.exit["cancelled"] for one in results] == [False, False, True, True]
        assert {one.returncode for one in results} == {137}
        assert not await moves(counting, patience=0.2)
    assert await moves(counting)


async def test_a_signal_that_has_one_go_on_waits(counting):
    exec_id, subscription = counting.start("sh", "-c", "trap 'touch /workspace/heard' USR1; sleep 0.2; sleep 0.2; sleep 1")
    await asyncio.sleep(0.1)
    async with paused(counting):
        for number in (10, 18):
            await counting.link.signal(exec_id, number)
        await asyncio.sleep(0.7)
        assert not (upper_of(counting) / "workspace/heard").exists()
    assert (await counting.finish(exec_id, subscription)).returncode == 0
    assert (upper_of(counting) / "workspace/heard").exists()


async def test_the_end_waits_for_nobody(counting):
    exec_id, subscription = counting.start("sh", "-c", "trap 'echo asked; exit 3' TERM; while :; do sleep 0.05; done")
    await asyncio.sleep(0.2)
    async with paused(counting) as reader:
        await anext(reader)
        stopping = asyncio.ensure_future(counting.link.stop(5.0))
        with pytest.raises(SandboxUnavailableError) as caught:
            async for _ in reader:
                pass
        assert caught.value.reason == "ending"
    result = await counting.finish(exec_id, subscription)
    assert (result.stdout, result.returncode) == ("asked\n", 3)
    assert (await asyncio.wait_for(stopping, 20)).reason == "stopped"


async def test_a_limit_is_kept_meanwhile(make_box):
    async with make_box(limits={"memory": 64 << 20}) as box:
        if not upper_of(box).is_dir():
            pytest.skip("writable layers lie over nothing here")
        await box.python(LARGE)
        async with paused(box):
            pass
        result = await box.python("x = bytearray(200 << 20); import time; time.sleep(30)")
        assert result.returncode == 137


FORKS = """
import os, time
os.chdir('/tmp')
until = time.monotonic() + 250
for _ in range(8):
    if os.fork() == 0:
        while time.monotonic() < until:
            if os.fork() == 0:
                open('f%d' % (os.getpid() % 997), 'ab').write(b'x')
                os._exit(0)
            os.waitpid(-1, 0)
        os._exit(0)
time.sleep(250)
"""


async def test_who_forks_all_the_time_stands_still(box):
    await box.python(LARGE)
    box.start("python3", "-I", "-c", FORKS)
    await asyncio.sleep(0.5)
    for _ in range(5):
        async with paused(box):
            first = await box.link.list_files("/tmp")
            await asyncio.sleep(0.1)
            assert await box.link.list_files("/tmp") == first
        async with asyncio.timeout(60):
            while await box.link.list_files("/tmp") == first:
                await asyncio.sleep(0.02)


async def test_who_waits_in_vfork_stands_still(box):
    """A shell that is stopped between `vfork` and `exec` takes no signal before its child goes on."""
    await box.python(LARGE)
    box.start("python3", "-I", "-c", "import subprocess\nwhile True: subprocess.run(['true'])")
    await asyncio.sleep(0.3)
    for _ in range(20):
        async with paused(box):
            pass
    assert (await box.sh("echo fine")).stdout == "fine\n"


@pytest.mark.skipif(not os.path.exists("/usr/bin/strace"), reason="needs a tracer")
async def test_who_is_traced_goes_on(counting):
    loop = "for n in $(seq 60); do sleep 0.02; done"
    exec_id, subscription = counting.start("strace", "-f", "-o", "/dev/null", "sh", "-c", loop)
    await asyncio.sleep(0.3)
    for _ in range(3):
        async with paused(counting):
            pass
        await asyncio.sleep(0.1)
    assert (await asyncio.wait_for(counting.finish(exec_id, subscription), 20)).returncode == 0


# -- rest ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "rests"),
    [
        (None, True),
        ("echo x >f; mkdir -p /tmp/a /var/x /run/d; echo x >/run/d/x; rm /etc/group; ls /run /dev/shm >/dev/null", True),
        ("(setsid sleep 1000 &) >/dev/null 2>&1", False),
        ("echo x >/dev/shm/x", False),
        ("mkdir /dev/shm/d", False),
        ("echo 127.0.0.1 other >>/etc/hosts", False),
        ("chmod 700 /dev/shm", False),
        ("for n in $(seq 100); do echo >/dev/shm/$n; done", False),
        ("python3 -c 'import ctypes; ctypes.CDLL(None).semget(7, 1, 0o1600)'", False),
    ],
)
async def test_it_rests_where_nothing_is_left_but_files(box, command, rests):
    if command is not None:
        assert (await box.sh(command)).returncode == 0
    assert (await box.link.rest()).rests is rests


async def test_what_was_left_and_taken_away_again_leaves_no_rest(box):
    await box.sh("mkdir /dev/shm/d; rmdir /dev/shm/d")
    assert not (await box.link.rest()).rests  # Nobody can say what else was done there.


async def test_nobody_rests_who_is_asked_for_something(box):
    await box.sh("head -c 8000000 /dev/zero >/workspace/f")
    async with aclosing(box.link.read_file("/workspace/f")) as reader:
        await reader.opened()
        assert not (await box.link.rest()).rests
        assert not box.link.is_quiet
    assert (await box.link.rest()).rests
