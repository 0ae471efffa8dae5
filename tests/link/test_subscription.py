"""Waiting for the frames of a command: for any, for so many bytes of them, or for its end."""

from __future__ import annotations

import asyncio

import pytest

from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.link.subscription import Subscription
from aviato.wire.frames import Frame, FrameType


def data(size: int) -> Frame:
    return Frame(FrameType.DATA, 1, 0, 0, b"x" * size)


async def turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_it_wakes_up_for_what_is_enough() -> None:
    async def main() -> None:
        subscription = Subscription("ex", lambda _: None)
        any_frame = asyncio.ensure_future(subscription.wait())
        await turns()
        subscription.frame(data(4))
        await turns()
        assert any_frame.done()
        enough = asyncio.ensure_future(subscription.wait(10))
        await turns()
        subscription.frame(data(5))
        await turns()
        assert not enough.done()
        subscription.frame(data(1))
        await turns()
        assert enough.done()
        assert subscription.queued_bytes == 10
        assert len(subscription.drain()) == 3
        assert subscription.queued_bytes == 0

    asyncio.run(main())


@pytest.mark.parametrize("how", ["exit", "gone", "closed"])
def test_the_end_is_always_enough(how: str) -> None:
    async def main() -> None:
        subscription = Subscription("ex", lambda _: None)
        subscription.frame(data(1))
        waiting = asyncio.ensure_future(subscription.wait(1 << 20))
        await turns()
        assert not waiting.done()
        if how == "exit":
            subscription.frame(Frame(FrameType.EXIT, 0, 0, 0, b"{}"))
        elif how == "gone":
            subscription.gone(Ended(reason="lost"))
        else:
            subscription.close()
        await asyncio.wait_for(waiting, 60)
        assert len(subscription.drain()) == (2 if how == "exit" else 1)
        if how == "gone":
            with pytest.raises(SandboxGone):
                subscription.drain()

    asyncio.run(main())


def test_bytes_are_counted_one_by_one_too() -> None:
    async def main() -> None:
        subscription = Subscription("ex", lambda _: None)
        for size in (3, 5):
            subscription.frame(data(size))
        subscription.close()
        assert [len(frame.payload) async for frame in subscription] == [3, 5]
        assert subscription.queued_bytes == 0

    asyncio.run(main())
