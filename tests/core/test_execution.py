"""A command over a connection that breaks: nothing lost, nothing twice, nothing made up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import aviato
from aviato import AsyncClient, SandboxDefaults
from aviato.aio.async_sandbox import AsyncSandbox
from aviato.core.acknowledgements import AFTER_EXIT_SECONDS
from aviato.core.execution import ACKNOWLEDGE_BYTES
from aviato.wire.frames import WIDE_WINDOW_BYTES, FrameType, StreamId
from tests.core.fake import ACCEPTED, STARTED, FakeServer, data, exit_frame, frame, serving

Test = Callable[[FakeServer, AsyncSandbox], Awaitable[None]]


def against(tmp_path: Path, test: Test, **limits: Any) -> None:
    async def main() -> None:
        async with serving(tmp_path) as fake:
            defaults = SandboxDefaults(base_url=fake.url, **limits)
            async with AsyncClient(defaults=defaults) as client:
                await test(fake, await client.sandbox())

    asyncio.run(main())


async def acknowledged(fake: FakeServer) -> None:
    """Wait until the server was told that a command's whole result has arrived."""
    async with asyncio.timeout(10):
        while not any('"done":true' in body.decode() for body in fake.seen("POST", "acknowledgements")):
            await asyncio.sleep(0.01)


