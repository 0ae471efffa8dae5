"""A command's pipes: output kept in a window until it is acknowledged, input fed by offset. Standard library only."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from typing import TYPE_CHECKING

from aviato.grading.inside.leftover import unread_bytes
from aviato.grading.inside.loop import READ, WRITE
from aviato.server.supervisor.errors import Refused, invalid
from aviato.server.supervisor.window import PIECE_BYTES, LentWindow, Window
from aviato.wire.frames import WIDE_WINDOW_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.grading.inside.loop import Loop

PIPE_BYTES = 1 << 20
"""Of a pipe that was full: each of its ends then waits for the other less often."""
INPUT_BYTES = 256 << 10
LOOK_SECONDS = 0.001
LONGEST_LOOK_SECONDS = 0.2


class Output:
    """One output stream: `base` ≤ what subscribers have been sent ≤ `end`; bytes before `base` are acknowledged and gone."""

    def __init__(self, loop: Loop, fd: int | None, changed: Callable[[], None]) -> None:
        self.base = 0
        self.target: int | None = None
        """Once the command has exited: where what was in the pipe then ends."""
        self._window = Window()
        self._loop = loop
        self._fd = fd
        self._changed = changed
        self._memory: int | None = None
        self._lent: LentWindow | None = None
        self._looking = False
        """Memory that was lent will be looked at."""
        self._pause = LOOK_SECONDS
        self._watched = False
        self._resting = False
        """There is nothing to be read for the moment, whatever the kernel says."""
        self._watch()

    @property
    def end(self) -> int:
        """How many bytes the command has written, as far as they were read."""
        return self.base + len(self._window)

    @property
    def waiting_bytes(self) -> int:
        """How much is not acknowledged."""
        return len(self._window)

    @property
    def full(self) -> bool:
        """Whether nothing is read before something is acknowledged."""
        return self.waiting_bytes >= self._window.limit_bytes

    @property
    def at_end(self) -> bool:
        """Whether no more will be read."""
        return self._fd is None

    @property
    def rest(self) -> bytes:
        """All that was not acknowledged."""
        return self._window.rest

    def put(self, data: bytes) -> None:
        """Add a line of the supervisor's own."""
        self._window.put(data)

    def peek(self, offset: int) -> bytes | memoryview:
        """A piece from an offset on, which must not lie before `base`."""
        return self._window.peek(offset - self.base)

    def place(self, offset: int) -> tuple[int, int] | None:
        """See `Window.place`, of an offset of the stream."""
        return self._window.place(offset - self.base)

    def lend(self, fd: int) -> None:
        """Have memory for large output, and own it until `give_back`."""
        self._memory = fd

    @property
    def has_memory(self) -> bool:
        """Whether it holds any."""
        return self._memory is not None

    @property
    def in_memory(self) -> bool:
        """Whether anything lies there."""
        return self._window is self._lent

    def give_back(self) -> None:
        """Let go of that memory; what is in it is kept here. What its reader was told lies there, and stays."""
        fd, self._memory = self._memory, None
        if fd is not None:
            if self.in_memory:
                self._leave_memory()
            self._lent = None
            os.close(fd)

    def _enter_memory(self, fd: int) -> None:
        try:
            self._window = self._lent = LentWindow(fd, self._window.rest)
        except OSError:
            pass  # It takes too little: the connection does it.

    def _leave_memory(self) -> None:
        """It takes no more: all goes by the connection again. What the reader has is still told there."""
        window = Window()
        window.limit_bytes = self._window.limit_bytes
        window.put(self._window.rest)
        self._window = window

    def _look_in_memory(self, lent: LentWindow) -> None:
        """Whoever reads says there what he has; where there is no room otherwise it is looked for at intervals."""
        self.acknowledge(lent.confirmed)
        if self.full and not self._looking:
            self._looking = True
            self._loop.after(self._pause, self._look_again)
            self._pause = min(2 * self._pause, LONGEST_LOOK_SECONDS)
        elif not self.full:
            self._pause = LOOK_SECONDS

    def _look_again(self) -> None:
        self._looking = False
        if self._lent is not None and self._fd is not None:
            self._look_in_memory(self._lent)
            self._changed()

    def acknowledge(self, offset: int) -> None:
        """Forget what lies before an offset, and read on if the window was full."""
        count = min(offset, self.end) - self.base
        if count > 0:
            self._window.drop(count)
            self.base += count
            if self.base >= WIDE_WINDOW_BYTES:
                self._window.widen()
            if self.target is not None:
                self._catch_up()
            self._watch()

    def mark_exit(self) -> None:
        """The command has exited: note what is still in the pipe, and take what fits the window."""
        if self._fd is not None:
            self.target = self.end + unread_bytes(self._fd)
            self._catch_up()

    def release(self) -> int | None:
        """Give the descriptor away; nothing more is read here."""
        fd, self._fd = self._fd, None
        if fd is not None and self._watched:
            self._loop.forget(fd)
            self._watched = False
        return fd

    def _catch_up(self) -> None:
        while self._read():
            pass

    def _watch(self) -> None:
        wanted = self._fd is not None and not self.full and not self._resting
        if wanted != self._watched and self._fd is not None:
            self._watched = wanted
            if wanted:
                self._loop.watch(self._fd, READ, self._ready)
            else:
                self._loop.forget(self._fd)

    def _ready(self, events: int) -> None:
        self._read()
        self._changed()

    def _read(self) -> bool:
        """Read one piece; False when there was none or no room for it."""
        if self._fd is None or self.full:
            return False
        try:
            count = self._window.read(self._fd)
        except BlockingIOError:
            if self.target is not None:
                # Empty before its time: someone inside opened the pipe by /proc and took what had been in it.
                self.target = min(self.target, self.end)
            return False
        except OSError:
            if self._window is self._lent:
                self._leave_memory()
                self._watch()
                return True
            count = 0
        if not count:
            self._ended()
            self._watch()
            return False
        if count == PIECE_BYTES and not self._window.large:
            self._grow(self._fd)
        if self._lent is not None and not self._looking:
            self._look_in_memory(self._lent)
        self._watch()
        return True

    def _grow(self, fd: int) -> None:
        """There is much to come, it seems."""
        if self._memory is not None and self._lent is None:  # Once: places in it may still be read that were told before.
            self._enter_memory(self._memory)
        self._window.grow()
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except OSError:
            pass  # A terminal; or its user has too much in pipes already.

    def _ended(self) -> None:
        """There are no writers."""
        fd = self.release()
        if fd is not None:
            os.close(fd)


