"""The facade's operations, awaited."""

from __future__ import annotations

import signal
from typing import Any

import pytest

import aviato
from tests.surface.harness import Place, acheck


@acheck("OperationRef.__await__", "Sandbox.__await__", "Sandbox.exec", "Process.__await__", "Sandbox.read_file")
async def awaiting(place: Place) -> None:
    box = await place.box()
    assert box.status == "running"
    assert (await box.exec(["echo", "hi"])).stdout == "hi\n"
    assert await box.read_file("/etc/passwd")


@acheck("StreamReader.__aiter__", "Process.stdout", "Process.stderr", "StreamReader.lines")
async def streams(place: Place) -> None:
    begun = place.box().exec(["sh", "-c", "echo a; echo b; echo c >&2"])
    assert [line async for line in begun.stdout.lines()] == ["a", "b"]
    assert "".join([text async for text in begun.stderr]) == "c\n"


@acheck("Process.stdin", "StreamWriter.write", "StreamWriter.writeline", "StreamWriter.close")
async def writer(place: Place) -> None:
    begun = place.box().exec(["cat"], stdin=True)
    await begun.stdin.write(b"one ")
    await begun.stdin.writeline("two")
    await begun.stdin.close()
    assert (await begun).stdout == "one two\n"


@acheck("Process.cancel")
async def cancel(place: Place) -> None:
    begun = (await place.box()).exec(["sleep", "60"])
    begun.cancel()
    with pytest.raises(aviato.OperationCancelledError):
        await begun


@acheck("Process.send_signal")
async def send_signal(place: Place) -> None:
    begun = place.box().exec(["sh", "-c", "trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done"])
    async for text in begun.stdout:
        assert text == "ready\n"
        break
    await begun.send_signal(signal.SIGUSR1)
    assert (await begun).returncode == 5


async def _wait(*arguments: Any, **options: Any) -> Any:
    import asyncio

    return await asyncio.to_thread(aviato.wait, *arguments, **options)


@acheck("wait")
async def wait(place: Place) -> None:
    fast = place.box().exec(["true"])
    assert await _wait([fast]) == ([fast], [])


@acheck("as_completed", "results")
async def as_completed(place: Place) -> None:
    box = await place.box()
    fast, slow = box.exec(["true"]), box.exec(["sleep", "0.3"])
    assert [one async for one in aviato.as_completed([slow, fast])] == [fast, slow]
    assert [one.returncode for one in aviato.results([fast, slow])] == [0, 0]


@acheck("Sandbox.start", "Sandbox.stop", "Sandbox.wait_until_complete", "Sandbox.delete", "Sandbox.list", "Sandbox.from_id")
async def life(place: Place) -> None:
    box = aviato.Sandbox(tags=["async-life"])
    assert await box.start() is None
    assert box.sandbox_id in [one.sandbox_id for one in await aviato.Sandbox.list(tags=["async-life"])]
    assert (await aviato.Sandbox.from_id(box.sandbox_id)).sandbox_id == box.sandbox_id
    await box.stop(0)
    assert await box.wait_until_complete(raise_on_termination=False) is box
    await aviato.Sandbox.delete(box.sandbox_id)


@acheck("Sandbox.__aenter__")
async def block(place: Place) -> None:
    async with aviato.Sandbox() as box:
        assert (await box.exec(["true"])).returncode == 0
    assert box.status == "terminated"


@acheck("Sandbox.write_file", "Sandbox.write_file_streaming", "Sandbox.read_file_streaming", "Sandbox.stat")
async def files(place: Place) -> None:
    box = await place.box()
    await box.write_file("f", b"1234")
    assert (await box.stat("f")).size_bytes == 4

    async def chunks() -> Any:
        yield b"ab"
        yield b"cd"

    await box.write_file_streaming("g", chunks())
    assert b"".join([chunk async for chunk in box.read_file_streaming("g")]) == b"abcd"


@acheck("Sandbox.make_directory", "Sandbox.list_files", "Sandbox.remove", "Sandbox.upload", "Sandbox.download")
async def trees(place: Place) -> None:
    box = await place.box()
    (place.path / "file").write_text("hello")
    await box.make_directory("/tmp/d")
    await box.upload(place.path / "file", "/tmp/d/file")
    assert [info.path for info in await box.list_files("/tmp/d")] == ["/tmp/d/file"]
    await box.download("/tmp/d/file", place.path / "back")
    assert (place.path / "back").read_text() == "hello"
    await box.remove("/tmp/d", recursive=True)
    with pytest.raises(aviato.SandboxFileError):
        await box.stat("/tmp/d")


@acheck("Sandbox.stream_logs")
async def logs(place: Place) -> None:
    box = aviato.Sandbox(command="seq", args=["3"])
    await box.wait_until_complete()
    assert "".join([text async for text in box.stream_logs()]) == "1\n2\n3\n"


@acheck("Session.__aenter__", "Session.sandbox", "Session.close", "Session.list", "Session.from_id")
async def sessions(place: Place) -> None:
    async with aviato.Session() as session:
        box = await session.sandbox()
        assert box.sandbox_id in [one.sandbox_id for one in await session.list()]
        assert (await session.from_id(box.sandbox_id)).sandbox_id == box.sandbox_id
    await session.close()
    assert box.status == "terminated"


@acheck("Sandbox.attach")
async def attach(place: Place) -> None:
    box = await place.box()
    begun = box.exec(["sh", "-c", "echo out; exit 3"], detach=True)
    assert "".join([text async for text in box.attach(begun.exec_id, 1).stdout]) == "ut\n"
    assert (await box.attach(begun.exec_id)).returncode == 3
