"""Files in and out."""

from __future__ import annotations

import asyncio
import os
import queue
import resource
import stat
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import Sandbox, SandboxDefaults, Session


def test_write_and_read(sandbox: Sandbox) -> None:
    content = bytes(range(256))
    sandbox.write_file("/tmp/a/b/é", content).result()
    assert sandbox.read_file("/tmp/a/b/é").result() == content
    info = sandbox.stat("/tmp/a/b/é").result()
    assert (info.size_bytes, info.mode, info.type) == (256, 0o644, "file")
    sandbox.write_file("/tmp/a/b/é", b"", mode=0o600).result()
    sandbox.write_file("/tmp/a/b/é", b"x").result()
    assert sandbox.stat("/tmp/a/b/é").result().mode == 0o600
    assert [one.path for one in sandbox.list_files("/tmp/a").result()] == ["/tmp/a/b"]


def test_a_relative_path_counts_from_where_commands_start(sandbox: Sandbox) -> None:
    sandbox.write_file("here", b"1").result()
    assert sandbox.exec(["cat", "here"]).result().stdout == "1"
    assert "here" in [os.path.basename(one.path) for one in sandbox.list_files().result()]


def test_directories(sandbox: Sandbox) -> None:
    sandbox.make_directory("/tmp/d/e").result()
    with pytest.raises(aviato.SandboxFileError):
        sandbox.remove("/tmp/d").result()
    sandbox.remove("/tmp/d", recursive=True).result()
    with pytest.raises(aviato.SandboxFileError) as caught:
        sandbox.stat("/tmp/d").result()
    assert (caught.value.reason, caught.value.filepath) == ("no_such_file", "/tmp/d")


@pytest.mark.parametrize(("path", "reason"), [("/no/such", "no_such_file"), ("/etc", "is_a_directory")])
def test_what_cannot_be_read(sandbox: Sandbox, path: str, reason: str) -> None:
    with pytest.raises(aviato.SandboxFileError) as caught:
        sandbox.read_file(path).result()
    assert (caught.value.reason, caught.value.filepath) == (reason, path)
    assert not caught.value.is_infrastructure
    with pytest.raises(aviato.SandboxFileError) as caught:
        list(sandbox.read_file_streaming(path))
    assert caught.value.reason == reason


@pytest.mark.parametrize("call", ["read_file", "stat", "list_files", "remove", "make_directory"])
def test_what_can_be_no_path_is_no_failure_of_the_server(sandbox: Sandbox, call: str) -> None:
    with pytest.raises(aviato.SandboxFileError, match="20001 bytes") as caught:
        getattr(sandbox, call)("/" + "a" * 20_000).result()
    assert not caught.value.is_infrastructure
    with pytest.raises(aviato.AviatoValidationError, match="Unicode"):
        getattr(sandbox, call)("/tmp/\udc80").result()
    assert sandbox.exec(["true"]).result().returncode == 0


def test_large_files_in_little_memory(sandbox: Sandbox, tmp_path: Path) -> None:
    piece = os.urandom(1 << 20)

    def source() -> Iterator[bytes]:
        for _ in range(100):
            yield piece

    sandbox.write_file_streaming("/tmp/warm", source()).result()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sandbox.write_file_streaming("/tmp/large", source()).result()
    position = 0
    for chunk in sandbox.read_file_streaming("/tmp/large"):
        start = position % len(piece)
        assert chunk == (piece + piece)[start : start + len(chunk)]
        position += len(chunk)
    assert position == 100 << 20
    sandbox.download("/tmp/large", tmp_path / "large").result()
    assert (tmp_path / "large").stat().st_size == 100 << 20
    sandbox.upload(tmp_path / "large", "/tmp/again").result()
    assert sandbox.exec(["cmp", "/tmp/large", "/tmp/again"]).result().returncode == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


async def _chunks(error: BaseException | None) -> AsyncIterator[bytes]:
    for _ in range(3):
        yield bytes(1000)
    if error is not None:
        raise error
    await asyncio.sleep(1000)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, None])
def test_a_source_whose_loop_turns_no_more_ends_the_write(sandbox: Sandbox, kind: type[BaseException] | None) -> None:
    writes = []
    loop = asyncio.new_event_loop()

    async def main() -> None:
        writes.append(sandbox.write_file_streaming("/tmp/source", _chunks(None if kind is None else kind("by its source"))))
        if kind is None:
            return
        await writes[0]

    with nullcontext() if kind is None else pytest.raises(kind, match="by its source"):
        loop.run_until_complete(main())
    tasks = asyncio.all_tasks(loop)
    if kind is None:
        loop.close()
    with pytest.raises(kind or RuntimeError, match="by its source" if kind else "loop of the source has closed"):
        writes[0].result(30)
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()


