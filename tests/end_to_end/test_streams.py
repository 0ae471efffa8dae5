"""Bytes arrive whole: characters cut anywhere, input and output at once, and many commands from threads and a loop together.

`AVIATO_TEST_COMMANDS=2000` makes the last one long.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, Sandbox, SandboxDefaults
from tests.matrices import deep

# -- characters

TEXT = "aé€😀\U0010ffff\u0301z"
"""Characters of one to four bytes."""

CUT = f"""
import os, sys
data = {TEXT!r}.encode()
stream = int(sys.argv[1])
for cut in range(len(data) + 1):
    for piece in (data[:cut], data[cut:]):
        os.write(stream, piece)
        sys.stdin.readline()
"""
BYTE_BY_BYTE = f"""
import os, sys
for byte in {TEXT!r}.encode():
    os.write(int(sys.argv[1]), bytes([byte]))
    sys.stdin.readline()
"""


def arrivals(program: str) -> list[int]:
    """How many bytes have been written at each of the program's stops."""
    size = len(TEXT.encode())
    if program is BYTE_BY_BYTE:
        return list(range(1, size + 1))
    return [size * cut + part for cut in range(size + 1) for part in (cut, size)]


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("program", [CUT, BYTE_BY_BYTE], ids=["cut", "byte_by_byte"])
def test_a_character_cut_anywhere_stays_whole(sandbox: Sandbox, program: str, name: str) -> None:
    process = sandbox.exec(["python", "-c", program, {"stdout": "1", "stderr": "2"}[name]], stdin=True)
    stream: Any = getattr(process, name)
    assert process.stdin is not None
    reader, seen, kept, last = iter(stream), "", b"", 0
    data = TEXT.encode()
    for total in arrivals(program):
        deadline = time.monotonic() + 60
        while stream.total_bytes < total:
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        kept += (data * 2)[last % len(data) :][: total - last]
        last = total
        # What is whole so far is there, and nothing of what is not.
        while len(seen) < len(kept.decode(errors="ignore")):
            seen += next(reader)
        assert seen == kept.decode(errors="ignore")
        process.stdin.writeline("")
    assert seen + "".join(reader) == kept.decode()
    result = process.result()
    assert (getattr(result, name), getattr(result, f"{name}_bytes")) == (kept.decode(), kept)


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_async_form_of_characters_and_lines(served: Any, name: str) -> None:
    async def main() -> None:
        async with Sandbox() as sandbox, AsyncClient() as client:
            found = await client.from_id(sandbox.sandbox_id)
            for begin in (sandbox.exec, found.spawn):
                process: Any = begin(["python", "-c", CUT, {"stdout": "1", "stderr": "2"}[name]], stdin=True)
                stream = getattr(process, name)
                write = process.stdin.write if begin == sandbox.exec else process.write_stdin
                reading = asyncio.create_task(joined(stream))
                for total in arrivals(CUT):
                    async with asyncio.timeout(60):
                        while stream.total_bytes < total:
                            await asyncio.sleep(0.0005)
                    await write(b"\n")
                text = await reading
                assert text == TEXT * (len(TEXT.encode()) + 1)
                assert [line async for line in stream.lines()] == [text]
                assert getattr(await process, name) == text

    asyncio.run(main(), debug=True)


def test_a_cap_cuts_between_characters(sandbox: Sandbox) -> None:
    data = TEXT.encode() * 3
    sandbox.write_file("/tmp/text", data).result()
    processes = {most: sandbox.exec(["cat", "/tmp/text"], max_output_bytes=most) for most in range(1, len(data))}
    for most, process in processes.items():
        result = process.result()
        head, marker, tail = result.stdout.partition("\n[… ")
        left_out, _, tail = tail.partition(" bytes left out …]\n")
        assert marker and result.stdout_truncated and len(result.stdout_bytes) == most
        assert (TEXT * 3).startswith(head) and (TEXT * 3).endswith(tail)
        assert len(head.encode()) + int(left_out) + len(tail.encode()) == len(data)


# -- much in and out

SIZES = [8 << 20, *deep([50 << 20])]
BUSY = 'yes "the other stream is busy" >&2 & cat; kill $!'
NOISE = b"the other stream is busy\n"


