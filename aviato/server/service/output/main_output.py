"""The output of a main command: the last 16 MiB, on disk, read by whoever follows."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.server.service.output.ring import Ring
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.service.output.recorder import Piece
    from aviato.wire.frames import Frame

_BLOCK_BYTES = 256 << 10


class MainOutput:
    """Both streams in order of arrival, in one ring, and `ID.state`: how far each of them and the whole were written.

    The state is written after the bytes and read after a restart of the server: what it does not count is cut off and comes
    again from process 1, so nothing is doubled or lost.

    Args:
        directory: where the files are.
        sandbox_id: whose output.
    """

    def __init__(self, directory: str, sandbox_id: str) -> None:
        self._ring = Ring(directory, sandbox_id)
        self._state = os.path.join(directory, f"{sandbox_id}.state")
        self._state_fd: int | None = None
        self._changed = asyncio.Event()
        self.offsets = {1: 0, 2: 0}
        self.ended = False

    @property
    def total(self) -> int:
        """How many bytes were written in all."""
        return self._ring.end

    async def open(self) -> None:
        """Read what an earlier server wrote."""
        await in_thread(self._load)

    async def append(self, pieces: list[Piece]) -> None:
        """Write pieces in order of arrival and wake those who follow."""
        await in_thread(self._write, pieces)
        self._wake()

    async def conclude(self, last: Frame) -> bool:
        """The main command has ended; its result is in the ending of its sandbox."""
        return True

    def finish(self) -> None:
        """No more will come."""
        self.ended = True
        self._wake()
        self._ring.close()
        if self._state_fd is not None:
            os.close(self._state_fd)
            self._state_fd = None

    async def begin(self, tail_lines: int | None) -> int:
        """Where the last `tail_lines` lines begin, or what is kept."""
        return await in_thread(self._first, tail_lines)

    async def read(self, *, follow: bool, begin: int) -> AsyncIterator[bytes]:
        """What is kept from an offset on, then what arrives if `follow`."""
        position = begin
        end = self.total
        while True:
            changed = self._changed
            if follow:
                end = self.total
            while position < end:
                at, data = await in_thread(self._ring.read, position, end)
                position = at + len(data)
                if data:
                    yield data
            if position < self.total and follow:
                continue
            if not follow or self.ended:
                return
            await changed.wait()

    def remove(self) -> None:
        """Take the files away; for a worker thread."""
        self._ring.remove()
        with suppress(FileNotFoundError):
            os.unlink(self._state)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _load(self) -> None:
        try:
            with open(self._state) as file:
                total, self.offsets[1], self.offsets[2] = map(int, file.read().split())
        except FileNotFoundError:
            return
        self._ring.load(total)

    def _write(self, pieces: list[Piece]) -> None:
        for stream, offset, data in pieces:
            self._ring.write(self.total, data[max(0, self.offsets[stream] - offset) :])
            self.offsets[stream] = max(self.offsets[stream], offset + len(data))
        state = f"{self.total} {self.offsets[1]} {self.offsets[2]}\n".ljust(64).encode()
        # A full disk may refuse the state too; it is written anew with the next piece.
        with suppress(OSError):
            if self._state_fd is None:
                self._state_fd = os.open(self._state, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._state_fd, state, 0)

    def _first(self, tail_lines: int | None) -> int:
        """The offset from which to read."""
        oldest = self._ring.first
        if tail_lines is None:
            return oldest
        if tail_lines == 0:
            return self.total
        end, missing = self.total, tail_lines + 1
        while end > oldest:
            begin = max(oldest, end - _BLOCK_BYTES)
            block = self._block(begin, end)
            if end == self.total and not block.endswith(b"\n"):
                missing -= 1
            cut = len(block)
            while (cut := block.rfind(b"\n", 0, cut)) >= 0:
                missing -= 1
                if missing == 0:
                    return begin + cut + 1
            end = begin
        return oldest

    def _block(self, begin: int, end: int) -> bytes:
        parts: list[bytes] = []
        while begin < end:
            begin, data = self._ring.read(begin, end)
            begin += len(data)
            parts.append(data)
        return b"".join(parts)