def test_upload_keeps_permission_bits(sandbox: Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o755)
    sandbox.upload(program, "/tmp/program").result()
    assert sandbox.exec(["/tmp/program"]).result().stdout == "ran\n"
    sandbox.download("/tmp/program", tmp_path / "back").result()
    assert stat.S_IMODE((tmp_path / "back").stat().st_mode) == 0o755
    (tmp_path / "back").unlink()
    with pytest.raises(aviato.SandboxFileError):
        sandbox.download("/no/such", tmp_path / "none").result()
    assert [path.name for path in tmp_path.iterdir()] == ["program"]


@pytest.mark.parametrize("when", ["before it began", "in the middle", "long after"])
def test_a_file_whose_reader_has_left_is_never_taken_for_whole(sandbox: Sandbox, when: str) -> None:
    sandbox.write_file("/tmp/large", bytes(8 << 20)).result()
    stream = sandbox.read_file_streaming("/tmp/large")
    reader = iter(stream)
    if when != "before it began":
        next(reader)
    if when == "long after":
        size = stream.total_bytes
        while stream.total_bytes == size:
            next(reader)
    del reader
    for _ in range(2):
        with pytest.raises((RuntimeError, aviato.SandboxExecutionError), match="it is fetched once; ask for it again"):
            list(stream)
    assert sum(map(len, sandbox.read_file_streaming("/tmp/large"))) == 8 << 20


@pytest.mark.parametrize("steps", range(4))
def test_async_a_file_whose_reader_was_cancelled_is_never_taken_for_whole(served: Any, steps: int) -> None:
    async def main() -> None:
        async with Sandbox() as sandbox:
            await sandbox.write_file("/tmp/large", bytes(8 << 20))
            stream = sandbox.read_file_streaming("/tmp/large")

            async def read() -> None:
                async for _ in stream:
                    await asyncio.sleep(60)

            reading = asyncio.create_task(read())
            for _ in range(steps):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            with pytest.raises((RuntimeError, aviato.SandboxExecutionError), match="fetched once") if steps else nullcontext():
                async with asyncio.timeout(20):
                    assert sum([len(chunk) async for chunk in stream]) == 8 << 20

    asyncio.run(main())


def test_a_reader_of_a_file_that_is_cancelled_reads_on_where_it_was(served: Any) -> None:
    async def main() -> None:
        async with Sandbox() as sandbox:
            await sandbox.write_file("/tmp/large", bytes(8 << 20))
            reader = aiter(sandbox.read_file_streaming("/tmp/large"))
            total = 0
            while True:
                reading = asyncio.create_task(anext(reader, b""))
                await asyncio.sleep(0)
                reading.cancel()
                await asyncio.wait([reading])
                piece = await anext(reader, b"") if reading.cancelled() else reading.result()
                if not piece:
                    break
                total += len(piece)
            assert total == 8 << 20

    asyncio.run(main())


def test_a_file_that_was_read_whole_is_read_again_where_it_was_kept(sandbox: Sandbox) -> None:
    sandbox.write_file("/tmp/small", b"small").result()
    stream = sandbox.read_file_streaming("/tmp/small")
    assert list(stream) == list(stream) == [b"small"]
    assert b"".join(sandbox.read_file_streaming("/tmp/small").raw()) == b"small"


def test_a_file_that_cannot_be_asked_for_keeps_no_reader_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise aviato.SandboxUnavailableError("no way to the server")

    monkeypatch.setattr("aviato.calls.sandbox_state.connect", refuse)
    with pytest.raises(aviato.SandboxUnavailableError, match="no way"):
        list(Sandbox(base_url="unix:///nowhere").read_file_streaming("/tmp/a"))


def test_a_sleeping_source_delays_nobody(sandbox: Sandbox) -> None:
    def slow() -> Iterator[bytes]:
        yield b"begin"
        time.sleep(1)
        yield b"end"

    writing = sandbox.write_file_streaming("/tmp/slow", slow())
    begin = time.monotonic()
    assert sandbox.exec(["true"]).result().returncode == 0
    assert time.monotonic() - begin < 0.8
    writing.result()
    assert sandbox.read_file("/tmp/slow").result() == b"beginend"


def test_many_sources_that_stand_still_delay_nobody(session: Session, tmp_path: Path) -> None:
    """More than the loop has worker threads, which all other calls share."""
    sandbox = session.sandbox()
    (tmp_path / "small").write_bytes(b"small")
    reading = threading.Semaphore(0)
    pieces: list[queue.Queue[bytes]] = [queue.Queue() for _ in range(40)]

    def chunks(own: queue.Queue[bytes]) -> Iterator[bytes]:
        reading.release()
        yield from iter(own.get, b"")

    writing = [sandbox.write_file_streaming(f"log-{number}", chunks(own)) for number, own in enumerate(pieces)]
    try:
        for _ in pieces:
            assert reading.acquire(timeout=10)
        session.sandbox().upload(tmp_path / "small", "small").result(10)
        assert writing[0].cancel()
        with pytest.raises(aviato.OperationCancelledError):
            writing[0].result(10)
    finally:
        for own in pieces:
            own.put(b"x")
            own.put(b"")
    aviato.results(writing[1:])
    assert sandbox.read_file("log-39").result() == b"x"


