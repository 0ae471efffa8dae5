"""Files and logs whose connection is cut go on where they were, or are sent again, and are written once and whole."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import Sandbox
from tests.conftest import RunningServer
from tests.endings.conftest import until
from tests.faults.conftest import FaultyServer, faulty_server
from tests.faults.gate import Cut, Gate, gate_to
from tests.matrices import deep

SEED = int(os.environ.get("AVIATO_TEST_FAULT_SEED", "0")) or random.randrange(1, 1 << 31)
SIZE_BYTES = 9_000_000
CONTENT = random.Random(7).randbytes(SIZE_BYTES)


@pytest.fixture
def gate(server: RunningServer) -> Iterator[Gate]:
    with gate_to(server.url) as gate:
        yield gate


@pytest.fixture
def box(gate: Gate) -> Iterator[Sandbox]:
    with Sandbox(base_url=gate.url) as sandbox:
        yield sandbox


@pytest.fixture(params=["blocking", "loop"])
def form(request: Any) -> Any:
    return request.param


def cuts(count: int, size: int) -> list[int]:
    """Bytes after which to cut: early ones, late ones, and any."""
    draw = random.Random(SEED)
    print(f"AVIATO_TEST_FAULT_SEED={SEED}")
    return [0, 1, 300, *(int(2 ** draw.uniform(0, 20)) for _ in range(count)), *(draw.randrange(size) for _ in range(count))]


async def _all(stream: Any) -> list[bytes]:
    return [chunk async for chunk in stream]


def read(box: Sandbox, path: str, form: str) -> bytes:
    stream = box.read_file_streaming(path)
    return b"".join(stream if form == "blocking" else asyncio.run(_all(stream)))


def test_a_file_is_read_on(gate: Gate, box: Sandbox, form: str) -> None:
    box.write_file("big", CONTENT).result()
    happened = 0
    for at in cuts(6, SIZE_BYTES):
        cut = gate.cut("GET /v1/sandboxes/", down=at)
        assert read(box, "big", form) == CONTENT, at
        happened += cut.happened
    assert happened >= 12


def test_a_file_that_changed_meanwhile_is_no_mixture(gate: Gate, box: Sandbox, server: RunningServer, form: str) -> None:
    direct = Sandbox.from_id(box.sandbox_id, base_url=server.url).result()
    changes = [
        ["sh", "-c", "echo more >> big"],
        ["sh", "-c", "head -c 9000000 /dev/zero > other; mv other big"],
        ["sh", "-c", "printf x | dd of=big bs=1 seek=5000000 conv=notrunc"],
    ]

    def change(command: list[str], cut: Cut) -> None:
        until(lambda: cut.happened, 5)
        direct.exec(command, check=True).result()
        gate.open()

    def blocking(command: list[str], cut: Cut) -> None:
        chunks = iter(box.read_file_streaming("big"))
        assert CONTENT.startswith(next(chunks))
        change(command, cut)
        list(chunks)

    async def loop(command: list[str], cut: Cut) -> None:
        chunks = aiter(box.read_file_streaming("big"))
        assert CONTENT.startswith(await anext(chunks))
        await asyncio.to_thread(change, command, cut)
        await _all(chunks)

    for command in changes:
        box.write_file("big", CONTENT).result()
        cut = gate.cut("GET /v1/sandboxes/", down=50_000, shuts=True)
        with pytest.raises(aviato.SandboxFileError) as caught:
            blocking(command, cut) if form == "blocking" else asyncio.run(loop(command, cut))
        assert (caught.value.reason, caught.value.filepath, caught.value.is_infrastructure) == ("changed", "big", False)


def pieces(size: int = 300_000) -> Iterator[bytes]:
    for start in range(0, SIZE_BYTES, size):
        yield CONTENT[start : start + size]


async def async_pieces() -> AsyncIterator[bytes]:
    for piece in pieces():
        yield piece


def digest(box: Sandbox, path: str) -> str:
    return box.exec(["sha256sum", path]).result().stdout.split()[0]


@pytest.mark.parametrize("call", ["write_file", "write_file_streaming", "upload", "short"])
@pytest.mark.parametrize("way", ["up", *deep(["down"])])
def test_a_file_is_written_once(gate: Gate, box: Sandbox, tmp_path: Path, call: str, way: str, form: str) -> None:
    """Counted by a second name of each file that was put there; readers never see a half one, nothing is left beside it."""
    (tmp_path / "big").write_bytes(CONTENT)
    watch = """
import os, sys, time
seen = {}
while not os.path.exists("/tmp/end"):
    try:
        found = os.stat("/workspace/to/file")
    except OSError:
        continue
    if found.st_ino not in seen:
        os.link("/workspace/to/file", f"/workspace/{found.st_ino}")
        seen[found.st_ino] = found.st_size
