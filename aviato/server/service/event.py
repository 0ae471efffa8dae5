"""`asyncio.Event`, for what each sandbox has several of and next to nobody waits for."""

from __future__ import annotations

import asyncio


class Event:
    """As `asyncio.Event`, which holds 760 bytes from its begin on; this holds 48 where nobody waits."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """It has happened; all who wait go on."""
        self._is_set = True
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Return once it has happened."""
        if self._is_set:
            return
        waiter = asyncio.get_running_loop().create_future()
        waiters = self._waiters = self._waiters or []
        waiters.append(waiter)
        try:
            await waiter
        finally:
            waiters.remove(waiter)
            self._waiters = waiters or None
