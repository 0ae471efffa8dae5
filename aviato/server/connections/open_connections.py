"""All connections of a server, whatever they speak."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable


class OpenConnections:
    """Those that are open, by their transports.

    Attributes:
        count: how many there have been, ever.
        of_http: those that are aiohttp's, which keeps them itself.
    """

    def __init__(self) -> None:
        self.count = 0
        self.of_http: Callable[[], Iterable[asyncio.Transport]] = tuple
        self._others: set[asyncio.Transport] = set()

    def all(self) -> list[asyncio.Transport]:
        """Every one."""
        return [*self._others, *self.of_http()]

    def add(self, transport: asyncio.Transport) -> None:
        """One has come."""
        self.count += 1
        self._others.add(transport)

    def discard(self, transport: asyncio.Transport) -> None:
        """It has gone, or is aiohttp's from now on."""
        self._others.discard(transport)
