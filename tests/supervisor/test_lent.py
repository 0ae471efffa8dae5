"""Memory that was lent, seen by process 1."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random

import pytest

from aviato.exceptions import AviatoError, AviatoValidationError, SandboxFileError
from aviato.wire.files import FilePart
from aviato.wire.frames import PLACE, FrameType
from aviato.wire.memory import CONFIRMED, CONFIRMED_AT, LEAST_BYTES, MOST_BYTES, REFUSED

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(1 << 20)


@pytest.fixture
def memory():
    fd = os.memfd_create("test")
    yield fd
    os.close(fd)


async def read(box, path, number, **more):
    reader = box.link.read_file(path, memory=number, **more)
    try:
        stat = await reader.opened()
        return stat, b"".join([piece async for piece in reader])
    finally:
        await reader.aclose()


async def write(box, path, number, size, *, mode=None, part=None):
    await box.link.write_lent(path, number, size, mode=mode, part=part)


async def test_a_file_goes_by_it_both_ways(box, memory):
    number = await box.link.lend(memory)
    os.pwrite(memory, CONTENT, 0)
    await write(box, "d/f", number, len(CONTENT), mode=0o640)
    assert await box.get("d/f") == CONTENT
    assert (await box.link.stat("d/f"))["mode"] == 0o640
    os.ftruncate(memory, 0)
    stat, pieces = await read(box, "d/f", number)
    assert (stat["memory_bytes"], stat["size_bytes"], stat["mode"], pieces) == (len(CONTENT), len(CONTENT), 0o640, b"")
    assert os.pread(memory, MOST_BYTES, 0) == CONTENT
    stat, _ = await read(box, "d/f", number, offset=1000, version=stat["version"])
    assert os.pread(memory, stat["memory_bytes"], 0) == CONTENT[1000:]


@pytest.mark.parametrize("size", [0, LEAST_BYTES - 1, MOST_BYTES + 1])
async def test_what_is_small_or_large_goes_by_the_connection(box, memory, size):
    number = await box.link.lend(memory)
    data = os.urandom(size)
    await box.put("f", data)
    stat, pieces = await read(box, "f", number)
    assert "memory_bytes" not in stat and pieces == data


async def test_a_memory_that_takes_nothing_leaves_it_to_the_connection(box):
    sealed = os.memfd_create("test", os.MFD_ALLOW_SEALING)

    fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    number = await box.link.lend(sealed)
    os.close(sealed)
    await box.put("f", CONTENT)
    stat, pieces = await read(box, "f", number)
    assert "memory_bytes" not in stat and pieces == CONTENT


async def test_parts_and_repeats_mean_what_they_mean_without_it(box, memory):
    number = await box.link.lend(memory)
    os.pwrite(memory, CONTENT, 0)
    for _ in range(2):  # A part that comes again overlaps with what has come.
        await write(box, "f", number, len(CONTENT), part=FilePart("k", 0, False))
    os.pwrite(memory, b"the end", 0)
    await write(box, "f", number, 7, part=FilePart("k", len(CONTENT), True))
    assert await box.get("f") == CONTENT + b"the end"
    os.pwrite(memory, b"another", 0)
    await write(box, "f", number, 7, part=FilePart("k", len(CONTENT), True))  # It was done.
    assert await box.get("f") == CONTENT + b"the end"


async def test_memory_that_is_shortened_is_a_file_that_is_not_written(box, memory):
    number = await box.link.lend(memory)
    os.pwrite(memory, CONTENT[:5000], 0)
    await box.put("f", b"old")
    with pytest.raises(SandboxFileError):
        await write(box, "f", number, len(CONTENT))
    with pytest.raises(AviatoError):
        await write(box, "f", number, len(CONTENT), part=FilePart("k"))
    assert await box.get("f") == b"old"
    assert (await box.sh("ls -A | wc -l")).stdout.strip() == "1"


async def test_what_is_wrong_with_the_file_is_told_as_ever(box, memory):
    number = await box.link.lend(memory)
    os.pwrite(memory, CONTENT, 0)
    for path, reason in (("/usr/f", ("read_only", "permission_denied")), ("/tmp", ("is_a_directory",))):
        with pytest.raises(SandboxFileError) as caught:
            await write(box, path, number, len(CONTENT))
        assert caught.value.reason in reason
        with pytest.raises(SandboxFileError):
            await read(box, path, number)


async def test_it_is_given_back(box, memory):
    number = await box.link.lend(memory)
    box.link.give_back(number)
    for call in (write(box, "f", number, 7), write(box, "f", 99, 7)):
        with pytest.raises(AviatoValidationError) as caught:
            await call
        assert caught.value.reason == REFUSED
    await box.put("f", CONTENT)
    with pytest.raises(AviatoValidationError):
        await read(box, "f", number)
    assert await box.get("f") == CONTENT


async def test_no_command_has_it(box, memory):
    await box.link.lend(memory)
    listed = await box.sh("ls -l /proc/self/fd; sleep 0; ls -l /proc/$$/fd")
    assert listed.returncode == 0 and "memfd" not in listed.stdout


def random_bytes(size):
    """A program that prints them, and what it prints."""
    program = "import random, sys; r, out = random.Random(3), sys.stdout.buffer\n"
    program += f"for _ in range({size // 50_000}): out.write(r.randbytes(50_000))"
    pick = random.Random(3)
    return ["python3", "-c", program], b"".join(pick.randbytes(50_000) for _ in range(size // 50_000))


async def by_memory(box, memory, subscription, *, confirm=True, content=b"", until=None):
    """What a subscription tells of stdout, and how much of it lay in the memory."""
    lent = 0
    async for frame in subscription:
        if frame.type == FrameType.DATA and frame.stream == 1:
            assert frame.offset == len(content)
            content += frame.payload
            box.link.acknowledge(subscription.exec_id, len(content), 0, False)
        elif frame.type == FrameType.LENT:
            place, size = PLACE.unpack(frame.payload)
            assert frame.offset == len(content) and place + size <= CONFIRMED_AT
            content += os.pread(memory, size, place)
            lent += size
            if confirm:
                os.pwrite(memory, CONFIRMED.pack(len(content)), CONFIRMED_AT)
        if until is not None and len(content) >= until:
            break
    return content, lent


async def test_large_output_comes_by_it(box, memory):
    """Round the ring some times, without a request that confirms anything."""
    command, printed = random_bytes(30_000_000)
    _, subscription = box.start(*command)
    await box.link.lend(memory, (subscription, 1))
    content, lent = await asyncio.wait_for(by_memory(box, memory, subscription), 30)
    assert content == printed and lent > 20_000_000


async def test_what_is_not_confirmed_is_kept(box, memory):
    """A reader that was cut off gets all of it from where it was, and by the connection."""
    command, printed = random_bytes(12_000_000)
    exec_id, subscription = box.start(*command)
    await box.link.lend(memory, (subscription, 1))
    content, lent = await asyncio.wait_for(by_memory(box, memory, subscription, confirm=False, until=3_000_000), 30)
    assert lent
    subscription.close()
    known = len(content) // 2
    again = box.link.subscribe(None, exec_id, known, 0)
    content, lent = await asyncio.wait_for(by_memory(box, memory, again, content=content[:known]), 30)
    assert content == printed and not lent


async def test_it_is_for_who_reads(box, memory):
    """Another reader has no such memory, and must not be told places in it."""
    command, printed = random_bytes(8_000_000)
    exec_id, subscription = box.start(*command)
    other = box.link.subscribe(None, exec_id)
    with pytest.raises(AviatoValidationError):
        await box.link.lend(memory, (subscription, 1))
    content, lent = await asyncio.wait_for(by_memory(box, memory, other), 30)
    assert content == printed and not lent


async def test_a_terminal_has_none(box, memory):
    exec_id, subscription = box.start("cat", terminal=(80, 24))
    with pytest.raises(AviatoValidationError) as caught:
        await box.link.lend(memory, (subscription, 1))
    assert caught.value.reason == REFUSED
    await box.link.cancel(exec_id)


async def test_a_reader_that_confirms_nonsense_or_shortens_it_harms_itself_alone(box, memory):
    command, _ = random_bytes(12_000_000)
    exec_id, subscription = box.start(*command)
    await box.link.lend(memory, (subscription, 1))
    await by_memory(box, memory, subscription, until=3_000_000)
    os.pwrite(memory, b"\xff" * 8, CONFIRMED_AT)
    os.ftruncate(memory, 100)
    await asyncio.sleep(0.1)
    os.ftruncate(memory, 0)
    await box.link.cancel(exec_id)
    assert (await box.sh("echo on")).stdout == "on\n"
