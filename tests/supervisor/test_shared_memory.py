"""Memory that a client lends for a request, seen by process 1."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random

import pytest

from aviato.exceptions import AviatoError, SandboxFileError
from aviato.server.link.link import Process1Link
from aviato.server.link.payload import as_json
from aviato.server.link.second_descriptor import SecondDescriptor
from aviato.server.shared_memory import Memory
from aviato.wire.files import FilePart
from aviato.wire.frames import MAX_PAYLOAD_BYTES, FrameType, encode
from aviato.wire.shared_memory import CONFIRMED_AT, LEAST_BYTES, MOST_BYTES, PLACE, confirmation
from tests.backends.boxes import make_spec

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(1 << 20)


@pytest.fixture
def memory():
    with Memory(os.memfd_create("test", os.MFD_ALLOW_SEALING)) as made:
        yield made


@pytest.fixture
def passed(monkeypatch):
    """Whether each descriptor was passed on."""
    said = []
    send = Process1Link._send_with

    def sending(self, memory, *request):
        done = send(self, memory, *request)
        if memory is not None:
            said.append(done)
        return done

    monkeypatch.setattr(Process1Link, "_send_with", sending)
    return said


@pytest.fixture
async def box(make_box):
    """One that has said that it takes descriptors."""
    async with make_box() as made:
        await made.put("first", b"1")
        yield made


async def read(box, path, memory, **more):
    reader = box.link.read_file(path, memory=memory, **more)
    try:
        stat = await reader.opened()
        return stat, b"".join([piece async for piece in reader])
    finally:
        await reader.aclose()


async def write(box, path, memory, size, *, mode=None, part=None):
    await box.link.write_file(path, memory.chunks(size), mode=mode, size_bytes=size, part=part, memory=memory)


async def test_a_file_goes_by_it_both_ways(box, memory, passed):
    os.pwrite(memory.fd, CONTENT, 0)
    await write(box, "d/f", memory, len(CONTENT), mode=0o640)
    assert await box.get("d/f") == CONTENT
    assert (await box.link.stat("d/f"))["mode"] == 0o640
    os.ftruncate(memory.fd, 0)
    stat, pieces = await read(box, "d/f", memory)
    assert (stat["memory_bytes"], stat["size_bytes"], stat["mode"], pieces) == (len(CONTENT), len(CONTENT), 0o640, b"")
    assert os.pread(memory.fd, MOST_BYTES, 0) == CONTENT
    stat, _ = await read(box, "d/f", memory, offset=1000, version=stat["version"])
    assert os.pread(memory.fd, stat["memory_bytes"], 0) == CONTENT[1000:]
    assert passed == [True] * 3


async def test_it_goes_from_the_first_call_on(make_box, memory, passed):
    os.pwrite(memory.fd, CONTENT, 0)
    async with make_box() as box:
        assert (await box.sh("echo on")).stdout == "on\n"
        await write(box, "f", memory, len(CONTENT))
        assert await box.get("f") == CONTENT
        await write(box, "f", memory, len(CONTENT))
    assert passed == [True, True]


async def test_what_is_still_to_be_put_there_is_waited_for(box, memory, passed):
    """The request is under way before the contents are."""
    filled = asyncio.get_running_loop().create_future()

    async def ready():
        yield await filled

    memory.ready = ready()
    writing = asyncio.ensure_future(write(box, "f", memory, len(CONTENT)))
    while not passed:
        await asyncio.sleep(0.01)
    assert (await box.sh("echo on")).stdout == "on\n" and not writing.done()
    os.pwrite(memory.fd, CONTENT, 0)
    filled.set_result(b".")
    await writing
    assert await box.get("f") == CONTENT and passed == [True]


async def test_a_write_that_is_given_up_leaves_nothing(backend, box, memory, passed):
    never = asyncio.get_running_loop().create_future()

    async def ready():
        yield await never

    memory.ready = ready()
    await box.put("f", b"old")
    writing = asyncio.ensure_future(write(box, "f", memory, len(CONTENT)))
    while not passed:
        await asyncio.sleep(0.01)
    # What comes is written beside it; compiled code waits until all of it is there, unless Python looks on a busy machine.
    assert (await box.sh("ls -A | wc -l")).stdout.strip() == "3"
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await box.get("f") == b"old"
    assert (await box.sh("ls -A | wc -l")).stdout.strip() == "2"


@pytest.mark.parametrize("size", [0, LEAST_BYTES - 1, MOST_BYTES + 1])
async def test_what_is_small_or_large_goes_by_the_connection(box, memory, size):
    data = os.urandom(size)
    await box.put("f", data)
    stat, pieces = await read(box, "f", memory)
    assert "memory_bytes" not in stat and pieces == data


async def test_a_memory_that_takes_nothing_leaves_it_to_the_connection(box, memory):
    fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    await box.put("f", CONTENT)
    stat, pieces = await read(box, "f", memory)
    assert "memory_bytes" not in stat and pieces == CONTENT


async def test_parts_and_repeats_mean_what_they_mean_without_it(box, memory, passed):
    os.pwrite(memory.fd, CONTENT, 0)
    for _ in range(2):  # A part that comes again overlaps with what has come.
        await write(box, "f", memory, len(CONTENT), part=FilePart("k", 0, False))
    os.pwrite(memory.fd, b"the end", 0)
    await write(box, "f", memory, 7, part=FilePart("k", len(CONTENT), True))
    assert await box.get("f") == CONTENT + b"the end"
    os.pwrite(memory.fd, b"another", 0)
    await write(box, "f", memory, 7, part=FilePart("k", len(CONTENT), True))  # It was done.
    assert await box.get("f") == CONTENT + b"the end"
    assert passed == [True] * 4


async def test_memory_that_is_shortened_is_a_file_that_is_not_written(box, memory):
    os.pwrite(memory.fd, CONTENT[:5000], 0)
    await box.put("f", b"old")
    with pytest.raises(SandboxFileError):
        await write(box, "f", memory, len(CONTENT))
    with pytest.raises(AviatoError):
        await write(box, "f", memory, len(CONTENT), part=FilePart("k"))
    assert await box.get("f") == b"old"
    assert (await box.sh("ls -A | wc -l")).stdout.strip() == "2"


async def test_what_is_wrong_with_the_file_is_told_as_ever(box, memory, passed):
    os.pwrite(memory.fd, CONTENT, 0)
    for path, reason in (("/usr/f", ("read_only", "permission_denied")), ("/tmp", ("is_a_directory",))):
        with pytest.raises(SandboxFileError) as caught:
            await write(box, path, memory, len(CONTENT))
        assert caught.value.reason in reason
        with pytest.raises(SandboxFileError):
            await read(box, path, memory)
    assert passed == [True] * 4


async def test_descriptors_of_requests_that_did_not_ask_for_them_are_mistaken_for_no_others(box, memory):
    """Each is known by its inode: what another client has lent is not read in its place."""
    os.pwrite(memory.fd, CONTENT, 0)
    with Memory(os.memfd_create("other")) as other:
        os.pwrite(other.fd, b"wrong" * 1_000_000, 0)
        for _ in range(3):
            await _unasked(box, other)
        await write(box, "f", memory, len(CONTENT))
    assert await box.get("f") == CONTENT


async def _unasked(box, memory):
    """Have a descriptor come with what has no use for it, once nothing else is on its way."""
    await box.link.stat("first")
    box.link._second.send(encode(FrameType.KEEPALIVE, b"{}"), memory.fd)


async def test_one_that_did_not_come_is_done_without(box, memory, monkeypatch):
    """The kernel drops descriptors where a process may have no more."""
    monkeypatch.setattr(SecondDescriptor, "send", lambda self, data, fd: os.write(self._fd, data))
    os.pwrite(memory.fd, CONTENT, 0)
    await write(box, "f", memory, len(CONTENT))
    stat, pieces = await read(box, "f", memory)
    assert "memory_bytes" not in stat and pieces == CONTENT
    command, printed = random_bytes(8_000_000)
    _, subscription = start(box, command, memory)
    content, lent = await by_memory(box, memory, subscription)
    assert content == printed and not lent


async def test_no_command_has_it(box, memory):
    never = asyncio.get_running_loop().create_future()

    async def ready():
        yield await never

    memory.ready = ready()
    writing = asyncio.ensure_future(write(box, "f", memory, 7))
    listed = await box.sh("ls -l /proc/self/fd; sleep 0; ls -l /proc/$$/fd")
    assert listed.returncode == 0 and "memfd" not in listed.stdout
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing


@pytest.mark.skipif(os.getuid() != 0, reason="the descriptors of process 1 are shown to root only")
async def test_process_1_has_it_for_no_longer_than_it_needs(box, memory):
    os.pwrite(memory.fd, CONTENT, 0)
    await write(box, "f", memory, len(CONTENT))
    await read(box, "f", memory)
    with pytest.raises(SandboxFileError):
        await read(box, "none", memory)
    with pytest.raises(SandboxFileError):
        await write(box, "/tmp", memory, len(CONTENT))
    assert not await _held(box)
    for size in (100, 12_000_000):
        command, printed = random_bytes(size)
        exec_id, subscription = start(box, command, memory)
        content, _ = await by_memory(box, memory, subscription)
        assert content == printed
        box.link.acknowledge(exec_id, size, 0, True)
        assert not await _held(box)


async def _held(box):
    await box.link.stat("/")  # What was sent before was dealt with before.
    folder = f"/proc/{box.process_1}/fd"
    return [name for name in os.listdir(folder) if "memfd:test" in os.readlink(f"{folder}/{name}")]


def random_bytes(size):
    """A program that prints them, and what it prints."""
    program = "import random, sys; r, out = random.Random(3), sys.stdout.buffer\n"
    program += f"for _ in range({size // 500_000}): out.write(r.randbytes(500_000))\n"
    program += f"out.write(r.randbytes({size % 500_000}))"
    pick = random.Random(3)
    printed = [pick.randbytes(500_000) for _ in range(size // 500_000)]
    return ["python3", "-c", program], b"".join((*printed, pick.randbytes(size % 500_000)))


def start(box, command, memory):
    """A command with memory for what it prints."""
    os.pwrite(memory.fd, confirmation(0), CONFIRMED_AT)
    return box.start(*command, memory=memory)


async def by_memory(box, memory, subscription, *, confirm=True, content=b"", until=None):
    """What a subscription tells of stdout, and how much of it lay in the memory."""
    lent = 0
    async with asyncio.timeout(60):
        async for frame in subscription:
            if frame.type == FrameType.DATA and frame.stream == 1:
                assert frame.offset == len(content)
                content += frame.payload
                box.link.acknowledge(subscription.exec_id, len(content), 0, False)
            elif frame.type == FrameType.SHARED:
                place, size = PLACE.unpack(frame.payload)
                assert frame.offset == len(content) and place + size <= CONFIRMED_AT
                content += os.pread(memory.fd, size, place)
                lent += size
                if confirm == "by request":
                    box.link.acknowledge(subscription.exec_id, len(content), 0, False)
                elif confirm:
                    os.pwrite(memory.fd, confirmation(len(content)), CONFIRMED_AT)
            if until is not None and len(content) >= until:
                break
    return content, lent


async def test_large_output_comes_by_it(box, memory):
    """Round the ring some times, without a request that confirms anything."""
    command, printed = random_bytes(30_000_000)
    _, subscription = start(box, command, memory)
    content, lent = await by_memory(box, memory, subscription)
    assert content == printed and lent > 20_000_000


async def test_what_is_not_confirmed_is_kept(box, memory):
    """A reader that was cut off gets all of it from where it was, and by the connection."""
    command, printed = random_bytes(12_000_000)
    exec_id, subscription = start(box, command, memory)
    content, lent = await by_memory(box, memory, subscription, confirm=False, until=3_000_000)
    assert lent
    subscription.close()
    known = len(content) // 2
    again = box.link.subscribe(None, exec_id, known, 0)
    content, lent = await by_memory(box, memory, again, content=content[:known])
    assert content == printed and not lent


async def test_memory_that_takes_no_more_meanwhile_loses_nothing(box, memory):
    """What was told lies there, the rest goes by the connection."""
    command, printed = random_bytes(30_000_000)
    _, subscription = start(box, command, memory)
    content, lent = await by_memory(box, memory, subscription, until=6_000_000)
    assert lent
    fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    content, more = await by_memory(box, memory, subscription, content=content, confirm="by request")
    assert content == printed and more < 10_000_000


async def test_a_command_that_is_asked_for_again_has_the_memory_it_began_with(box, memory):
    command, printed = random_bytes(8_000_000)
    exec_id, subscription = start(box, command, memory)
    with Memory(os.memfd_create("other")) as other:
        subscription.close()
        _, again = box.start(*command, exec_id=exec_id, memory=other)
        content, lent = await by_memory(box, other, again)
    assert content == printed and not lent


async def test_a_terminal_has_none(box, memory):
    exec_id, _ = box.start("cat", terminal=(80, 24), memory=memory)
    assert os.getuid() != 0 or not await _held(box)
    await box.link.cancel(exec_id)


async def test_a_reader_that_confirms_nonsense_or_shortens_it_harms_itself_alone(box, memory):
    command, _ = random_bytes(12_000_000)
    exec_id, subscription = start(box, command, memory)
    await by_memory(box, memory, subscription, until=3_000_000)
    os.pwrite(memory.fd, b"\xff" * 8, CONFIRMED_AT)
    os.ftruncate(memory.fd, 100)
    assert (await box.sh("echo on")).stdout == "on\n"
    os.ftruncate(memory.fd, 0)
    await box.link.cancel(exec_id)
    assert (await box.sh("echo on")).stdout == "on\n"


IN_STEPS = """
import os, random, time
pick = random.Random(3)
def out(count):
    data = pick.randbytes(count)
    while data: data = data[os.write(1, data):]
