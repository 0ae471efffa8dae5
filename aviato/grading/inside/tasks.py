"""Runs in the solution's sandbox: what is awaited of it, several at a time, while nothing is asked. Before `uses.py`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

AT_ONCE_SECONDS = 0.001
"""So long what begins has until it is told that it goes on."""
WAIT_SECONDS = 0.005
"""So long who asks waits for anything to end: meanwhile nothing goes on where the test is."""


class Tasks:
    """Those of one process, in its event loop."""

    def __init__(self) -> None:
        import asyncio

        self.asyncio = asyncio
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.going: dict[int, Any] = {}
        self.count = 0

    def run(self, awaitable: Any) -> Any:
        """What comes of one; the others go on meanwhile."""
        return self.loop.run_until_complete(awaited_by(awaitable))

    def begin(self, awaitable: Any) -> list[Any]:
        """Begin one: its number, whether it has ended, and what has come of it if it has."""
        task = self.loop.create_task(awaited_by(awaitable))
        self.wait([task], AT_ONCE_SECONDS)
        self.count += 1
        if task.done() and not task.cancelled():
            return [self.count, True, task.result()]
        self.going[self.count] = task
        return [self.count, False, None]

    def ended(self, numbers: list[int]) -> list[int]:
        """Those of some that have ended, after a moment in which one may."""
        self.wait([self.going[number] for number in numbers], WAIT_SECONDS)
        return [number for number in numbers if self.going[number].done()]

    def came(self, number: int) -> list[Any]:
        """What has come of one, unless it was cancelled; it is forgotten."""
        task = self.going.pop(number)
        return [] if task.cancelled() else [task.result()]

    def cancel(self, number: int) -> None:
        """Have one end, if it lets itself."""
        self.going[number].cancel()

    def wait(self, tasks: list[Any], seconds: float) -> None:
        first = self.asyncio.FIRST_COMPLETED
        self.loop.run_until_complete(self.asyncio.wait(tasks, timeout=seconds, return_when=first))

    def go_on_until(self, fd: int) -> None:
        """Go on with whatever goes on, until something can be read."""
        if self.asyncio.all_tasks(self.loop):
            self.loop.add_reader(fd, self.loop.stop)
            try:
                self.loop.run_forever()
            finally:
                self.loop.remove_reader(fd)


async def awaited_by(awaitable: Any) -> Any:
    return await awaitable


async def next_of(value: Any) -> list[Any]:
    """The next item of an asynchronous iterator, as `Kept.take` has it."""
    try:
        return [[await type(value).__anext__(value)], None]
    except StopAsyncIteration:
        return [[], [None]]
