"""The input of programs that run one after the other: a file for each, as by a shell's `<`. Standard library only."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from typing import TYPE_CHECKING

from aviato.server.supervisor.errors import Refused, invalid
from aviato.server.supervisor.streams import INPUT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Nobody changes such a file any more, nor keeps anything of his own in it."""


class Shares:
    """What has come of all input: one share in a file in memory, and a little of those after it.

    The files belong to this process, outside the limits of what runs inside. So there is one at a time: it is let go of here as
    soon as its program has it, and those who write wait until it is the turn of the next share.

    Args:
        proc: descriptor of /proc.
        sizes: of the shares, in bytes.
        moved: called when bytes have come.
    """

    def __init__(self, proc: int, sizes: list[int], moved: Callable[[], None]) -> None:
        self.accepted = 0
        self.given: tuple[int, int] | None = None
        """Device and number of the file that a program was given last."""
        self._proc = proc
        self._sizes = sizes
        self._total = sum(sizes)
        self._moved = moved
        self._missing = 0
        """Of the share that is being taken."""
        self._file: int | None = None
        self._error: OSError | None = None
        self._ahead = bytearray()
        self._closed = False
        self._waiting: deque[tuple[int, bytes, Callable[[Refused | None], None]]] = deque()

    @property
    def whole(self) -> bool:
        """Whether all of the share has come that was begun last."""
        return not self._missing

    def begin(self, index: int) -> None:
        """Take this share; those before it were taken."""
        self._missing = self._sizes[index]
        self._error = None
        try:
            self._file = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            self._error = error
        ahead, self._ahead = self._ahead, bytearray()
        self._take(ahead)
        self._admit()

    def open(self) -> int:
        """The share, which is whole, for its program alone: read only, from its beginning. The caller closes it.

        Raises:
            OSError: there was no room for it.
        """
        file, self._file = self._file, None
        if file is None:
            raise self._error or OSError("the share was given before")
        try:
            if self._error is not None:
                raise self._error
            os.fchmod(file, 0o444)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
            found = os.fstat(file)
            self.given = found.st_dev, found.st_ino
            return os.open(f"self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        finally:
            os.close(file)

    def write(self, offset: int, data: bytes, eof: bool, answer: Callable[[Refused | None], None]) -> None:
        """Take bytes that belong at an offset of all of it; see `Input.write`. Where it ends is known: `eof` says nothing."""
        self._waiting.append((offset, data, answer))
        self._admit()
        self._moved()

    def close(self) -> None:
        """No program follows."""
        self._closed = True
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
        self._ahead.clear()
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            offset, data, answer = self._waiting[0]
            fresh = data[max(0, self.accepted - offset) :]
            problem: Refused | None = None
            if offset > self.accepted:
                problem = invalid(f"stdin: offset {offset} leaves a gap after {self.accepted}")
            elif fresh and (self._closed or self.accepted + len(fresh) > self._total):
                problem = Refused("EXECUTION", "stdin is longer than what its programs read", reason="stdin_closed")
            elif fresh and not self._missing and self._ahead and len(self._ahead) + len(fresh) > INPUT_BYTES:
                return
            else:
                self.accepted += len(fresh)
                self._take(fresh)
            self._waiting.popleft()
            answer(problem)

    def _take(self, data: bytes | bytearray) -> None:
        rest = memoryview(data)
        mine, rest = rest[: self._missing], rest[self._missing :]
        self._missing -= len(mine)
        self._ahead += rest
        try:
            while mine and self._error is None and self._file is not None:
                mine = mine[os.write(self._file, mine) :]
        except OSError as error:
            self._error = error
