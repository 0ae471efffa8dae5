"""What a sandbox that has ended, or is about to, left behind of a command: the frames of a subscription, from a result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aviato.exceptions import AviatoError
    from aviato.server.service.event import Event
    from aviato.server.service.output.retained_results import RetainedResults
    from aviato.wire.frames import Frame


class RetainedReader:
    """Reads like a `Subscription`.

    Args:
        results: what was left behind.
        sandbox_id, exec_id: the command.
        offsets: of stdout and stderr, from which on.
        gone: set once the sandbox has ended.
        error: of the ending, where nothing was left behind.
    """

    def __init__(
        self,
        results: RetainedResults,
        sandbox_id: str,
        exec_id: str,
        offsets: tuple[int, int],
        gone: Event,
        error: AviatoError,
    ) -> None:
        self.over = False
        self._results = results
        self._sandbox_id = sandbox_id
        self._exec_id = exec_id
        self._offsets = offsets
        self._gone = gone
        self._error = error
        self._frames: list[Frame] = []
        self._found: asyncio.Task[None] | None = None

    @property
    def queued_bytes(self) -> int:
        """Payload that was not taken yet."""
        return sum(len(frame.payload) for frame in self._frames)

    async def wait(self, enough_bytes: int = 0) -> None:
        """Wait until `drain()` has something to give, however little, or nothing more will come."""
        if self.over:
            return
        if self._found is None:
            self._found = asyncio.create_task(self._find(), name=f"result of {self._exec_id}")
        await asyncio.wait((self._found,))

    def drain(self, most_bytes: float = float("inf")) -> list[Frame]:
        """The frames that are ready, of more than so much payload only the first; never waits.

        Raises:
            AviatoError: the given one; nothing was left behind.
        """
        if self._found is not None and self._found.done() and not self._found.cancelled():
            self._found.result()
            if not self._frames:
                raise self._error
        frames = []
        while self._frames and most_bytes > 0:
            frames.append(self._frames.pop(0))
            most_bytes -= len(frames[-1].payload)
        return frames

    def close(self) -> None:
        """Stop reading."""
        self.over = True
        if self._found is not None:
            self._found.cancel()

    async def _find(self) -> None:
        await self._gone.wait()
        if (result := await self._results.load(self._sandbox_id, self._exec_id)) is not None:
            self._frames = result.frames(self._exec_id, self._offsets)
        self.over = True