def test_one_request_is_all_it_takes(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        fake.execs = [fake.stream(ACCEPTED + STARTED + data(b"out", 0) + data(b"err", 0, StreamId.STDERR) + exit_frame(3))]
        before = len(fake.requests)
        result = await sandbox.exec(["echo", "é"], env={"A": "b"}, timeout_seconds=5)
        assert (result.stdout, result.stderr, result.returncode) == ("out", "err", 0)
        [(method, _, body)] = fake.requests[before:]
        assert method == "POST"
        sent = json.loads(body)
        assert sent.pop("exec_id").startswith("ex-")
        assert sent == {"command": ["echo", "é"], "environment_variables": {"A": "b"}, "timeout_seconds": 5.0}
        await acknowledged(fake)
        [told] = fake.seen("POST", "acknowledgements")
        assert json.loads(told)["execs"][0]["done"] is True

    against(tmp_path, test)


def test_the_end_of_a_sandbox_acknowledges_its_results(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        fake.execs = [fake.stream(ACCEPTED + STARTED + exit_frame(0))]
        await sandbox.exec(["true"])
        fake.others = [fake.stopped]
        await sandbox.stop()
        await asyncio.sleep(2 * AFTER_EXIT_SECONDS)
        assert fake.seen("POST", "acknowledgements") == []

    against(tmp_path, test)


def test_a_cut_stream_is_resumed_by_offset(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        half = data(b"0123456789", 10)[:20]  # a head and four bytes of a frame
        fake.execs = [fake.stream(ACCEPTED, STARTED, data(b"abcdefghij", 0), half, cut=True)]
        fake.resumes = [
            fake.stream(data(b"0123", 10), cut=True),
            fake.hang_up,
            fake.stream(data(b"j0123456789", 9), exit_frame(20)),
        ]
        result = await sandbox.exec(["x"])
        assert result.stdout == "abcdefghij0123456789"
        resumed = [path.partition("?")[2] for method, path, _ in fake.requests if method == "GET"]
        assert resumed == ["stdout=14&stderr=0"] * 3  # What has come of a frame counts.
        assert len(fake.seen("POST", "/execs")) == 1

    against(tmp_path, test)


@pytest.mark.parametrize("wide", [False, True])
def test_large_output_is_confirmed_as_often_as_its_server_needs(tmp_path: Path, wide: bool) -> None:
    piece, count = 1 << 18, 64
    started = frame(FrameType.STARTED, {"wide_window": True} if wide else {})
    pieces = [data(b"x" * piece, number * piece) for number in range(count)]

    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        fake.execs = [fake.stream(ACCEPTED + started, *pieces, exit_frame(count * piece))]
        assert len((await sandbox.exec(["x"])).stdout_bytes) == count * piece
        await acknowledged(fake)
        told = [json.loads(body)["execs"][0]["stdout"] for body in fake.seen("POST", "acknowledgements")]
        # Those that wait for one that is on its way are told together, so there may be fewer.
        steps = [later - earlier for earlier, later in zip([0, *told], told, strict=False)][:-1]
        assert all(step >= ACKNOWLEDGE_BYTES for step in steps)
        late = [step for step, at in zip(steps, told, strict=False) if at - step >= WIDE_WINDOW_BYTES]
        assert not wide or all(step >= WIDE_WINDOW_BYTES // 2 for step in late)

    against(tmp_path, test)


def test_a_request_that_was_never_answered_is_repeated_with_its_id(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        fake.execs = [fake.hang_up, fake.hang_up, fake.stream(ACCEPTED, exit_frame())]
        assert (await sandbox.exec(["x"])).returncode == 0
        bodies = fake.seen("POST", "/execs")
        assert len(bodies) == 3
        assert len(set(bodies)) == 1

    against(tmp_path, test)


def test_an_exit_before_all_output_is_no_result(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        fake.execs = [fake.stream(ACCEPTED, data(b"ab", 0), exit_frame(4))]
        fake.resumes = [fake.stream(data(b"cd", 2), exit_frame(4))]
        assert (await sandbox.exec(["x"])).stdout == "abcd"

    against(tmp_path, test)


@pytest.mark.parametrize("started", [True, False])
def test_without_an_exit_there_is_no_returncode(tmp_path: Path, started: bool) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        fake.execs = [fake.stream(ACCEPTED + (STARTED if started else b""), data(b"seen", 0), cut=True)]
        fake.resumes = [fake.hang_up]
        process = sandbox.spawn(["x"])
        begin = time.monotonic()
        with pytest.raises(aviato.SandboxUnavailableError, match="tried") as caught:
            await process
        assert 0.8 < time.monotonic() - begin < 4
        assert (caught.value.started, caught.value.is_infrastructure) == (started, True)
        reader = aiter(process.stdout)
        assert await anext(reader) == "seen"
        with pytest.raises(aviato.SandboxUnavailableError):
            await anext(reader)

    against(tmp_path, test, reconnect_timeout_seconds=1)


def test_a_command_that_the_server_has_lost(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        fake.execs = [fake.stream(ACCEPTED, STARTED, cut=True)]
        fake.resumes = [fake.error("EXEC_NOT_FOUND", 404)]
        with pytest.raises(aviato.SandboxUnavailableError, match="lost command") as caught:
            await sandbox.exec(["x"])
        assert caught.value.started is True

    against(tmp_path, test)


@pytest.mark.parametrize("in_frame", [False, True])
def test_a_command_that_a_dead_server_had_accepted_is_sent_again(tmp_path: Path, in_frame: bool) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        unknown = frame(FrameType.ERROR, {"code": "EXEC_NOT_FOUND", "message": "no such command"})
        fake.execs = [fake.stream(ACCEPTED, cut=True), fake.stream(ACCEPTED, STARTED, data(b"x", 0), exit_frame(1))]
        fake.resumes = [fake.stream(unknown) if in_frame else fake.error("EXEC_NOT_FOUND", 404)]
        assert (await sandbox.exec(["x"])).stdout == "x"
        first, second = fake.seen("POST", "/execs")
        assert first == second

    against(tmp_path, test)


def test_a_gap_is_an_error(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        gap = {"from_offset": 0, "to_offset": 9}
        fake.execs = [fake.stream(ACCEPTED, frame(FrameType.GAP, gap, StreamId.STDERR))]
        with pytest.raises(aviato.SandboxUnavailableError, match="0 to 9 of the stderr") as caught:
            await sandbox.exec(["x"])
        assert (caught.value.reason, caught.value.is_infrastructure) == ("output_gap", True)

    against(tmp_path, test)


def test_garbage_is_no_result(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        for garbage in (b"\xff" * 64, ACCEPTED + data(b"x", 0, 7), ACCEPTED + frame(FrameType.GAP, {})):
            fake.execs = [fake.stream(garbage)]
            with pytest.raises(aviato.SandboxUnavailableError):
                await sandbox.exec(["x"])

    against(tmp_path, test, reconnect_timeout_seconds=0.5)


def test_an_error_frame_is_the_error(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        body = {"code": "SANDBOX_TERMINATED", "message": "gone", "reason": "lifetime", "started": True}
        fake.execs = [fake.stream(ACCEPTED, STARTED, frame(FrameType.ERROR, body))]
        with pytest.raises(aviato.SandboxTerminatedError) as caught:
            await sandbox.exec(["x"])
        assert (caught.value.reason, caught.value.started, caught.value.is_infrastructure) == ("lifetime", True, False)
        again = {"code": "UNAVAILABLE", "message": "handing over", "reason": "retry", "retryable": True}
        fake.execs = [fake.stream(ACCEPTED, frame(FrameType.ERROR, again))]
        fake.resumes = [fake.stream(exit_frame())]
        assert (await sandbox.exec(["x"])).returncode == 0

    against(tmp_path, test)


def test_large_output_is_acknowledged_on_the_way(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        pieces = [data(b"x" * 65536, n * 65536) for n in range(64)]
        fake.execs = [fake.stream(ACCEPTED, STARTED, *pieces, exit_frame(4 << 20))]
        assert (await sandbox.exec(["x"])).stdout_bytes_total == 4 << 20
        await acknowledged(fake)
        steps = [json.loads(body)["execs"][0] for body in fake.seen("POST", "acknowledgements")]
        assert 3 <= len(steps) <= 9  # A request each half a window, and not more: they are what large output would cost most.
        assert steps[-1]["done"] is True
        assert [step["stdout"] for step in steps] == sorted(step["stdout"] for step in steps)

    against(tmp_path, test)


def test_a_slow_reader_is_not_acknowledged_for(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        pieces = [data(b"x" * (1 << 19), n << 19) for n in range(4)]
        fake.execs = [fake.stream(ACCEPTED, STARTED, *pieces, frame(FrameType.KEEPALIVE), exit_frame(2 << 20))]
        process = sandbox.spawn(["x"])
        reader = aiter(process.stdout)
        got = len(await anext(reader))
        await asyncio.sleep(0.1)
        acknowledged = [json.loads(body)["execs"][0] for body in fake.seen("POST", "acknowledgements")]
        assert all(step["stdout"] <= got + (1 << 20) for step in acknowledged if not step.get("done"))
        async for text in reader:
            got += len(text)
        assert got == 2 << 20

    against(tmp_path, test)


def test_cancelling_is_told_to_the_server(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        async def endless(request: Any) -> Any:
            await fake.stream(ACCEPTED, STARTED)(request)
            await asyncio.sleep(60)

        fake.execs = [endless]
        process = sandbox.spawn(["x"])
        await asyncio.sleep(0.1)
        process.cancel()
        with pytest.raises(asyncio.CancelledError):
            await process
        assert len(fake.seen("POST", f"{process.exec_id}/cancel")) == 1
        with pytest.raises(aviato.OperationCancelledError):
            await anext(aiter(process.stdout))

    against(tmp_path, test)


def test_waiting_in_the_queue_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        queue = {"queue": {"position": 2, "live": 8, "limit": 8, "holders": {"pid 4": 8}}}
        fake.execs = [fake.stream(ACCEPTED, frame(FrameType.KEEPALIVE, queue), STARTED, exit_frame())]
        await sandbox.exec(["x"])
        assert "8 of 8 are in use (pid 4 holds 8); place 2" in caplog.text

    against(tmp_path, test)


def test_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    async def test(fake: FakeServer, sandbox: AsyncSandbox) -> None:
        with pytest.raises(aviato.AviatoValidationError, match="Unicode"):
            await sandbox.exec(["echo", "\udcff"])

    against(tmp_path, test)