out(900_000); time.sleep(0.5); out(148_000); time.sleep(0.05); out(3_000_000)
"""


async def test_memory_that_was_left_is_not_entered_again(box, memory):
    """Its reader may not have read yet what he was told lies there."""
    pick = random.Random(3)
    printed = pick.randbytes(900_000) + pick.randbytes(148_000) + pick.randbytes(3_000_000)
    os.ftruncate(memory.fd, 1 << 20)
    fcntl.fcntl(memory.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)  # As if there were no more pages for the moment.
    _, subscription = box.start("python3", "-c", IN_STEPS, memory=memory)
    content, lent = b"", 0
    async with asyncio.timeout(40):
        while len(content) < len(printed):
            await subscription.wait()
            await asyncio.sleep(0.2)  # The reader is late.
            for frame in subscription.drain():
                if frame.type == FrameType.DATA and frame.stream == 1:
                    content += frame.payload
                elif frame.type == FrameType.SHARED:
                    place, size = PLACE.unpack(frame.payload)
                    content += os.pread(memory.fd, size, place)
                    lent += size
            box.link.acknowledge(subscription.exec_id, len(content), 0, False)
    assert content == printed and 0 < lent < 1_100_000


async def test_nothing_is_put_there_any_more_once_another_reads(box, memory):
    """What the first was told lies there stays as it is, and what he says there counts no more."""
    # Each in one call: the first piece that is read is then large, however busy the machine is.
    script = "import os; os.write(1, b'A' * 3_000_000); os.read(0, 1); os.write(1, b'B' * 8_000_000)"
    os.pwrite(memory.fd, confirmation(0), CONFIRMED_AT)
    exec_id, first = box.start("python3", "-c", script, stdin=True, memory=memory)
    told, known = [], 0
    while known < 3_000_000:
        await first.wait()
        for frame in first.drain():
            if frame.type == FrameType.SHARED:
                told.append(PLACE.unpack(frame.payload))
                known += told[-1][1]
            elif frame.type == FrameType.DATA:
                known += len(frame.payload)
    assert told
    second = box.link.subscribe(None, exec_id, 0, 0)
    await second.wait()
    os.pwrite(memory.fd, confirmation(3_000_000), CONFIRMED_AT)
    assert os.getuid() != 0 or not await _held(box)
    await box.link.write_stdin(exec_id, b"\n", 0, True)
    content, lent = await by_memory(box, memory, second)
    assert content == b"A" * 3_000_000 + b"B" * 8_000_000 and not lent
    for place, size in told:
        assert os.pread(memory.fd, size, place) == b"A" * size


@pytest.mark.skipif(os.getuid() != 0, reason="the descriptors of process 1 are shown to root only")
async def test_commands_that_had_no_use_for_it_hold_none(box, memory):
    """Also those whose results nobody confirms."""
    for _ in range(5):
        _, subscription = start(box, ["echo", "on"], memory)
        async for _ in subscription:
            pass
    assert not await _held(box)


async def test_a_command_that_fits_a_request_fits_it_with_memory(box, memory):
    spec = make_spec("true", env={"X": ""})
    payload = {"op": "exec", "exec_id": spec.exec_id, "stdout": 0, "stderr": 0}
    size = len(as_json(payload)) + len(b',"spec":') + len(as_json(spec.fields()))
    value = "a" * (MAX_PAYLOAD_BYTES - size)
    _, subscription = box.start("true", exec_id=spec.exec_id, env={"X": value}, memory=memory)
    frames = [frame.type async for frame in subscription]
    assert frames[-1] in (FrameType.EXIT, FrameType.ERROR)  # The kernel takes no variable of that size.
