"""What a request gets that asks for a command whose sandbox has ended, or is about to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.service.output.backpressure import Backpressure
from aviato.wire.execution import KeepAlive
from aviato.wire.frames import FrameType, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.exceptions import AviatoError
    from aviato.server.service.event import Event
    from aviato.server.service.long_polls import LongPolls
    from aviato.server.service.output.retained_results import RetainedResults


class RetainedFeed(Backpressure):
    """Reads like an `ExecFeed`: the result that was left behind, or the error of the sandbox's ending.

    Args:
        results: what was left behind.
        sandbox_id, exec_id: the command.
        offsets: of stdout and stderr, from which to send.
        gone: set once the sandbox has ended; None if it has.
        long_polls: waits for that.
        error: of the ending.
    """

    def __init__(
        self,
        results: RetainedResults,
        sandbox_id: str,
        exec_id: str,
        offsets: tuple[int, int],
        gone: Event | None,
        long_polls: LongPolls,
        error: Callable[[], AviatoError],
    ) -> None:
        self.over = False
        self._results = results
        self._sandbox_id = sandbox_id
        self._exec_id = exec_id
        self._offsets = offsets
        self._gone = gone
        self._long_polls = long_polls
        self._error = error

    async def next(self, timeout_seconds: float, enough_bytes: int = 0) -> bytes:
        """See `ExecFeed`."""
        if self._gone is not None and not await self._long_polls.wait(self._gone, timeout_seconds):
            return b""
        self.over = True
        result = await self._results.load(self._sandbox_id, self._exec_id)
        if result is None:
            raise self._error()
        frames = result.frames(self._exec_id, self._offsets)
        return b"".join(encode(frame.type, frame.payload, stream=frame.stream, offset=frame.offset) for frame in frames)

    def keepalive(self) -> bytes:
        """See `ExecFeed`."""
        return encode(FrameType.KEEPALIVE, KeepAlive().model_dump_json(exclude_none=True).encode())

    def close(self) -> None:
        """See `ExecFeed`."""
