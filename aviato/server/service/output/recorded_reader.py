"""One reader of a detached command's kept output: the frames of a subscription, from disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aviato.server.link.ended import SandboxGone
from aviato.system.threads import in_thread
from aviato.wire.execution import Accepted, Gap
from aviato.wire.frames import Frame, FrameType

if TYPE_CHECKING:
    from aviato.server.service.output.recorded_output import RecordedOutput

WINDOW_BYTES = 1 << 20
"""How much of a stream is sent ahead of what the reader has acknowledged: a stream that is not read holds nothing else."""


class RecordedReader:
    """Reads like a `Subscription`: `wait()`, then `drain()`. It holds nobody up, and what it came too late for is a GAP.

    Args:
        output: what it reads.
        offsets: of stdout and stderr, from which on.
    """

    def __init__(self, output: RecordedOutput, offsets: tuple[int, int]) -> None:
        self.over = False
        self._output = output
        self._position = {1: offsets[0], 2: offsets[1]}
        self._acknowledged = dict(self._position)
        self._frames: list[Frame] = []
        self._said: set[int] = set()
        self._joined: set[int] = set()
        self._woken = asyncio.Event()
        self._moved = asyncio.Event()
        self._patience_used = 0.0

    @property
    def queued_bytes(self) -> int:
        """Payload that was read from disk and not taken yet."""
        return sum(len(frame.payload) for frame in self._frames)

    async def wait(self, enough_bytes: int = 0) -> None:
        """Wait until `drain()` has something to give, however little, or nothing more will come."""
        while not self._frames and not self.over:
            self._woken.clear()
            await self._look()
            if not self._frames and not self.over:
                if self._output.gone is not None and self._caught_up:
                    return
                await self._woken.wait()

    def drain(self, most_bytes: float = float("inf")) -> list[Frame]:
        """Every frame that is ready, which is no more than a window has; never waits.

        Raises:
            SandboxGone: nothing is left and the sandbox ended before the command did.
        """
        frames, self._frames = self._frames, []
        if not frames and not self.over and self._output.gone is not None:
            raise SandboxGone(self._output.gone)
        return frames

    def acknowledge(self, stdout: int, stderr: int) -> None:
        """The reader has these bytes."""
        self._acknowledged = {1: max(self._acknowledged[1], stdout), 2: max(self._acknowledged[2], stderr)}
        self.wake()

    def wake(self) -> None:
        """There may be something to read."""
        self._woken.set()

    @property
    def progress(self) -> int:
        """How much it has read: while it grows, somebody reads."""
        return sum(self._position.values())

    def close(self) -> None:
        """Stop reading."""
        self.over = True
        self.wake()
        self._moved.set()
        self._output.left(self)

    async def catch_up(self, ahead_bytes: int, patience_seconds: float) -> None:
        """Wait until it is less than so much behind; not for one that may not read on, and only for its patience in all."""
        loop = asyncio.get_running_loop()
        while not self.over and self._patience_used < patience_seconds and self._is_behind(ahead_bytes):
            self._moved.clear()
            begin = loop.time()
            try:
                async with asyncio.timeout(patience_seconds - self._patience_used):
                    await self._moved.wait()
            except TimeoutError:
                pass
            self._patience_used += loop.time() - begin

    def _is_behind(self, ahead_bytes: int) -> bool:
        return any(
            ring.end - self._position[stream] > ahead_bytes and self._may_send(stream)
            for stream, ring in self._output.rings.items()
        )

    def _may_send(self, stream: int) -> bool:
        return self._position[stream] < self._acknowledged[stream] + WINDOW_BYTES

    @property
    def _caught_up(self) -> bool:
        return all(self._position[stream] >= end for stream, end in self._output.offsets.items())

    async def _look(self) -> None:
        output = self._output
        last = output.last  # Before the output: what comes with it is read first.
        for kind in (FrameType.ACCEPTED, FrameType.STARTED):
            if kind not in self._said and (output.accepted if kind == FrameType.ACCEPTED else output.started):
                self._said.add(kind)
                payload = Accepted(exec_id="").model_dump_json().encode() if kind == FrameType.ACCEPTED else b"{}"
                self._frames.append(Frame(kind, 0, 0, 0, payload))
        for stream in (1, 2):
            await self._read(stream)
        if last is not None and not self.over and self._caught_up:
            self._frames.append(last)
            self.over = True

    async def _read(self, stream: int) -> None:
        ring, position = self._output.rings[stream], self._position[stream]
        limit = min(ring.end, self._acknowledged[stream] + WINDOW_BYTES)
        joined = stream in self._joined
        self._joined.add(stream)
        if (not joined or ring.forgotten) and position < ring.first:
            start, data = ring.first, b""
        elif position < limit:
            start, data = await in_thread(ring.read, position, limit)
        else:
            return
        if start > position:
            gap = Gap(from_offset=position, to_offset=start, is_infrastructure=not ring.pushed_out(position))
            self._frames.append(Frame(FrameType.GAP, stream, 0, position, gap.model_dump_json().encode()))
            self._acknowledged[stream] = max(self._acknowledged[stream], start)
        if data:
            self._frames.append(Frame(FrameType.DATA, stream, 0, start, data))
        self._position[stream] = start + len(data)
        self._moved.set()
