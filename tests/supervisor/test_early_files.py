"""Files that process 1 writes and reads before Python: what it does, and leaves to Python, is what Python would have done."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import struct
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aviato.exceptions import AviatoError
from aviato.server.link.file_calls import as_json
from aviato.server.memory import Memory
from aviato.server.supervisor import prepared
from aviato.wire.files import FilePart
from aviato.wire.frames import FrameType, encode
from aviato.wire.memory import SIZE
from tests.faults.figures import held
from tests.matrices import deep
from tests.supervisor.test_early import POLL, _Collector, backend, confirmed_at_the_end, is_early, rests

__all__ = ["backend"]

pytestmark = pytest.mark.anyio

MIB = 1 << 20


@pytest.fixture
def memory():
    with Memory(os.memfd_create("test", os.MFD_ALLOW_SEALING)) as made:
        os.ftruncate(made.fd, SIZE)
        yield made


async def lend(box, path, memory, size, **more):
    await box.link.write_file(path, memory.chunks(size), size_bytes=size, memory=memory, **more)


async def borrow(box, path, memory):
    reader = box.link.read_file(path, memory=memory)
    stat = await reader.opened()
    assert [piece async for piece in reader] == []
    return os.pread(memory.fd, stat["memory_bytes"], 0)


def holds_memory(box):
    """Whether its process 1 has memory open that was lent; False where that cannot be seen."""
    if os.geteuid() != 0:
        return False
    return any("memfd" in os.readlink(entry.path) for entry in os.scandir(f"/proc/{box.process_1}/fd"))


async def gone_on(box):
    """Python comes in, if it was not there."""
    assert (await box.run("cat", stdin=b"")).returncode == 0
    await rests(box, early=False)


async def test_usual_calls_need_no_python(box, memory):
    content = os.urandom(MIB)
    for number in range(30):
        await box.put(f"f{number}", content[:number], part=FilePart(f"key {number}"))
        assert await box.get(f"f{number}") == content[:number]
    await box.put("f1", b"new", mode=0o755)
    await box.put("src/deep/er/f", content[:2000])
    await box.put("/tmp/f", content[: 100 << 10])
    assert await box.get("/tmp/f") == content[: 100 << 10]
    result = await confirmed_at_the_end(box, "sh", "-c", "cat f1; stat -c %a f1; cmp src/deep/er/f /tmp/f")
    assert result.stdout == "new755\n" and "EOF on src/deep/er/f" in result.stderr
    await box.put("large", content)
    await lend(box, "lent", memory, MIB // 2)
    os.pwrite(memory.fd, content, 0)
    await lend(box, "lent", memory, MIB, part=FilePart("of the lent"))
    assert await borrow(box, "large", memory) == content
    assert (await confirmed_at_the_end(box, "cmp", "large", "lent")).returncode == 0
    await asyncio.sleep(0.25)
    await box.link.ping()
    await rests(box, early=True)
    assert (await box.link.stop(1)).reason == "stopped"


# -- the same as Python --------------------------------------------------------------------------------------------------

MADE = r"""
mkdir -p d/e locked; echo old > f; chmod 640 f; echo deep > d/e/f; mkfifo fifo; ln -s f link; ln -s loop loop
ln -s none/f nowhere; ln -s d way; ln -s none hole; echo no > locked/f
head -c 5000000 /dev/zero > large; head -c 200000 /dev/urandom > middle
echo q > 'a"quote'; echo b > 'back\slash'; echo n > "$(printf 'new\nline')"; echo d > "$(printf '\177')"; echo u > ü
"""
PATHS = [
    *(
        "f",
        "d",
        "d/e/f",
        "d/new",
        "new",
        "new/er/f",
        "d/e/x/../f",
        "none/../f",
        "./f",
        "d//e//f",
        "d/./e/./f",
        "a/./b//f",
        "x/.",
        "x/..",
    ),
    *(
        "link",
        "loop",
        "nowhere",
        "way/e/f",
        "way/new/f",
        "hole/f",
        "hole/in/f",
        "fifo",
        "f/",
        "d/",
        "f/x",
        "d/..",
        ".",
        "..",
        "/",
        "//f",
    ),
    *(
        "/tmp/f",
        "/tmp/a/b/f",
        "/usr/x",
        "/usr/bin/env",
        "/dev/null",
        "/dev/zero",
        "/proc/version",
        "/proc/self/mem",
        "/nowhere/f",
    ),
    *(
        "locked/f",
        "large",
        "middle",
        "ü",
        "\u2028",
        "with space",
        'a"quote',
        "back\\slash",
        "new\nline",
        "\x7f",
        "n" * 255,
        "n" * 256,
    ),
    *("p/" * 1000 + "f", "p/" * 2040 + "f", "/dev/shm/f", "/workspace/f", ".aviato-0", "/etc/hostname", "/etc/x"),
]
SIZES = [0, 1, 4096, 4097, 131071, 131072, 300_000, MIB, MIB + 1]
KEYS = [None, "one", "two", "k" * 31, "k" * 32, "ü" * 16]
writes = st.tuples(
    st.just("put"),
    st.sampled_from(PATHS),
    st.sampled_from(SIZES),
    st.sampled_from([None, 0o600, 0o4755, 0]),
    st.sampled_from(KEYS),
)
reads = st.tuples(st.just("get"), st.sampled_from(PATHS))
lends = st.tuples(st.sampled_from(["lend", "borrow"]), st.sampled_from(PATHS), st.sampled_from([0, 1, 131072, MIB]))
others = st.tuples(
    st.sampled_from(["rm -rf d f", "chmod 0 locked", "mv d f 2>/dev/null", "ln -sf large f", "rm -f new; mkdir new", "true"])
)


def content_of(size, number):
    return bytes([number % 251]) * size


async def outcome(box, number, call, memory):
    """What came of a call, without what no two runs share."""
    try:
        match call:
            case ["put", path, size, mode, key]:
                await box.put(path, content_of(size, number), mode=mode, part=None if key is None else FilePart(key))
                return "written"
            case ["get", path]:
                reader = box.link.read_file(path)
                stat = await reader.opened()
                content = b"".join([piece async for piece in reader])
            case ["lend", path, size]:
                os.pwrite(memory.fd, content_of(size, number), 0)
                await lend(box, path, memory, size)
                return "lent"
            case ["borrow", path, _]:
                reader = box.link.read_file(path, memory=memory)
                stat = await reader.opened()
                content = b"".join([piece async for piece in reader])
                content = os.pread(memory.fd, stat["memory_bytes"], 0) if "memory_bytes" in stat else content
            case [script]:
                return (await confirmed_at_the_end(box, "sh", "-c", script)).returncode
    except AviatoError as error:
        return type(error).__name__, str(error).replace(box.id, "ID"), getattr(error, "reason", None)
    version = stat.pop("version")
    assert re.fullmatch(r"[0-9a-f]+(\.[0-9a-f]+){4}", version) and version.split(".")[2] == f"{stat['size_bytes']:x}"
    return {name: value for name, value in stat.items() if name != "mtime"}, content if call[1] != "middle" else len(content)


async def tree(box):
    """All that is there, with what is in it."""
    names = r"find . /tmp /dev/shm -printf '%p %y %m %l ' '(' -type f -printf '%s\n' -o -printf '\n' ')'"
    contents = r"find . -type f ! -name middle -size -9000 | sort | xargs -d '\n' cksum"
    return sorted((await box.sh(f"{names}; {contents}")).stdout.splitlines())


async def same(pair, boxes, memory, calls):
    """Whether calls come to the same by both ways, in what they say and in what is there."""
    found = []
    for one in pair:
        async with boxes.make_box(one, limits={"disk": 64 * MIB}) as box:
            await confirmed_at_the_end(box, "sh", "-c", MADE)
            said = [await asyncio.wait_for(outcome(box, number, call, memory), 20) for number, call in enumerate(calls)]
            found.append((said, await tree(box)))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["put", *deep(["get", "lend"])])
async def test_each_path_comes_to_the_same(pair, boxes, memory, kind):
    """Each for itself: after an unusual one Python goes on."""
    for path in PATHS:
        call = {"put": ("put", path, 4097, None, None), "get": ("get", path), "lend": ("lend", path, 131072)}[kind]
        await same(pair, boxes, memory, [call])


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(writes | reads | lends | others, min_size=1, max_size=7))
async def test_any_calls_come_to_the_same(pair, boxes, memory, calls):
    await same(pair, boxes, memory, calls)


async def test_what_was_read_here_is_read_on_by_python(box, memory):
    """By the version that compiled code said."""
    await box.put("f", b"x" * 1000)
    await box.put("large", b"y" * MIB)
    versions = {}
    for path, lent in [("f", None), ("f", memory), ("large", memory)]:
        reader = box.link.read_file(path, memory=lent)
        versions[path, lent] = (await reader.opened())["version"]
        await reader.aclose()
    for (path, lent), version in versions.items():
        reader = box.link.read_file(path, offset=990, version=version)
        assert (await reader.opened())["version"] == version == versions[path, lent]
        assert set(b"".join([piece async for piece in reader])) == set(b"x" if path == "f" else b"y")
    await rests(box, early=False)


# -- where Python takes over ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False])
async def test_a_call_that_comes_again_has_no_second_effect(box, memory, early):
    """The same for Python where compiled code has done it."""
    await box.put("f", b"first", part=FilePart("a key"))
    await lend(box, "g", memory, MIB, part=FilePart("another"))
    await confirmed_at_the_end(box, "sh", "-c", "echo changed | tee f > g")
    if not early:
        await gone_on(box)
    await box.put("f", b"first", part=FilePart("a key"))
    await lend(box, "g", memory, MIB, part=FilePart("another"))
    assert (await box.get("f"), await box.get("g")) == (b"changed\n", b"changed\n")
    await box.put("f", b"third", part=FilePart("a third"))
    assert await box.get("f") == b"third"


@pytest.mark.parametrize("cut", [1, 16, 17, 40, 70, 3000, -1])
@pytest.mark.parametrize("early", [True, False])
async def test_a_file_in_two_pieces(box, cut, early):
    content = os.urandom(6000)
    request = {"op": "write", "path": "f", "mode": None, "size": 6000}
    form = prepared.file("f", size=6000)
    collector = _Collector()
    channel = box.link._open(collector)
    frame = encode(FrameType.REQUEST, form + content + as_json(request), stream=prepared.Form.WRITE, channel=channel)
    if not early:
        started = box.start("sleep", "0.3")  # So long that Python looks after it.
        await asyncio.sleep(0.05)
    box.link._transport.write(frame[:cut])
    await asyncio.sleep(0.05 if early else 0.5)
    box.link._transport.write(frame[cut:])
    async with asyncio.timeout(5):
        while not collector.types:
            await asyncio.sleep(0.01)
    del box.link._channels[channel]
    assert collector.types == [FrameType.REPLY] and await box.get("f") == content
    if not early:
        assert (await box.finish(*started)).returncode == 0


async def test_python_comes_while_memory_is_filled(box, memory):
    """Several at once, and one more than compiled code has room for."""
    pieces = [Memory(os.memfd_create("test", os.MFD_ALLOW_SEALING)) for _ in range(6)]
    ready = asyncio.Event()

    async def filled(number):
        await ready.wait()
        os.pwrite(pieces[number].fd, bytes([number]) * MIB, 0)
        yield b"."

    with contextlib.ExitStack() as stack:
        for number, piece in enumerate(pieces):
            stack.enter_context(piece).ready = filled(number)
        for count in (3, 6):
            writing = [asyncio.create_task(lend(box, f"f{number}", pieces[number], MIB)) for number in range(count)]
            await asyncio.sleep(0.02)
            if count == 3:
                assert (await confirmed_at_the_end(box, "echo", "beside")).stdout == "beside\n"
                await gone_on(box)
            ready.set()
            await asyncio.gather(*writing)
            for number in range(count):
                assert await box.get(f"f{number}") == bytes([number]) * MIB
                pieces[number].ready = filled(number)
            ready.clear()
    assert (await box.sh("ls -A | wc -l")).stdout == "6\n"
    assert not holds_memory(box)


@pytest.mark.parametrize("count", [1, 6])
async def test_many_writes_wait_for_their_memory_without_python(make_box, backend, count):
    ready = asyncio.Event()

    async def filled():
        await ready.wait()
        yield b"."

    async with make_box() as box:
        with contextlib.ExitStack() as stack:
            pieces = [stack.enter_context(Memory(os.memfd_create("test", os.MFD_ALLOW_SEALING))) for _ in range(count)]
            for number, piece in enumerate(pieces):
                piece.ready = filled()
                os.pwrite(piece.fd, bytes([number]) * MIB, 0)
            writing = [asyncio.create_task(lend(box, f"f{number}", piece, MIB)) for number, piece in enumerate(pieces)]
            await asyncio.sleep(0.05)
            await box.link.ping()
            await rests(box, early=count == 1)
            ready.set()
            await asyncio.gather(*writing)
        for number in range(count):
            assert await box.get(f"f{number}") == bytes([number]) * MIB


async def test_a_server_that_goes_in_the_middle_of_a_write(box, backend, boxes, memory):
    """Nothing of it stays, and nothing is held for it."""
    never = asyncio.Event()

    async def filled():
        await never.wait()
        yield b"."

    await box.put("f", b"old")
    memory.ready = filled()
    writing = asyncio.create_task(lend(box, "f", memory, MIB))
    await asyncio.sleep(0.05)
    box.link._transport.write(encode(FrameType.REQUEST, prepared.file("f", size=9000), stream=prepared.Form.WRITE)[:-1])
    await asyncio.sleep(0.05)
    box.link.detach()
    writing.cancel()
    await asyncio.wait({writing})
    link = await backend.reconnect(box.id)
    later = boxes.Box(backend, link, box.id)
    assert await later.get("f") == b"old"
    assert (await later.sh("ls -A")).stdout == "f\n"
    assert not holds_memory(box)


async def test_what_cannot_be_written_leaves_nothing(make_box, memory):
    async with make_box() as box:
        await box.put("f", b"old")
        os.ftruncate(memory.fd, 100)
        with pytest.raises(AviatoError, match=f"100 bytes arrived where {MIB} were announced"):
            await lend(box, "f", memory, MIB)
        assert await box.get("f") == b"old" and (await box.sh("ls -A")).stdout == "f\n"
    async with make_box() as box:
        await confirmed_at_the_end(box, "sh", "-c", "head -c 16500000 /dev/zero > /run/x")
        with pytest.raises(AviatoError) as caught:
            await box.put("/run/y", b"y" * MIB)
        assert caught.value.reason == "disk_full" and (await box.sh("ls -A /run")).stdout == "hosts\nx\n"


async def test_a_file_that_comes_slowly_is_a_call_that_goes_on(make_box):
    async def slowly():
        for _ in range(8):
            yield b"x" * 100
            await asyncio.sleep(0.25)

    async with make_box(idle_timeout_seconds=1.2) as box:
        await box.link.write_file("f", slowly(), size_bytes=800)
        assert await box.get("f") == b"x" * 800


async def test_writing_is_use(make_box, memory):
    async with make_box(idle_timeout_seconds=1.5) as box:  # A busy machine may keep a call back by a second.
        begin = time.monotonic()
        while time.monotonic() - begin < 2:
            await box.put("f", b"")
            await asyncio.sleep(0.1)
        while time.monotonic() - begin < 4:
            await box.get("f")
            await asyncio.sleep(0.1)
        never = asyncio.Event()

        async def filled():
            await asyncio.sleep(1)
            yield b"."
            await never.wait()

        memory.ready = filled()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(lend(box, "f", memory, MIB), 2)
        assert box.link.ended() is None
        assert (await asyncio.wait_for(box.link.wait_ended(), 5)).reason == "idle"


# -- limits and memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [True, False])
async def test_a_limit_of_disk_is_met_at_once(make_box, memory, replaced):
    """What takes the place of another file counts once."""
    async with make_box(limits={"disk": 8 * MIB}) as box:
        done = 0
        with contextlib.suppress(AviatoError):
            for number in range(20):
                path = "f" if replaced else f"f{number}"
                if number % 2:
                    await box.put(path, os.urandom(MIB))
                else:
                    await lend(box, path, memory, MIB)
                done += 1
        assert done == 20 if replaced else 6 <= done <= 8
        assert (await box.sh("ls -A | wc -l")).stdout == f"{1 if replaced else done}\n"


async def test_a_limit_of_disk_is_met_before_anybody_looks(make_box, memory):
    done = []
    for _ in range(4):  # A look may come in between, on a busy machine.
        async with make_box(limits={"disk": 3 * MIB}) as box:
            with contextlib.suppress(AviatoError):
                for number in range(6):
                    await lend(box, f"f{number}", memory, MIB)
                    done.append(number)
        assert done.pop() in (1, 2)  # What a sandbox begins with counts as well, once that was looked at.


async def test_what_file_calls_write_is_not_taken_for_what_commands_left(make_box, memory):
    async with make_box(limits={"disk": 64 * MIB}) as box:
        for number in range(10):
            await lend(box, f"f{number}", memory, MIB)
        assert (await confirmed_at_the_end(box, "true")).returncode == 0
        await asyncio.sleep(0.3)
        await rests(box, early=True)
    async with make_box(limits={"disk": 64 * MIB}) as box:
        await lend(box, "f", memory, MIB)
        await confirmed_at_the_end(box, "sh", "-c", "head -c 3000000 /dev/urandom > g")
        await asyncio.sleep(0.3)
        await rests(box, early=False)


async def test_a_limit_of_files_is_met_where_no_command_runs(make_box):
    async with make_box(limits={"inodes": 60}) as box:
        with pytest.raises(AviatoError, match="limit of 60 files and directories"):
            for number in range(300):
                await box.put(f"f{number}", b"")
                await asyncio.sleep(0.01)


async def test_commands_and_files_together_meet_the_limit(make_box):
    async with make_box(limits={"disk": 8 * MIB}) as box:
        for number in range(60):
            with contextlib.suppress(AviatoError):
                await box.put(f"f{number}", b"x" * 300_000)
            result = await confirmed_at_the_end(box, "sh", "-c", f"head -c 500000 /dev/zero > c{number}; sleep 0.02")
            if result.returncode == 137:
                break
        assert "limit of 8 MiB of disk" in result.stderr and number < 30


async def test_what_was_written_and_read_does_not_stay(make_box, backend, memory):
    """Neither the bytes nor the pages."""
    if not POLL or os.geteuid() != 0 or not backend._native:
        pytest.skip("a supervisor's memory is shown to root only, and with Python it is much")
    mark = b"not to be found again " + os.urandom(20).hex().encode()
    content = (mark * (MIB // len(mark)))[:MIB]
    async with make_box() as box:
        await confirmed_at_the_end(box, "true")
        await asyncio.sleep(0.6)
        before = held(box.process_1).memory_bytes
        await box.put("f", content[:2000])
        await box.put("d/f", content[:2000], part=FilePart("a key"))
        await box.put("g", content[: 120 << 10])
        await box.put("h", content)
        assert await box.get("g") == content[: 120 << 10]
        os.pwrite(memory.fd, content, 0)
        await lend(box, "i", memory, MIB)
        assert await borrow(box, "h", memory) == content
        async with asyncio.timeout(10):
            while held(box.process_1).memory_bytes > before:
                await asyncio.sleep(0.1)
        assert is_early(box) and not found_in(box.process_1, mark)


def found_in(pid, mark):
    """Whether a process has this in its memory."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            if line.split()[1].startswith("rw"):
                with contextlib.suppress(OSError):
                    memory.seek(begin)
                    if mark in memory.read(end - begin):
                        return True
    return False