def test_the_thread_of_a_source_ends_with_a_write_that_fails(sandbox: Sandbox) -> None:
    """Also while somebody keeps the error, which holds all that was under way."""
    reading: list[threading.Thread] = []

    def chunks() -> Iterator[bytes]:
        while True:
            reading.append(threading.current_thread())
            yield b"x" * (1 << 20)

    sandbox.make_directory("taken").result()
    with pytest.raises(aviato.SandboxFileError) as caught:
        sandbox.write_file_streaming("taken", chunks()).result()
    reading[0].join(10)
    assert not reading[0].is_alive() and {*reading} == {reading[0]} and caught.value.filepath == "taken"


def test_a_stream_of_one_sandbox_is_a_source_for_another(session: Session) -> None:
    one, other = session.sandbox(), session.sandbox()
    content = bytes(range(256)) * 4096 * 3
    one.write_file("x", content).result()
    other.write_file_streaming("x", one.read_file_streaming("x")).result()
    assert other.read_file("x").result() == content

    async def main() -> None:
        await other.write_file_streaming("y", one.read_file_streaming("x"))

    asyncio.run(main())
    assert other.read_file("y").result() == content


def test_a_source_that_fails_leaves_the_old_content(sandbox: Sandbox) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise LookupError("mine")

    sandbox.write_file("/tmp/kept", b"old").result()
    with pytest.raises(LookupError, match="mine"):
        sandbox.write_file_streaming("/tmp/kept", broken()).result()
    assert sandbox.read_file("/tmp/kept").result() == b"old"


def test_async_source(served: Any) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        for n in range(3):
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is loop
            yield b"%d" % n

    async def main() -> None:
        async with Sandbox() as sandbox:
            await sandbox.write_file_streaming("/tmp/async", chunks())
            assert await sandbox.read_file("/tmp/async") == b"012"
            assert b"".join([chunk async for chunk in sandbox.read_file_streaming("/tmp/async")]) == b"012"

    asyncio.run(main())


def test_arguments() -> None:
    sandbox = Sandbox(base_url="unix:///nowhere")
    with pytest.raises(TypeError, match="bytes, not str"):
        sandbox.write_file("/tmp/a", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="write_file"):
        sandbox.write_file_streaming("/tmp/a", b"text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode"):
        sandbox.write_file("/tmp/a", b"", mode=-1)
    with pytest.raises(ValueError, match="path"):
        sandbox.read_file("")


def test_time_in_the_queue_is_no_silence_of_the_server(make_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AVIATO_BASE_URL", make_server(max_sandboxes=1).url)
    impatient = SandboxDefaults(request_timeout_seconds=0.5, reconnect_timeout_seconds=0.5)
    with Sandbox() as first, Sandbox(defaults=impatient) as second:
        first.wait()
        writing = second.write_file("/tmp/x", b"late")
        with pytest.raises(aviato.OperationTimeoutError):
            writing.result(2)
        first.stop().result()
        writing.result(10)
        assert second.read_file("/tmp/x").result() == b"late"


def test_a_file_that_changes_under_its_reader(sandbox: Sandbox) -> None:
    """Whoever reads gets what is there; code inside cannot make a break of the connection out of it."""
    for size in (1_000_000, 60_000_000):
        sandbox.exec(["sh", "-c", "head -c 40000000 /dev/zero > /tmp/changing"], check=True).result()
        got = 0
        for piece in sandbox.read_file_streaming("/tmp/changing"):
            if not got:
                sandbox.exec(["truncate", "-s", str(size), "/tmp/changing"], check=True).result()
            got += len(piece)
        assert got >= 1_000_000 if size < 40_000_000 else got == size


def test_files_of_the_kernel_are_left_to_commands(sandbox: Sandbox) -> None:
    sandbox.exec(["ln", "-s", "/proc/self/mem", "/tmp/memory"], check=True).result()
    for path in ("/proc/version", "/proc/self/maps", "/tmp/memory"):
        with pytest.raises(aviato.SandboxFileError, match="a command can read it") as caught:
            sandbox.read_file(path).result()
        assert (caught.value.reason, caught.value.is_infrastructure) == ("not_a_regular_file", False)
        with pytest.raises(aviato.SandboxFileError, match="a command can read it"):
            list(sandbox.read_file_streaming(path))
    assert sandbox.exec(["cat", "/proc/version"]).result().stdout == Path("/proc/version").read_text()
