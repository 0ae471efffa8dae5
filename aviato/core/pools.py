"""Pools of sandboxes that a server keeps ready, as long as this process says that it needs them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoError
from aviato.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.core.beginning import Beginning
    from aviato.core.client import Client
    from aviato.wire.pools import PoolInfo

AGAIN_SECONDS = 20.0
"""A server forgets a pool of which it has not heard for several times as long."""


class PoolKeeper:
    """Says again and again that a pool is needed. On the loop thread only.

    Args:
        pool_id: made by the client.
        size: how many are kept ready.
        create: what they are made with.
        is_needed: whether anybody still has it.

    Attributes:
        is_told: the server has heard of it: the image is there, where it had to be built.
    """

    def __init__(self, pool_id: str, size: int, create: dict[str, Any], is_needed: Callable[[], bool]) -> None:
        self._pool_id = pool_id
        self._size = size
        self._create = create
        self._is_needed = is_needed
        self._closed = asyncio.Event()
        self.is_told = False

    async def keep(self, client: Client, beginning: Beginning | None) -> None:
        """Keep it until it is closed; what goes wrong is logged once, and tried again."""
        complained = is_made = False
        while self._is_needed() and not self._closed.is_set():
            try:
                if beginning is not None and not is_made:
                    self._create, is_made = {**self._create, "image": await beginning.taken()}, True
                await self.told(client)
            except AviatoError as error:
                if beginning is not None and is_made and beginning.is_lost(error):
                    is_made = self.is_told = False
                    continue  # It is made anew, which takes its time; the server has nothing to keep until then.
                if not complained:
                    logger.warning("a pool has no sandboxes ready, and they start one by one: %s", error)
                complained = True
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS):
                    await self._closed.wait()
        # A request that was under way may have come behind the removal of who has closed it.
        with suppress(AviatoError):
            await client.remove_pool(self._pool_id)

    async def told(self, client: Client) -> PoolInfo:
        """Say that it is needed, and hear how it is."""
        info = await client.keep_pool(self._pool_id, self._size, self._create)
        self.is_told = True
        return info

    def close(self) -> None:
        """It is not needed any more."""
        self._closed.set()
