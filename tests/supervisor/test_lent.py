"""Memory that was lent, seen by process 1."""

from __future__ import annotations

import fcntl
import os

import pytest

from aviato.exceptions import AviatoError, AviatoValidationError, SandboxFileError
from aviato.wire.files import FilePart
from aviato.wire.memory import LEAST_BYTES, MOST_BYTES, REFUSED

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
