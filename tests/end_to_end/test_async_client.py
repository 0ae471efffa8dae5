"""AsyncClient: the core on the caller's own loop, without a thread."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, Sandbox
from aviato.aio import async_client


def open_sockets() -> int:
    return sum(
        os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        for fd in os.listdir("/proc/self/fd")
        if fd.isdigit() and os.path.islink(f"/proc/self/fd/{fd}")
    )


def test_it_works_without_a_thread(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            sandbox = await client.sandbox(tags=["async-client"])
            result = await sandbox.exec(["sh", "-c", "cat; exit 3"], stdin="in")
            assert (result.stdout, result.returncode) == ("in", 3)
            await sandbox.write_file("/tmp/a", b"1", mode=0o600)
            assert await sandbox.read_file("/tmp/a") == b"1"
            assert (await sandbox.stat("/tmp/a")).mode == 0o600
            assert b"".join([chunk async for chunk in sandbox.read_file_streaming("/tmp/a")]) == b"1"
            assert [one.sandbox_id for one in await client.list(tags=["async-client"])] == [sandbox.sandbox_id]
            found = await client.from_id(sandbox.sandbox_id)
            assert await found.get_status() == "running"
            with pytest.raises(aviato.SandboxNotFoundError):
                await client.from_id("nope")
        async with AsyncClient() as client:
            await asyncio.sleep(0.05)
            assert await client.list(tags=["async-client"], status="running") == []

    before = set(threading.enumerate())
    asyncio.run(main(), debug=True)
    assert set(threading.enumerate()) == before


def test_streaming_and_stdin(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox() as sandbox:
            process = sandbox.spawn(["cat"], stdin=True)
            await process.write_stdin(b"one\n")
            async for line in process.stdout.lines():
                assert line == "one"
                break
            await process.close_stdin()
            assert (await process).returncode == 0
            with pytest.raises(aviato.SandboxExecutionError):
                await process.write_stdin(b"late")

    asyncio.run(main())


def test_blocking_reading_on_the_loop_that_the_output_comes_on_is_refused(served: Any) -> None:
    """It would wait for ever."""

    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox() as sandbox:
            process = sandbox.spawn(["sh", "-c", "echo one; cat"], stdin=True)
            with pytest.raises(RuntimeError, match=r"iterating stdout would block .* use `async for` here"):
                for _ in process.stdout:
                    raise AssertionError
            terminal = sandbox.shell(["cat"])
            with pytest.raises(RuntimeError, match="iterating output would block"):
                list(terminal.output)
            lines = process.stdout.lines()
            assert await asyncio.to_thread(next, lines) == "one"
            lines.close()  # The thread may hold it for a moment longer.
            await process.close_stdin()
            assert (await process).stdout == "one\n"
            assert list(process.stdout) == ["one\n"]

    asyncio.run(main())


def test_cancelling(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox() as sandbox:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sandbox.exec(["sleep", "60"]), 0.3)
            comms = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/comm"])
            assert "sleep" not in comms.stdout
            with pytest.raises(aviato.SandboxCommandTimeoutError):
                await sandbox.exec(["sleep", "60"], timeout_seconds=0.2)
            with pytest.raises(aviato.SandboxExecutionError):
                await sandbox.exec(["false"], check=True)

    asyncio.run(main())


def test_a_hundred_loops_leave_no_socket(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            await client.list()

    asyncio.run(main())
    before = open_sockets()
    for _ in range(100):
        asyncio.run(main())
    assert open_sockets() <= before


def test_whoever_is_cancelled_while_a_sandbox_is_made_leaves_none(make_server: Any) -> None:
    server = make_server()

    async def main() -> None:
        async with AsyncClient(base_url=server.url) as client:
            await client.list()
            os.kill(server.pid, signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.sandbox(), 0.3)
            os.kill(server.pid, signal.SIGCONT)
            async with asyncio.timeout(20):
                while [await one.get_status() for one in await client.list(include_stopped=True)] != ["terminated"]:
                    await asyncio.sleep(0.05)

    asyncio.run(main())


def test_what_is_still_being_made_when_its_client_is_left_ends_too(make_server: Any) -> None:
    """As where one of many tasks fails, and the others are not waited for."""
    server = make_server()

    async def main() -> None:
        async with AsyncClient(base_url=server.url) as client:
            await client.list()
            os.kill(server.pid, signal.SIGSTOP)
            making = asyncio.create_task(client.sandbox())
            await asyncio.sleep(0.1)
        os.kill(server.pid, signal.SIGCONT)
        made = await making
        async with AsyncClient(base_url=server.url) as another, asyncio.timeout(20):
            while await (await another.from_id(made.sandbox_id)).get_status() != "terminated":
                await asyncio.sleep(0.05)
        assert [one for one in asyncio.all_tasks() if "Lease._keep" in repr(one)] == []

    asyncio.run(main())


def test_nothing_is_made_by_a_client_that_was_left(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            handle = client._handle("sb-" + "0" * 26, client._connection, {"image": "host"})
        with pytest.raises(aviato.AviatoValidationError, match="async with"):
            await handle.start()

    asyncio.run(main())


def test_whoever_is_cancelled_in_a_fork_leaves_no_child_and_no_snapshot(make_server: Any) -> None:
    server = make_server()

    async def main() -> None:
        async with AsyncClient(base_url=server.url) as client, await client.sandbox() as parent:
            busy = parent.spawn(["sleep", "60"])  # Else it would go on over what it has left, and that would stay.
            assert await busy.started()
            os.kill(server.pid, signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(parent.fork(3), 0.3)
            os.kill(server.pid, signal.SIGCONT)
            async with asyncio.timeout(20):
                while any(task.get_name().startswith("fork into") for task in asyncio.all_tasks()):
                    await asyncio.sleep(0.01)
                while await client.images() or len(await client.list()) > 1:
                    await asyncio.sleep(0.05)

    asyncio.run(main())


def test_after_a_write_that_was_cancelled_nothing_is_taken_for_a_repeat_of_it(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox() as sandbox:
            process = sandbox.spawn(["sh", "-c", "until [ -e /tmp/go ]; do sleep 0.02; done; wc -c"], stdin=True)
            assert await process.started()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(process.write_stdin(bytes(4 << 20)), 0.5)
            with pytest.raises(aviato.SandboxExecutionError, match="cancelled before") as told:
                await process.write_stdin(b"what follows")
            assert told.value.reason == "stdin_closed"
            await sandbox.write_file("/tmp/go", b"")
            await process.close_stdin()
            assert (await process).returncode == 0

    asyncio.run(main())


def test_writes_of_several_tasks_follow_each_other(served: Any) -> None:
    async def main() -> None:
        async with AsyncClient() as client, await client.sandbox() as sandbox:
            process = sandbox.spawn(["cat"], stdin=True)
            await asyncio.gather(*(process.write_stdin(letter * 100_000) for letter in (b"a", b"b", b"c")))
            await process.close_stdin()
            written = (await process).stdout_bytes
            assert [written.count(letter) for letter in (b"a", b"b", b"c")] == [100_000] * 3

    asyncio.run(main())


def test_what_was_read_to_its_end_holds_no_sandbox(served: Any) -> None:
    """A result of which the server does not hear that it has arrived would keep it from being idle."""

    async def main() -> None:
        async with AsyncClient() as client:
            sandbox = await client.sandbox(idle_timeout_seconds=0.5)

            async def read() -> None:
                process = sandbox.spawn(["head", "-c", "700000", "/dev/zero"], text=False)
                assert sum([len(chunk) async for chunk in process.stdout]) == 700_000
                await process

            for _ in range(8):
                await asyncio.gather(*(read() for _ in range(8)))
            await asyncio.wait_for(sandbox.wait_until_complete(), 15)

    asyncio.run(main())


def test_outside_its_block() -> None:
    async def main() -> None:
        with pytest.raises(aviato.AviatoValidationError, match="async with"):
            await AsyncClient(base_url="unix:///nowhere").list()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["silent", "cancelled", "killed"])
def test_what_it_could_not_end_ends_while_the_process_lives_on(
    make_server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    monkeypatch.setattr(async_client, "LEAVE_SECONDS", 60.0 if how == "cancelled" else 0.3)
    server = make_server()

    async def main() -> str:
        async with AsyncClient(base_url=server.url) as client:
            sandbox = await client.sandbox()
            await sandbox.exec(["true"])
            os.kill(server.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        return sandbox.sandbox_id

    async def cancelled() -> str:
        ids, leaves = [], asyncio.Event()

        async def one() -> None:
            async with AsyncClient(base_url=server.url) as client:
                ids.append((await client.sandbox()).sandbox_id)
                server.process.kill()
                leaves.set()

        task = asyncio.create_task(one())
        await leaves.wait()
        await asyncio.sleep(0.1)  # It waits for the server by then.
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ids[0]

    sandbox_id = asyncio.run(cancelled() if how == "cancelled" else main())
    assert ("from the background" in caplog.text) == (how != "cancelled")
    if how == "silent":
        os.kill(server.pid, signal.SIGCONT)
    else:
        server.process.wait()
        server.restart()
    ended = Sandbox.from_id(sandbox_id, base_url=server.url).result()
    ended.wait_until_complete(raise_on_termination=False).result(20)
    assert ended.get_status() == "terminated"
