"""What a command's subscriber reads: its frames in order, or the news that the sandbox is gone."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Self

from aviato.server.link.ended import Ended, SandboxGone
from aviato.wire.frames import Frame, FrameType

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.link.progress import Progress

_ENDS = frozenset({FrameType.EXIT, FrameType.ERROR})


class Subscription:
    """The frames of one command from given offsets on: ACCEPTED, STARTED, DATA, GAP, and EXIT or ERROR as the last.

    To its link it is a `Channel`.

    An async iterator; or `wait()` and `drain()` for callers that take all that has arrived at once. If the sandbox ends first,
    both raise `SandboxGone` after the last frame. A subscription that a newer one has replaced, or that was closed, just ends.
    """

    def __init__(self, exec_id: str, on_close: Callable[[Subscription], None]) -> None:
        self.exec_id = exec_id
        self.replaced = False
        """A newer subscription to the same command took over."""
        self.progress: Progress | None = None
        """Where its connection can be lost: from where on it would go on."""
        self._on_close = on_close
        self.queued_bytes = 0
        """Payload that has arrived and was not taken yet."""
        self._frames: deque[Frame] = deque()
        self._by_memory = False
        """Large output is told of in small frames, which are worth sending at once."""
        self.over = False
        """No further frame will arrive; some may wait in `drain()`."""
        self._gone: Ended | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._enough = 0
        """So many bytes it waits for."""

    def drain(self, most_bytes: float = float("inf")) -> list[Frame]:
        """The frames that have arrived and were not taken yet, of more than so much payload only the first; never waits.

        Raises:
            SandboxGone: nothing is left and the sandbox ended before the command did.
        """
        if self.queued_bytes <= most_bytes:
            frames = list(self._frames)
            self._frames.clear()
            self.queued_bytes = 0
        else:
            frames = []
            while most_bytes > 0 and self._frames:
                frames.append(self._frames.popleft())
                most_bytes -= len(frames[-1].payload)
                self.queued_bytes -= len(frames[-1].payload)
        if not frames and self._gone is not None:
            raise SandboxGone(self._gone)
        return frames

    async def wait(self, enough_bytes: int = 0) -> None:
        """Wait until `drain()` has something to give, and so much of it, or nothing more will come; one waits at a time."""
        if not (self.over or (self._frames and (self._by_memory or self.queued_bytes >= enough_bytes))):
            self._waiter, self._enough = asyncio.get_running_loop().create_future(), enough_bytes
            await self._waiter

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        await self.wait()
        if self._frames:
            frame = self._frames.popleft()
            self.queued_bytes -= len(frame.payload)
            return frame
        if self._gone is not None:
            raise SandboxGone(self._gone)
        raise StopAsyncIteration

    def close(self) -> None:
        """Stop listening; the command runs on."""
        if not self.over:
            self._finish(None)
            self._on_close(self)

    def frame(self, frame: Frame) -> bool:
        """Take a frame of its command, with channel 0 as clients see them; True when it was the last."""
        last = frame.type in _ENDS
        if self.progress is not None and not self.progress.is_new(frame):
            return last
        self._frames.append(Frame(frame.type, frame.stream, 0, frame.offset, bytes(frame.payload)))
        self.queued_bytes += len(frame.payload)
        self.over = self.over or last
        self._by_memory = self._by_memory or frame.type == FrameType.SHARED
        waiter = self._waiter
        if waiter is not None and (self.over or self._by_memory or self.queued_bytes >= self._enough) and not waiter.done():
            waiter.set_result(None)
        return last

    def gone(self, ended: Ended) -> None:
        """The sandbox ended or the connection is lost."""
        self._finish(ended)

    def _finish(self, gone: Ended | None) -> None:
        if not self.over:
            self.over = True
            self._gone = gone
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
