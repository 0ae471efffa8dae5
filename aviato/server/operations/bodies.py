"""Bodies that are read whole: so many bytes of them at a time, and each in bounded time."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxRequestTimeoutError
from aviato.server.callers import BodyTooLargeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.callers import Caller

LARGEST_BODY_BYTES = 16 << 20
SMALL_BODY_BYTES = 64 << 10
"""These are not counted: the connection itself has a buffer of that size."""
MOST_BYTES = 128 << 20
MOST_BYTES_OF_ONE = 64 << 20
"""Of one tenant, so that others are not held up by what it is slow to send."""
MOST_HELD_BYTES = 256 << 20
"""Of one tenant: what has come of bodies by sessions, and nobody has read yet."""
BODY_SECONDS = 60.0


class SlowBodyError(SandboxRequestTimeoutError):
    """A body did not come in time."""

    default_reason = "slow_body"


class Bodies:
    """How much of them is being read."""

    def __init__(self) -> None:
        self._bytes: dict[str | None, int] = {}
        self._held: Counter[str] = Counter()
        self._waiting: list[tuple[str | None, int, asyncio.Future[None]]] = []

    def hold(self, tenant: str, size_bytes: int) -> bool:
        """So much more has come that nobody has read, or less of it is left; whether there may be so much.

        What the server's own user sends is not counted: whoever could be harmed by it is that user.
        """
        held = self._held[tenant] = self._held[tenant] + size_bytes
        if not held:
            del self._held[tenant]
        return held <= MOST_HELD_BYTES

    async def read(self, chunks: AsyncIterator[bytes], size_bytes: int | None, caller: Caller) -> bytes:
        """All of a body that has not come yet, once there is room for it.

        Args:
            chunks: its bytes as they come.
            size_bytes: how many its head says; None where it does not.
            caller: sends it.

        Raises:
            SlowBodyError: it was not there in time.
            BodyTooLargeError: it is larger than any may be.
        """
        async with self._room(size_bytes, caller):
            pieces: list[bytes] = []
            size = 0
            async for chunk in chunks:
                size += len(chunk)
                if size > LARGEST_BODY_BYTES:
                    raise BodyTooLargeError(f"the body is too large: it has more than {LARGEST_BODY_BYTES} bytes")
                pieces.append(chunk)
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @asynccontextmanager
    async def _room(self, size_bytes: int | None, caller: Caller) -> AsyncIterator[None]:
        """Wait for room for a body; it must be read within the context."""
        length = LARGEST_BODY_BYTES if size_bytes is None else min(size_bytes, LARGEST_BODY_BYTES)
        if length > SMALL_BODY_BYTES:
            await self._take(caller.tenant, length)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                yield
        except TimeoutError:
            raise SlowBodyError(f"the body did not come within {BODY_SECONDS:g} s") from None
        finally:
            if length > SMALL_BODY_BYTES:
                self._give_back(caller.tenant, length)

    async def _take(self, tenant: str | None, length: int) -> None:
        if self._fits(tenant, length) and all(whose != tenant for whose, _, _ in self._waiting):
            self._add(tenant, length)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((tenant, length, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back(tenant, length)
            raise

    def _fits(self, tenant: str | None, length: int) -> bool:
        return self._bytes.get(tenant, 0) + length <= MOST_BYTES_OF_ONE and sum(self._bytes.values()) + length <= MOST_BYTES

    def _add(self, tenant: str | None, length: int) -> None:
        self._bytes[tenant] = self._bytes.get(tenant, 0) + length
        if not self._bytes[tenant]:
            del self._bytes[tenant]

    def _give_back(self, tenant: str | None, length: int) -> None:
        self._add(tenant, -length)
        left = []
        for place in self._waiting:
            whose, wanted, turn = place
            if turn.done():
                continue
            if self._fits(whose, wanted):
                self._add(whose, wanted)
                turn.set_result(None)
            else:
                left.append(place)
        self._waiting = left
