"""The supervisor's connection to its server: frames in, frames out, with bounded memory both ways. Standard library only."""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from aviato.grading.inside.loop import HANGUP, READ, WRITE
from aviato.wire.frames import HEAD, Frame, FrameError, FramePieces, FrameType

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.grading.inside.loop import Loop

READ_BYTES = 256 << 10
HIGH_BYTES = 256 << 10
"""Sources are asked for more only while less than this waits to be sent, so a slow server holds back the writers."""
TURN_BYTES = 1 << 20
"""At most about this much is sent in one turn of the loop: a fast reader must not keep the others waiting."""
MAX_IOVECS = 64
COPIED_BYTES = 8 << 10
"""A payload below this goes out in one piece with its head: copying it costs less than a piece more."""


_FD = struct.Struct("=i")
_ONE = socket.CMSG_SPACE(_FD.size)
_FLAGS = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT


class Source(Protocol):
    """Something with bytes to send when there is room."""

    queued: bool

    def pump(self, connection: Connection) -> bool:
        """Send one bounded piece; True to be asked again."""


class Connection:
    """One connected server, from `begin` on.

    Args:
        loop: of process 1.
        on_frame: takes a frame; DATA may come in pieces that are views, good until it returns.
        on_close: is told the end.
        whole: tells of which channels DATA comes in whole frames.
    """

    def __init__(
        self,
        loop: Loop,
        on_frame: Callable[[Connection, Frame], None],
        on_close: Callable[[Connection], None],
        whole: Callable[[int], bool],
    ) -> None:
        self.last_heard = 0.0
        self.open = False
        self._loop = loop
        self._fd = -1
        self._socket: socket.socket
        self._descriptors: list[int] = []
        self._on_frame = on_frame
        self._on_close = on_close
        self._decoder = FramePieces(whole)
        # Kept, since new memory for each read is what a large upload would cost most; what is not touched takes no room.
        room = mmap.mmap(-1, READ_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._room = memoryview(room)
        self._out: deque[bytes | memoryview] = deque()
        self._out_bytes = 0
        self._sources: deque[Source] = deque()
        self._blocked = False

    def begin(self, fd: int) -> None:
        """Speak over this socket, and own it from now on."""
        self.last_heard = self._loop.now()
        self.open = True
        self._fd = fd
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
        os.set_blocking(fd, False)
        self._loop.watch(fd, READ, self._ready)

    def take_over(self, fd: int, last_heard: float, unsent: bytes, descriptors: list[int]) -> None:
        """As `begin`, of a socket over which this process has spoken before; `unsent` goes out first."""
        self.begin(fd)
        self.last_heard = last_heard
        self._descriptors += descriptors
        if unsent:
            self._out.append(unsent)
            self._out_bytes += len(unsent)

    @property
    def idle(self) -> bool:
        """Whether everything has been handed to the kernel."""
        return not self._out and not self._sources

    @property
    def full(self) -> bool:
        """Whether it is time to wait for the other side to read."""
        return self.open and self._out_bytes >= HIGH_BYTES

    def send(self, type: int, payload: bytes | memoryview = b"", *, stream: int = 0, channel: int = 0, offset: int = 0) -> None:
        """Queue a frame; it goes out at the end of the turn."""
        if not self.open:
            return
        head = HEAD.pack(type, stream, channel, len(payload), offset)
        if len(payload) < COPIED_BYTES:
            self._out.append(head + payload)
        else:
            self._out += head, payload
        self._out_bytes += HEAD.size + len(payload)

    def send_json(self, type: int, value: dict[str, Any], *, channel: int = 0) -> None:
        """Queue a frame with a JSON payload."""
        self.send(type, json.dumps(value, separators=(",", ":")).encode(), channel=channel)

    def feed_from(self, source: Source) -> None:
        """Ask a source for bytes as soon as there is room, in turn with the others."""
        if not source.queued:
            source.queued = True
            self._sources.append(source)

    def flush(self) -> None:
        """Send what there is, as far as the socket takes it."""
        if not self.open or self._blocked:
            return
        budget = TURN_BYTES
        try:
            self._fill()
            while self._out and budget > 0:
                count = os.writev(self._fd, [self._out[i] for i in range(min(len(self._out), MAX_IOVECS))])
                budget -= count
                self._sent(count)
                self._fill()
        except BlockingIOError:
            self._blocked = True
            self._loop.change(self._fd, READ | WRITE)
        except OSError:
            self.close()
        else:
            if self._out or self._sources:
                self._loop.soon(_next_turn)

    def close(self) -> None:
        """Let go of the socket."""
        if self.open:
            self.open = False
            self._loop.forget(self._fd)
            self._socket.close()
            self._out.clear()
            self._sources.clear()
            while self._descriptors:
                os.close(self._descriptors.pop())
            self._on_close(self)

    def descriptor(self, inode: int | None) -> int | None:
        """What came with a request, of this inode, for whoever owns it from now on; None where none came."""
        while inode is not None and self._descriptors:
            fd = self._descriptors.pop(0)
            if os.fstat(fd).st_ino == inode:
                return fd
            os.close(fd)  # Of a request that was refused before it asked for it.
        return None

    def _fill(self) -> None:
        # One pass: a source that never runs dry gets its next piece in a later turn of the loop, after the others.
        for _ in range(len(self._sources)):
            if self._out_bytes >= HIGH_BYTES:
                return
            source = self._sources.popleft()
            source.queued = False
            if source.pump(self):
                self.feed_from(source)

    def _sent(self, count: int) -> None:
        self._out_bytes -= count
        while count:
            first = self._out[0]
            if len(first) > count:
                self._out[0] = memoryview(first)[count:]
                return
            count -= len(first)
            self._out.popleft()

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._blocked = False
            self._loop.change(self._fd, READ)
            self.flush()
        if self.open and events & (READ | HANGUP):
            self._receive()

    def _receive(self) -> None:
        try:
            count, came, _, _ = self._socket.recvmsg_into([self._room], _ONE, _FLAGS)
        except BlockingIOError:
            return
        except OSError:
            count, came = 0, []
        for _, kind, data in came:
            if kind == socket.SCM_RIGHTS:
                self._descriptors += [fd for (fd,) in _FD.iter_unpack(data[: len(data) // _FD.size * _FD.size])]
        if not count:
            self.close()
            return
        self.last_heard = self._loop.now()
        self.take(self._room[:count])

    def take(self, data: bytes | memoryview) -> None:
        """What the other side has sent."""
        try:
            for frame in self._decoder.feed(data):
                if frame.type != FrameType.KEEPALIVE:
                    self._on_frame(self, frame)
        except FrameError:
            self.close()


def _next_turn() -> None:
    """Nothing: its being queued keeps the loop from sleeping before the next flush."""