def check_echo(result: aviato.ProcessResult, content: bytes) -> None:
    assert hashlib.sha256(result.stdout_bytes).digest() == hashlib.sha256(content).digest()
    check_noise(result, len(content) // 16)


def check_noise(result: aviato.ProcessResult, least: int) -> None:
    """It was busy, with so many bytes at least, and no byte of it was doubled, lost or swapped."""
    total = result.stderr_bytes_total
    assert result.returncode == 0 and total > least
    kept = result.stderr_bytes
    head, tail = kept[: len(kept) // 2], kept[len(kept) // 2 :]
    repeated = NOISE * (len(kept) // len(NOISE) + 2)
    assert head == repeated[: len(head)]
    first = (total - len(tail)) % len(NOISE)
    assert tail == repeated[first : first + len(tail)]


def pieces_of(content: bytes) -> list[bytes]:
    pick, pieces, start = random.Random(7), [], 0
    while start < len(content):
        size = pick.choice([1, 4096, 65_537, 1 << 20, (8 << 20) + 1])
        pieces.append(content[start : start + size])
        start += size
    return pieces


@pytest.mark.parametrize("size", SIZES)
def test_much_in_and_out_while_the_other_stream_is_busy(sandbox: Sandbox, size: int) -> None:
    content = os.urandom(size)
    check_echo(sandbox.exec(["sh", "-c", BUSY], stdin=content, max_output_bytes=size).result(), content)
    process = sandbox.exec(["sh", "-c", BUSY], stdin=True, max_output_bytes=size)
    assert process.stdin is not None
    for piece in pieces_of(content):
        process.stdin.write(piece)
    process.stdin.close()
    check_echo(process.result(), content)


@pytest.mark.parametrize("size", SIZES)
def test_async_much_in_and_out_while_the_other_stream_is_busy(served: Any, size: int) -> None:
    async def main() -> None:
        content = os.urandom(size)
        async with Sandbox() as sandbox, AsyncClient() as client:
            process = sandbox.exec(["sh", "-c", BUSY], stdin=True, max_output_bytes=size)
            assert process.stdin is not None
            for piece in pieces_of(content):
                await process.stdin.write(piece)
            await process.stdin.close()
            check_echo(await process, content)

            found = await client.from_id(sandbox.sandbox_id)
            begun = found.spawn(["sh", "-c", BUSY], stdin=content, text=False)
            seen = hashlib.sha256()
            async for chunk in begun.stdout:
                seen.update(chunk)
            assert seen.digest() == hashlib.sha256(content).digest()
            check_noise(await begun, size // 16)

    asyncio.run(main())


# -- many commands, from 32 threads and a loop together

COMMANDS = int(os.environ.get("AVIATO_TEST_COMMANDS", "200"))
THREADS = 32
ON_THE_LOOP = 32
MOST_BYTES = 4 << 20

PROGRAM = """
import hashlib, os, random, sys
seed, *sizes, returncode = map(int, sys.argv[1:])
pick = random.Random(seed)
left = {}
for stream, size in zip((1, 2), sizes):
    data = hashlib.shake_256(b"%d %d" % (seed, stream)).digest(size).decode("cp437").encode()[:size]
    left[stream] = memoryview(data)
while left:
    stream = pick.choice(list(left))
    written = os.write(stream, left[stream][:pick.choice((1, 1000, 65536, 300001))]) if left[stream] else 0
    left[stream] = left[stream][written:]
    if not left[stream]:
        del left[stream]
os._exit(returncode)
"""


@dataclass(frozen=True)
class Wanted:
    """One command: what it is to write, and how it is to end."""

    seed: int
    sizes: tuple[int, int]
    returncode: int

    @property
    def command(self) -> list[str]:
        return ["python", "-S", "-c", PROGRAM, *map(str, (self.seed, *self.sizes, self.returncode))]

    def data(self, stream: int) -> bytes:
        return written(self.seed, stream, self.sizes[stream - 1])

    def check(self, result: aviato.ProcessResult) -> None:
        """The sha256 of each stream, and the end."""
        assert result.returncode == self.returncode, self
        assert (result.stdout_bytes_total, result.stderr_bytes_total) == self.sizes, self
        for stream, got in ((1, result.stdout_bytes), (2, result.stderr_bytes)):
            assert hashlib.sha256(got).digest() == hashlib.sha256(self.data(stream)).digest(), (self, stream)

    def check_text(self, stream: int, text: str) -> None:
        assert text == self.data(stream).decode(errors="replace"), (self, stream)

    def check_rest(self, result: aviato.ProcessResult, offsets: tuple[int, int]) -> None:
        assert result.returncode == self.returncode, self
        for stream, got in ((1, result.stdout_bytes), (2, result.stderr_bytes)):
            assert got == self.data(stream)[offsets[stream - 1] :], (self, stream, offsets)


@lru_cache(64)
def written(seed: int, stream: int, size: int) -> bytes:
    """What the program writes: characters of one to three bytes, cut anywhere."""
    return hashlib.shake_256(b"%d %d" % (seed, stream)).digest(size).decode("cp437").encode()[:size]


def wanted(number: int, seed: int) -> Wanted:
    pick = random.Random(f"{seed} {number}")
    edges = (0, 1, (1 << 16) - 1, 1 << 16, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, MOST_BYTES)

    def size() -> int:
        chance = pick.random()
        if chance < 0.3:
            return pick.choice(edges)
        return pick.randrange(MOST_BYTES) if chance < 0.65 else int(MOST_BYTES ** pick.random())

    return Wanted(pick.getrandbits(40), (size(), size()), pick.randrange(256))


def run(sandbox: Sandbox, one: Wanted, way: int) -> None:
    """In a thread: waited for, iterated while it runs (either stream), or detached and read by two at once."""
    process = sandbox.exec(one.command, detach=way == 3)
    if way in (1, 2):
        one.check_text(way, "".join((process.stdout, process.stderr)[way - 1]))
    if way == 3:
        offsets = (one.sizes[0] // 3, one.sizes[1] // 2)
        one.check_rest(sandbox.attach(process.exec_id, *offsets).result(), offsets)
    one.check(process.result())


async def run_async(sandbox: Sandbox, client_sandbox: Any, one: Wanted, way: int) -> None:
    if way == 2:  # The core by itself, both streams as bytes.
        begun = client_sandbox.spawn(one.command, text=False)
        both = await asyncio.gather(digest(begun.stdout), digest(begun.stderr))
        assert both == [hashlib.sha256(one.data(stream)).digest() for stream in (1, 2)], one
        one.check(await begun)
        return
    process = sandbox.exec(one.command, detach=way == 3)
    if way == 1:
        texts = await asyncio.gather(joined(process.stdout), joined(process.stderr))
        for stream in (1, 2):
            one.check_text(stream, texts[stream - 1])
    if way == 3:
        offsets = (one.sizes[0] // 2, one.sizes[1] // 3)
        one.check_rest(await sandbox.attach(process.exec_id, *offsets), offsets)
    one.check(await process)


async def digest(stream: AsyncIterator[bytes]) -> bytes:
    seen = hashlib.sha256()
    async for chunk in stream:
        seen.update(chunk)
    return seen.digest()


async def joined(stream: Any) -> str:
    return "".join([piece async for piece in stream])


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(300 + COMMANDS // 2)
def test_many_commands_from_threads_and_a_loop_lose_double_and_swap_nothing(served: Any) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    numbers = iter(range(COMMANDS))
    done: list[int] = []

    def thread(sandboxes: list[Sandbox]) -> None:
        for number in numbers:
            run(sandboxes[number % len(sandboxes)], wanted(number, seed), number // 2 % 4)
            done.append(number)

    async def task(sandboxes: list[Sandbox], found: list[Any]) -> None:
        for number in numbers:
            place = number % len(sandboxes)
            await run_async(sandboxes[place], found[place], wanted(number, seed), number // 2 % 4)
            done.append(number)

    async def on_the_loop(sandboxes: list[Sandbox]) -> None:
        async with AsyncClient() as client, asyncio.TaskGroup() as group:
            found = [await client.from_id(sandbox.sandbox_id) for sandbox in sandboxes]
            for _ in range(ON_THE_LOOP):
                group.create_task(task(sandboxes, found))

    with aviato.Session(SandboxDefaults()) as session, ThreadPoolExecutor(THREADS) as pool:
        sandboxes = [session.sandbox() for _ in range(4)]
        aviato.wait(sandboxes)  # so that the client on the loop finds them
        in_threads = [pool.submit(thread, sandboxes) for _ in range(THREADS)]
        asyncio.run(on_the_loop(sandboxes))
        for future in in_threads:
            future.result()
    assert sorted(done) == list(range(COMMANDS))