class Input:
    """A command's stdin: what was accepted and not written yet, and the writers that wait for room.

    Args:
        loop: of process 1.
        fd: to write to; None: it is closed.
        kept: gets a copy of all that is accepted.
    """

    def __init__(self, loop: Loop, fd: int | None, kept: bytearray | None = None) -> None:
        self.accepted = 0
        self._kept = kept
        self._loop = loop
        self._fd = fd
        self._buffer = bytearray()
        self._eof = False
        self._watched = False
        self._waiting: deque[tuple[int, bytes, bool, Callable[[Refused | None], None]]] = deque()

    def write(self, offset: int, data: bytes, eof: bool, answer: Callable[[Refused | None], None]) -> None:
        """Take bytes that belong at an offset of the stream; `answer` is called once they are accepted."""
        self._waiting.append((offset, data, eof, answer))
        self._admit()

    def close(self) -> None:
        """No more can be written: the command has exited or closed its end."""
        if self._fd is not None:
            if self._watched:
                self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = None
        self._buffer.clear()
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            offset, data, eof, answer = self._waiting[0]
            fresh = data[max(0, self.accepted - offset) :]
            problem: Refused | None = None
            if offset > self.accepted:
                problem = invalid(f"stdin: offset {offset} leaves a gap after {self.accepted}")
            elif (fresh or (eof and not self._eof)) and (self._fd is None or self._eof):
                problem = Refused("EXECUTION", "stdin is closed", reason="stdin_closed")
            elif fresh and self._buffer and len(self._buffer) + len(fresh) > INPUT_BYTES:
                return
            else:
                self._buffer += fresh
                self.accepted += len(fresh)
                if self._kept is not None:
                    self._kept += fresh
                if eof and not self._eof:
                    self._eof = True
                    self._end()
            self._waiting.popleft()
            answer(problem)
            self._push()

    def _end(self) -> None:
        """The end has been asked for: it comes when the buffer is empty."""

    def _exhausted(self) -> None:
        """All is written, and the end has come."""
        self.close()

    def _broken(self) -> None:
        """Nobody can read what was written."""
        self.close()

    def _push(self) -> None:
        if self._fd is None:
            return
        try:
            while self._buffer:
                del self._buffer[: os.write(self._fd, memoryview(self._buffer)[:PIECE_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._broken()
            return
        if not self._buffer and self._eof:
            self._exhausted()
        elif bool(self._buffer) != self._watched:
            self._watched = bool(self._buffer)
            if self._watched:
                self._loop.watch(self._fd, WRITE, self._ready)
            else:
                self._loop.forget(self._fd)

    def _ready(self, events: int) -> None:
        self._push()
        self._admit()