print(*seen.values())
"""
    watching = box.exec(["python3", "-c", watch])
    short = b"short\n"
    count = 0
    sizes = [300, 600] if way == "down" else cuts(3, PART)
    for at in sizes:
        gate.cut("PUT /v1/sandboxes/", **{way: at})
        write = {
            "write_file": lambda: box.write_file("to/file", CONTENT),
            "short": lambda: box.write_file("to/file", short),
            "write_file_streaming": lambda: box.write_file_streaming("to/file", pieces()),
            "upload": lambda: box.upload(str(tmp_path / "big"), "to/file"),
        }[call]
        if form == "blocking":
            write().result(60)
        elif call == "write_file_streaming":
            asyncio.run(_streamed(box))
        else:
            asyncio.run(_awaited(write))
        count += 1
        expected = hashlib.sha256(short if call == "short" else CONTENT).hexdigest()
        assert digest(box, "to/file") == expected, at
        until(lambda count=count: len(box.list_files("/workspace").result()) >= count + 1, 5)
    box.write_file("/tmp/end", b"").result()
    size = len(short) if call == "short" else SIZE_BYTES
    assert watching.result(60).stdout == " ".join([str(size)] * count) + "\n"
    assert [one.path.rpartition("/")[2] for one in box.list_files("to").result()] == ["file"]


PART = 4 << 20


async def _awaited(begin: Any) -> Any:
    return await begin()


async def _streamed(box: Sandbox) -> None:
    await box.write_file_streaming("to/file", async_pieces())


def test_trees_travel_again(gate: Gate, box: Sandbox, tmp_path: Path, form: str) -> None:
    for number in range(40):
        (tmp_path / "tree" / str(number % 4)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / str(number % 4) / f"{number}").write_bytes(CONTENT[number * 50_000 : (number + 1) * 50_000])

    def run(begin: Any) -> None:
        begin().result(60) if form == "blocking" else asyncio.run(_awaited(begin))

    for number, at in enumerate(cuts(2, 2_000_000)):
        cut = gate.cut("PUT /v1/sandboxes/", up=at)
        run(lambda number=number: box.upload(str(tmp_path / "tree"), f"in/{number}"))
        assert cut.happened
        cut = gate.cut("GET /v1/sandboxes/", down=at)
        local = tmp_path / f"out{number}"
        run(lambda number=number, local=local: box.download(f"in/{number}", str(local)))
        found = {path.name: path.read_bytes() for path in local.rglob("*") if path.is_file()}
        assert found == {path.name: path.read_bytes() for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    left = [one.path.rpartition("/")[2] for one in box.list_files("in").result()]
    assert left == sorted(str(number) for number in range(len(left)))


@pytest.mark.deep
def test_logs_are_read_on(gate: Gate, form: str) -> None:
    program = "for i in $(seq 30); do seq $i 20000; sleep 0.05; done"
    expected = b"".join(b"%d\n" % line for i in range(1, 31) for line in range(i, 20001))
    happened = 0
    for at in (0, 200, 100_000, 2_000_000):
        with Sandbox(base_url=gate.url, command="sh", args=["-c", program]) as box:
            box.wait()
            cut = gate.cut("GET /v1/sandboxes/", down=at)
            stream = box.stream_logs(follow=True)
            text = "".join(stream) if form == "blocking" else "".join(asyncio.run(_all(stream)))  # type: ignore[arg-type]
            assert text.encode() == expected, at
            happened += cut.happened
            cut = gate.cut("GET /v1/sandboxes/", down=at)
            assert "".join(box.stream_logs(tail_lines=100_000)).encode() == b"".join(expected.splitlines(True)[-100_000:])
    assert happened == 4


def test_they_go_on_after_a_restart_of_the_server(tmp_path: Path, _private_environment: None) -> None:
    """Reading, writing from a source that yields once, and logs."""
    clock = ["-c", "while :; do date +%N; sleep 0.01; done"]
    with faulty_server() as faulty, Sandbox(base_url=faulty.url, command="sh", args=clock) as box:
        box.write_file("big", CONTENT).result()
        stream, logs = iter(box.read_file_streaming("big")), iter(box.stream_logs(follow=True))
        seen = [next(stream)]
        first = next(logs)

        def source() -> Iterator[bytes]:
            for number, piece in enumerate(pieces()):
                if number == 20:
                    restart(faulty)
                yield piece

        box.write_file_streaming("copy", source()).result(40)
        assert digest(box, "copy") == hashlib.sha256(CONTENT).hexdigest()
        assert b"".join([*seen, *stream]) == CONTENT
        for _ in range(10):
            first += next(logs)
        assert all(line.isdigit() and len(line) == 9 for line in first.splitlines()[:-1])
        assert "".join(box.stream_logs()).startswith(first)


def restart(server: FaultyServer) -> None:
    server.kill()
    server.start()