# -- what is inside ------------------------------------------------------------------------------------------------------

SWAPS = """
import itertools, os, shutil, time
os.chdir("/workspace")
os.makedirs("real", exist_ok=True)
def file(): open("d", "w").close()
def fifo(): os.mkfifo("d")
def link(): os.symlink("/usr", "d")
def loop(): os.symlink("d", "d")
def folder(): os.mkdir("d")
def way(): os.symlink("real", "d")
print("begun", flush=True)
for make in itertools.cycle([file, folder, fifo, link, folder, loop, way, folder]):
    try:
        make()
        for name in os.listdir("d") if os.path.isdir("d") and not os.path.islink("d") else []:
            if name.startswith(".aviato"):
                os.unlink(os.path.join("d", name))
                os.mkdir(os.path.join("d", name))
    except OSError:
        pass
    try:
        shutil.rmtree("d") if os.path.isdir("d") and not os.path.islink("d") else os.unlink("d")
    except OSError:
        pass
"""


async def test_what_moves_meanwhile(box, memory):
    """Every call is answered, and nothing is written where no call could."""
    exec_id, subscription = box.start("python3", "-I", "-S", "-c", SWAPS)
    await asyncio.wait_for(subscription.wait(6), 10)
    end, done = time.monotonic() + 4, 0
    for number in itertools.count():
        path = ("d", "d/f", "d/e/f", "d")[number % 4]
        call = (lambda: box.put(path, b"x" * 100), lambda: box.get(path), lambda: lend(box, path, memory, 200_000))[number % 3]  # noqa: B023
        try:
            await asyncio.wait_for(call(), 10)
            done += 1
        except AviatoError as error:
            assert not isinstance(error, TimeoutError)
        if time.monotonic() > end:
            break
    await box.link.cancel(exec_id)
    await box.finish(exec_id, subscription)
    assert (await box.run("echo", "here")).stdout == "here\n"
    assert done > 0


