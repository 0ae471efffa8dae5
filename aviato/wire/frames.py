"""Frames: the one binary format, between client and server and between server and process 1.

A frame has a head of 16 bytes, big-endian, then its payload::

    type u8 · stream u8 · channel u16 · length u32 · offset u64

`channel` tells the requests apart that share a connection (`wire.session` has them between client and server); it is 0 in a
stream of one command. `offset` is the position of the first payload byte in its stream.

This module is loaded by process 1s too: standard library only.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROTOCOL = 1
"""Of process 1, which names its own in HELLO. Another one where a server of the release before could misread it; a server
speaks the one before, too."""
HEAD = struct.Struct(">BBHIQ")
INPUT_BYTES = 64 << 10
"""Input of up to so much comes with the request of its command; more is sent after it."""
WIDE_WINDOW_BYTES = 4 << 20
"""So much of a stream may be on its way without being acknowledged, once as much was acknowledged."""
MAX_PAYLOAD_BYTES = 4 << 20
"""A longer payload than this is a protocol error; data frames are cut well below it. A command as long as
Linux takes (2 MiB) fits."""


class FrameType(IntEnum):
    """What a frame carries. 1–11 are for every exec stream, 16–19 of a session alone, 32 and up between server and process 1,
    of which a session has END and CREDIT too.
    """

    ACCEPTED = 1
    """JSON: the exec is on record; it will run at most once."""
    STARTED = 2
    """JSON: the command has begun to run."""
    DATA = 3
    """Bytes of `stream` from `offset` on."""
    GAP = 4
    """JSON `{"from", "to"}`: bytes of `stream` that are gone for good."""
    EXIT = 5
    """JSON: the result (`ExecExit`); the last frame."""
    ERROR = 6
    """JSON: an error (`wire.errors.ErrorBody`); the last frame."""
    KEEPALIVE = 7
    """JSON, maybe empty: the peer is alive and has nothing to say."""
    SHARED = 10
    """As DATA, of bytes that lie in shared memory: where, and how many (`wire.shared_memory.PLACE`)."""

    OPEN = 16
    """A request of a session begins; see `wire.session`."""
    ANSWER = 17
    CUT = 18

    HELLO = 32
    REQUEST = 33
    REPLY = 34
    END = 35
    """End of the payload frames of a request or reply on this channel."""
    ACK = 36
    CREDIT = 37
    CLOSE = 38
    """The channel is free again."""
    ENDED = 39
    """JSON: the sandbox ends, and why; the last frame of a process 1."""
    DESCRIPTORS = 40
    """From now on process 1 takes descriptors that come with requests; before, they are lost."""
    REPLACED = 41
    """Over a network: another server has the sandbox now; the last frame of this connection."""


class StreamId(IntEnum):
    """The byte streams of a command."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2


class FrameError(ValueError):
    """The bytes are not a frame."""


class Frame(NamedTuple):
    """One frame."""

    type: int
    stream: int
    channel: int
    offset: int
    payload: bytes
    """Of DATA that `FramePieces` took apart a view, which is good until the next feed."""


def encode(type: int, payload: bytes = b"", *, stream: int = 0, channel: int = 0, offset: int = 0) -> bytes:
    """The bytes of one frame."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"payload of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} fit a frame")
    return HEAD.pack(type, stream, channel, len(payload), offset) + payload


def head(type: int, length: int, *, stream: int = 0, channel: int = 0, offset: int = 0) -> bytes:
    """The head of a frame whose payload follows."""
    return HEAD.pack(type, stream, channel, length, offset)


def _too_long(length: int) -> FrameError:
    return FrameError(f"frame of {length} bytes announced; at most {MAX_PAYLOAD_BYTES} are allowed")


def every_channel(channel: int) -> bool:
    """Of `FramePieces`: all DATA frames come whole."""
    return True


class FramePieces:
    """Cuts a byte stream into frames, however its chunks fall; the bytes of DATA frames come as they arrive, in views of them.

    For whoever tells the place of a byte by its offset and does not need to know where a frame ended: nothing large is copied.

    Args:
        whole: tells of which channels DATA frames come whole all the same; asked when each begins.
    """

    def __init__(self, whole: Callable[[int], bool] = lambda channel: False) -> None:
        self._whole = whole
        self._buffer = bytearray()
        """Of a head, or of a frame that comes whole."""
        self._needed = HEAD.size
        """So many bytes of that make it whole."""
        self._place = (0, 0, 0)
        """Stream, channel and offset of the next piece."""
        self._left = 0
        """Of the DATA frame that is coming in pieces."""

    def feed(self, data: bytes | memoryview) -> Iterable[Frame]:
        """The frames in `data`, to be taken before the next call; pieces refer to it.

        Raises:
            FrameError: a head announces more than `MAX_PAYLOAD_BYTES`.
        """
        view = memoryview(data)
        position, end = 0, len(view)
        while position < end:
            if self._left:
                begin, position = position, min(end, position + self._left)
                stream, channel, offset = self._place
                self._place = (stream, channel, offset + position - begin)
                self._left -= position - begin
                yield Frame(FrameType.DATA, stream, channel, offset, cast("bytes", view[begin:position]))
            elif self._buffer or end - position < HEAD.size:
                piece = view[position : position + self._needed - len(self._buffer)]
                self._buffer += piece
                position += len(piece)
                if len(self._buffer) == self._needed and (frame := self._gathered()) is not None:
                    yield frame
            else:
                type, stream, channel, length, offset = HEAD.unpack_from(view, position)
                if length > MAX_PAYLOAD_BYTES:
                    raise _too_long(length)
                begin = position + HEAD.size
                stop = begin + length
                if type == FrameType.DATA and length and not self._whole(channel):
                    self._place, self._left, position = (stream, channel, offset), length, begin
                elif stop > end:
                    self._needed = HEAD.size + length
                    self._buffer += view[position:]
                    return
                else:
                    position = stop
                    yield Frame(type, stream, channel, offset, bytes(view[begin:stop]))

    def _gathered(self) -> Frame | None:
        """What was lacking has come: the frame, if it was not only its head."""
        type, stream, channel, length, offset = HEAD.unpack_from(self._buffer)
        if length > MAX_PAYLOAD_BYTES:
            raise _too_long(length)
        if self._needed < HEAD.size + length:
            if type != FrameType.DATA or self._whole(channel):
                self._needed += length
                return None
            self._place, self._left = (stream, channel, offset), length
            frame = None
        else:
            frame = Frame(type, stream, channel, offset, bytes(self._buffer[HEAD.size :]))
        self._buffer.clear()
        self._needed = HEAD.size
        return frame


class FrameDecoder(FramePieces):
    """Cuts a byte stream into whole frames."""

    def __init__(self) -> None:
        super().__init__(every_channel)

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames that `data` completes; nothing of it is referred to afterwards.

        Raises:
            FrameError: a head announces more than `MAX_PAYLOAD_BYTES`.
        """
        return list(super().feed(data))

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not whole yet: not zero at the end of a connection means that it was cut."""
        return len(self._buffer)
