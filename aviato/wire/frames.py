"""Frames: the one binary format, between client and server and between server and supervisor.

A frame has a head of 16 bytes, big-endian, then its payload::

    type u8 · stream u8 · channel u16 · length u32 · offset u64

`channel` is 0 between client and server (one exec a response); between server and supervisor it tells the requests that
share the connection apart. `offset` is the position of the first payload byte in its stream.

This module is loaded by supervisors too: standard library only.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

HEAD = struct.Struct(">BBHIQ")
INPUT_BYTES = 64 << 10
"""Input of up to so much comes with the request of its command; more is sent after it."""
MAX_PAYLOAD_BYTES = 4 << 20
"""A longer payload than this is a protocol error; data frames are cut well below it. A command as long as
Linux takes (2 MiB) fits."""


class FrameType(IntEnum):
    """What a frame carries. 1–15 are for every exec stream; 32 and up are between server and supervisor only."""

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
    """JSON: the sandbox ends, and why; the last frame of a supervisor."""


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


def encode(type: int, payload: bytes = b"", *, stream: int = 0, channel: int = 0, offset: int = 0) -> bytes:
    """The bytes of one frame."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"payload of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} fit a frame")
    return head(type, len(payload), stream=stream, channel=channel, offset=offset) + payload


def head(type: int, length: int, *, stream: int = 0, channel: int = 0, offset: int = 0) -> bytes:
    """The head of a frame whose payload follows."""
    return HEAD.pack(type, stream, channel, length, offset)


def _checked(length: int) -> int:
    if length > MAX_PAYLOAD_BYTES:
        raise FrameError(f"frame of {length} bytes announced; at most {MAX_PAYLOAD_BYTES} are allowed")
    return length


class FrameDecoder:
    """Cuts a byte stream into frames, however its chunks fall."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames that `data` completes; nothing of it is referred to afterwards.

        Raises:
            FrameError: a head announces more than `MAX_PAYLOAD_BYTES`.
        """
        frames: list[Frame] = []
        view = memoryview(data)
        position = self._complete(view, frames) if self._buffer else 0
        end = len(data)
        # Whole frames are cut out of `data` itself: each copy shows in what a large file costs.
        while end - position >= HEAD.size:
            type, stream, channel, length, offset = HEAD.unpack_from(view, position)
            begin = position + HEAD.size
            stop = begin + _checked(length)
            if stop > end:
                break
            frames.append(Frame(type, stream, channel, offset, bytes(view[begin:stop])))
            position = stop
        self._buffer += view[position:]
        return frames

    def _complete(self, data: memoryview, frames: list[Frame]) -> int:
        """Add what the frame that is not whole yet lacks; returns how much of `data` that took."""
        buffer, position = self._buffer, 0
        while True:
            whole = HEAD.size
            if len(buffer) >= HEAD.size:
                type, stream, channel, length, offset = HEAD.unpack_from(buffer)
                whole += _checked(length)
                if len(buffer) == whole:
                    frames.append(Frame(type, stream, channel, offset, bytes(buffer[HEAD.size :])))
                    buffer.clear()
                    return position
            piece = data[position : position + whole - len(buffer)]
            if not piece:
                return position
            buffer += piece
            position += len(piece)

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not whole yet: not zero at the end of a connection means that it was cut."""
        return len(self._buffer)
