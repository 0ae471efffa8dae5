"""The last 16 MiB of a stream, on disk: the one place where a server keeps output."""

from __future__ import annotations

import logging
import os
from contextlib import suppress

log = logging.getLogger(__name__)

KEPT_BYTES = 16 << 20
SEGMENT_BYTES = 8 << 20
MOST_SEGMENTS = 64
"""A disk that is full now and then makes short segments; their number stays bounded."""
_READ_BYTES = 256 << 10


class Ring:
    """Files `NAME.OFFSET` of up to 8 MiB, each holding the bytes of the stream from that offset on.

    Its methods block and are for worker threads: one writer at a time, any number of readers beside it. A disk that takes no
    bytes never fails the writer: what could not be written is a gap.

    Args:
        directory: where the files are.
        name: what their names begin with.
    """

    def __init__(self, directory: str, name: str) -> None:
        self.end = 0
        """The offset after the last byte, kept or lost."""
        self._directory = directory
        self._name = name
        self._segments: tuple[tuple[int, int], ...] = ()
        self._fd: int | None = None
        self._complained = False
        self.forgotten = False
        """Its files are taken away: whoever has not read them yet has come too late."""

    @property
    def first(self) -> int:
        """The offset from which on a new reader may read."""
        oldest = self._segments[0][0] if self._segments else self.end
        return max(oldest, self.end - KEPT_BYTES)

    @property
    def kept_bytes(self) -> int:
        """What it takes on disk."""
        return sum(length for _, length in self._segments)

    def load(self, end: int | None = None) -> None:
        """Find what an earlier server wrote; what lies behind `end` is cut off."""
        found: list[tuple[int, int]] = []
        for offset in self._offsets():
            length = os.stat(self._path(offset)).st_size
            if end is not None and offset + length > end:
                length = max(0, end - offset)
                os.truncate(self._path(offset), length)
            found.append((offset, length))
        self._segments = tuple(found)
        self.end = end if end is not None else sum(found[-1]) if found else 0

    def ends_at(self, end: int) -> None:
        """It is whole with this many bytes: those that are not here were lost, the last ones too."""
        self.end = max(self.end, end)

    def write(self, offset: int, data: bytes) -> None:
        """Append bytes that begin at `offset`: what is there already is skipped, what lies between is a gap."""
        if offset > self.end:
            self.close()
            self.end = offset
        view = memoryview(data)[self.end - offset :]
        while view:
            try:
                written = os.write(self._room(), view[: SEGMENT_BYTES - self._segments[-1][1]])
            except OSError as error:
                self._lose(len(view), error)
                return
            start, length = self._segments[-1]
            self._segments = (*self._segments[:-1], (start, length + written))
            self.end += written
            view = view[written:]

    def read(self, position: int, limit: int) -> tuple[int, bytes]:
        """A piece from `position` on, and where it begins: later than asked where bytes are gone. Nothing from `limit` on."""
        for start, length in self._segments:
            begin = max(position, start)
            size = min(_READ_BYTES, min(start + length, limit) - begin)
            if position >= start + length or size <= 0:
                continue
            # A file that went away meanwhile, or is shorter than it was, holds nothing.
            with suppress(OSError):
                fd = os.open(self._path(start), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    data = os.pread(fd, size, begin - start)
                finally:
                    os.close(fd)
                if data:
                    return begin, data
        return max(position, min(self.end, limit)), b""

    def pushed_out(self, position: int) -> bool:
        """Whether bytes at `position` are gone because so much came after them, and not because the disk did not take them."""
        oldest = self._segments[0][0] if self._segments else self.end
        return self.forgotten or (position < self.first and (position >= oldest or self.end - oldest >= KEPT_BYTES))

    def forget(self) -> None:
        """Its files are about to go, read or not; nothing is written any more."""
        self.forgotten = True
        self._segments = ()

    def close(self) -> None:
        """Let go of the open file; a later write opens it again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def remove(self) -> None:
        """Take the files away."""
        self.close()
        with suppress(FileNotFoundError):
            for offset in self._offsets():
                with suppress(FileNotFoundError):
                    os.unlink(self._path(offset))
        self._segments = ()

    def _room(self) -> int:
        """The file to write to, with room in it."""
        last = self._segments[-1] if self._segments else None
        fits = last is not None and sum(last) == self.end and last[1] < SEGMENT_BYTES
        if self._fd is not None and fits:
            return self._fd
        self.close()
        if not fits:
            self._drop_oldest()
            self._segments = (*self._segments, (self.end, 0))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path(self._segments[-1][0]), flags, 0o600)
        return self._fd

    def _drop_oldest(self) -> None:
        segments = self._segments
        while segments and (len(segments) >= MOST_SEGMENTS or (len(segments) > 1 and self.end - segments[1][0] >= KEPT_BYTES)):
            with suppress(OSError):
                os.unlink(self._path(segments[0][0]))
            segments = segments[1:]
        self._segments = segments

    def _lose(self, size: int, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            log.error("output %s cannot be kept: %s; it goes on with a gap", self._name, error.strerror)
        self.close()
        if self._segments and not self._segments[-1][1]:
            with suppress(OSError):
                os.unlink(self._path(self._segments[-1][0]))
            self._segments = self._segments[:-1]
        self.end += size

    def _path(self, offset: int) -> str:
        return os.path.join(self._directory, f"{self._name}.{offset}")

    def _offsets(self) -> list[int]:
        prefix = f"{self._name}."
        names = [name[len(prefix) :] for name in os.listdir(self._directory) if name.startswith(prefix)]
        return sorted(int(name) for name in names if name.isdigit())
