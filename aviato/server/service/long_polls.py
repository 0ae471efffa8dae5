"""Requests that wait for something to happen, and end early when the server goes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxUnavailableError

if TYPE_CHECKING:
    from aviato.server.service.event import Event

RETRY_DELAY_SECONDS = 0.1


class LongPolls:
    """The waits under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self.closing = False

    async def wait(self, event: Event, timeout_seconds: float | None) -> bool:
        """Wait for an event; returns whether it came in time.

        Raises:
            SandboxUnavailableError: the server goes; the next one answers.
        """
        if event.is_set():
            return True
        self.check()
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await event.wait()
            return event.is_set()
        except asyncio.CancelledError:
            if not self.closing:
                raise
            task.uncancel()
            raise stopping_error() from None
        finally:
            self._tasks.discard(task)

    def check(self) -> None:
        """Refuse new work while the server goes.

        Raises:
            SandboxUnavailableError: it does.
        """
        if self.closing:
            raise stopping_error()

    def close(self) -> None:
        """End every wait."""
        self.closing = True
        for task in self._tasks:
            task.cancel()


def stopping_error() -> SandboxUnavailableError:
    """What requests get while the server goes; the next server answers them."""
    return SandboxUnavailableError(
        "the server is going; try again", reason="server_stopping", retry_delay_seconds=RETRY_DELAY_SECONDS
    )