async def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(box):
    await box.put("f", b"1")
    assert (await confirmed_at_the_end(box, "sh", "-c", "mkfifo pipe; ln -s pipe link; rm f; mkfifo f")).returncode == 0
    for path in ("pipe", "link", "f"):
        for call in (box.get(path), box.put(path, b"x")):
            with pytest.raises(AviatoError) as caught:
                await asyncio.wait_for(call, 5)
            assert caught.value.reason == "not_a_regular_file"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.binary(max_size=200),
    numbers=st.tuples(*[st.integers(0, 40) | st.integers(0, 2**32 - 1)] * 2),
    others=st.tuples(
        st.integers(-2, 2**31 - 1),
        st.just(0) | st.integers(0, 2**64 - 1),
        st.integers(-2, 300) | st.integers(-(2**63), 2**63 - 1),
    ),
    right_size=st.booleans(),
    kind=st.sampled_from([prepared.Form.WRITE, prepared.Form.READ]),
)
async def test_it_survives_any_request(make_box, text, numbers, others, right_size, kind):
    """Only its server can send such, which does not; a mistake there must not be the end of a sandbox."""
    async with make_box() as box:
        mode, memory, size = others
        form = struct.pack("=IIiIQq", 32 + len(text) if right_size else numbers[0], numbers[1], mode, 0, memory, size) + text
        request = as_json({"op": "read", "path": "nothing", "window": 0, "max_bytes": None})
        box.link._send(FrameType.REQUEST, form + request, stream=kind, channel=900)
        box.link._send(FrameType.END, channel=900)
        await asyncio.wait_for(box.link.ping(), 10)
        assert (await box.run("echo", "fine")).stdout == "fine\n"


@pytest.mark.parametrize(
    ("asked", "plain"),
    [
        ({"path": "f"}, True),
        ({"path": "f", "key": "k" * 31, "mode": 0o600, "size": 5}, True),
        ({"path": "f", "key": "k" * 32}, False),
        ({"path": "f", "key": "ü" * 16}, False),
        ({"path": "a\0b"}, False),
        ({"path": "\ud800"}, False),
        ({"path": "x" * 5000}, False),
    ],
)
def test_what_is_plain(asked, plain):
    form = prepared.file(**asked)
    assert bool(form) is plain
    if plain:
        size, content, mode, _, memory, length = struct.unpack_from("=IIiIQq", form)
        assert (size, content, memory) == (len(form) + content, asked.get("size", 0), 0)
        assert (mode, length) == (asked.get("mode", -1), asked.get("size", -1))
