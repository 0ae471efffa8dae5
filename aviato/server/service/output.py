"""The output of a main command: the last 16 MiB, on disk, read by whoever follows."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.server.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEPT_BYTES = 16 << 20
SEGMENT_BYTES = 8 << 20
_READ_BYTES = 256 << 10


class MainOutput:
    """Segments `ID.OFFSET` of 8 MiB, and `ID.state`: how far each stream and the whole were written.

    The state is written after the bytes and read after a restart of the server: what it does not count is cut off and comes
    again from the supervisor, so nothing is doubled or lost.

    Args:
        directory: where the files are.
        sandbox_id: whose output.
    """

    def __init__(self, directory: str, sandbox_id: str) -> None:
        self._directory = directory
        self._sandbox_id = sandbox_id
        self._changed = asyncio.Event()
        self._fd: int | None = None
        self._state_fd: int | None = None
        self._segment = 0
        self.total = 0
        self.offsets = {1: 0, 2: 0}
        self.ended = False

    async def open(self) -> None:
        """Read what an earlier server wrote."""
        await in_thread(self._load)

    async def append(self, pieces: list[tuple[int, bytes]]) -> None:
        """Write `(stream, bytes)` in order of arrival and wake those who follow."""
        await in_thread(self._write, pieces)
        self._wake()

    def finish(self) -> None:
        """No more will come."""
        self.ended = True
        self._wake()
        for fd in (self._fd, self._state_fd):
            if fd is not None:
                os.close(fd)
        self._fd = self._state_fd = None

    async def read(self, *, follow: bool, tail_lines: int | None) -> AsyncIterator[bytes]:
        """What is kept, from the last `tail_lines` lines on, then what arrives if `follow`."""
        position = await in_thread(self._first, tail_lines)
        end = self.total
        while True:
            changed = self._changed
            if follow:
                end = self.total
            while position < end:
                at, data = await in_thread(self._read, position, end)
                if not data:
                    return
                position = at + len(data)
                yield data
            if position < self.total and follow:
                continue
            if not follow or self.ended:
                return
            await changed.wait()

    def remove(self) -> None:
        """Take the files away; for a worker thread."""
        for name in [f"{self._sandbox_id}.state", *(f"{self._sandbox_id}.{start}" for start in self._segments())]:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self._directory, name))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _path(self, start: int) -> str:
        return os.path.join(self._directory, f"{self._sandbox_id}.{start}")

    def _segments(self) -> list[int]:
        prefix = f"{self._sandbox_id}."
        names = [name[len(prefix) :] for name in os.listdir(self._directory) if name.startswith(prefix)]
        return sorted(int(name) for name in names if name.isdigit())

    def _load(self) -> None:
        try:
            with open(os.path.join(self._directory, f"{self._sandbox_id}.state")) as file:
                self.total, self.offsets[1], self.offsets[2] = map(int, file.read().split())
        except FileNotFoundError:
            return
        segments = self._segments()
        if segments:
            self._segment = segments[-1]
            os.truncate(self._path(self._segment), max(0, self.total - self._segment))

    def _write(self, pieces: list[tuple[int, bytes]]) -> None:
        for stream, data in pieces:
            if self._fd is None or self.total - self._segment >= SEGMENT_BYTES:
                self._next_segment()
            assert self._fd is not None
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            self.total += len(data)
            self.offsets[stream] += len(data)
        state = f"{self.total} {self.offsets[1]} {self.offsets[2]}\n".ljust(64).encode()
        if self._state_fd is None:
            path = os.path.join(self._directory, f"{self._sandbox_id}.state")
            self._state_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.pwrite(self._state_fd, state, 0)

    def _next_segment(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._segment = self.total
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path(self._segment), flags, 0o600)
        for start in self._segments()[: -(KEPT_BYTES // SEGMENT_BYTES + 1)]:
            os.unlink(self._path(start))

    def _read(self, position: int, end: int) -> tuple[int, bytes]:
        segments = self._segments()
        start = max((start for start in segments if start <= position), default=segments[0] if segments else 0)
        position = max(position, start)
        following = min((other for other in segments if other > start), default=end)
        size = min(_READ_BYTES, min(following, end) - position)
        with suppress(FileNotFoundError):
            fd = os.open(self._path(start), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return position, os.pread(fd, size, position - start)
            finally:
                os.close(fd)
        return position, b""

    def _first(self, tail_lines: int | None) -> int:
        """The offset from which to read."""
        segments = self._segments()
        oldest = max(segments[0] if segments else 0, self.total - KEPT_BYTES)
        if tail_lines is None:
            return oldest
        if tail_lines == 0:
            return self.total
        end, missing = self.total, tail_lines + 1
        while end > oldest:
            begin = max(oldest, end - _READ_BYTES)
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
            begin, data = self._read(begin, end)
            if not data:
                break
            begin += len(data)
            parts.append(data)
        return b"".join(parts)
