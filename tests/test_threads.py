"""A caller that is cancelled waits for its thread; what that opens for one who has gone by then is closed."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from aviato.system.threads import in_thread, opened_in_thread


@pytest.mark.parametrize("fails", [False, True])
def test_a_caller_that_is_cancelled_again_and_again_waits_for_its_thread(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    running, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        assert go_on.wait(30)
        ended.set()
        if fails:
            raise ValueError("nobody is there to be told")

    async def main() -> None:
        task = asyncio.ensure_future(in_thread(work))
        await asyncio.to_thread(running.wait, 30)
        for _ in range(5):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        await asyncio.wait([task])
        assert task.cancelled() and ended.is_set()

    asyncio.run(main(), debug=True)
    assert "never retrieved" not in caplog.text


def test_a_loop_that_is_closed_waits_for_the_thread_of_a_caller() -> None:
    """It cancels all tasks at once: none of them may be what the caller waits by."""
    running, ended = threading.Event(), threading.Event()
    seen: list[bool] = []

    def work() -> None:
        running.set()
        time.sleep(0.3)
        ended.set()

    async def call() -> None:
        try:
            await in_thread(work)
        finally:
            seen.append(ended.is_set())

    async def main() -> None:
        tasks.append(asyncio.create_task(call()))
        await asyncio.to_thread(running.wait, 30)

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(main())
    assert seen == [True] and tasks[0].cancelled()


def test_a_caller_that_is_cancelled_leaves_nothing_open() -> None:
    one, other = socket.socketpair()
    opening, go_on = threading.Event(), threading.Event()

    def open_slowly() -> socket.socket:
        opening.set()
        assert go_on.wait(30)
        return one

    async def main() -> None:
        task = asyncio.ensure_future(opened_in_thread(open_slowly))
        await asyncio.to_thread(opening.wait, 30)
        task.cancel()
        go_on.set()
        await asyncio.wait([task])
        assert task.cancelled()

    with other:
        asyncio.run(main())
        assert one.fileno() == -1


def test_a_caller_that_waits_has_it() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert asyncio.run(opened_in_thread(lambda: one)) is one
        assert one.fileno() != -1
        assert asyncio.run(opened_in_thread(lambda: None)) is None
