"""What a thread opens for a caller who has gone by then is closed."""

from __future__ import annotations

import asyncio
import socket
import threading

from aviato.system.threads import opened_in_thread


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
