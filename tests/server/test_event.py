"""Events that hold next to nothing where nobody waits for them: as those of asyncio."""

from __future__ import annotations

import asyncio

import pytest

from aviato.server.service.event import Event
from aviato.server.service.long_polls import LongPolls

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.parametrize("kind", [asyncio.Event, Event])
async def test_all_who_wait_go_on_and_who_comes_later_does_not_wait(kind):
    event = kind()
    waits = [asyncio.create_task(event.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not event.is_set() and not any(task.done() for task in waits)
    event.set()
    event.set()
    await asyncio.wait_for(asyncio.gather(*waits), 60)
    assert event.is_set()
    await asyncio.wait_for(event.wait(), 60)


@pytest.mark.parametrize("kind", [asyncio.Event, Event])
async def test_who_is_cancelled_leaves_the_others(kind):
    event = kind()
    first, second, third = (asyncio.create_task(event.wait()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    assert second.cancelled()
    # One that is cancelled in the very moment in which it happens, too.
    first.cancel()
    event.set()
    await asyncio.wait_for(third, 60)
    assert first.cancelled() or first.done()


@pytest.mark.parametrize("kind", [asyncio.Event, Event])
async def test_a_poll_that_ran_out_can_come_again(kind):
    event, long_polls = kind(), LongPolls()
    assert not await long_polls.wait(event, 0.01)
    again = asyncio.create_task(long_polls.wait(event, 5))
    await asyncio.sleep(0)
    event.set()
    assert await again
