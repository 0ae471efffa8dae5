"""Frames come out as they went in, however the stream is cut."""

from __future__ import annotations

import random

import pytest

from aviato.wire.frames import HEAD, MAX_PAYLOAD_BYTES, Frame, FrameDecoder, FrameError, FramePieces, FrameType, encode

SIZES = (0, 1, 15, 16, 17, 40, 0, 0, 5)


def test_cut_at_every_byte_and_at_random() -> None:
    frames = [Frame(FrameType.DATA, 1, n, n << 33, bytes([n]) * size) for n, size in enumerate(SIZES)]
    stream = b"".join(encode(one.type, one.payload, stream=1, channel=one.channel, offset=one.offset) for one in frames)
    pick = random.Random(0)
    cuts = [[cut] for cut in range(len(stream) + 1)]
    cuts += [sorted(pick.sample(range(len(stream)), pick.randrange(1, 40))) for _ in range(300)]
    for places in (*cuts, list(range(len(stream)))):
        decoder, found = FrameDecoder(), []
        for begin, end in zip([0, *places], [*places, len(stream)], strict=True):
            found += decoder.feed(stream[begin:end])
        assert found == frames and all(type(one.payload) is bytes for one in found)
        assert decoder.pending_bytes == 0
    decoder = FrameDecoder()
    assert decoder.feed(stream[:-3]) == frames[:-1] and decoder.pending_bytes == HEAD.size + 2


@pytest.mark.parametrize("first", [0, 5, 16])
def test_a_frame_that_announces_too_much(first: int) -> None:
    head = HEAD.pack(FrameType.DATA, 0, 0, MAX_PAYLOAD_BYTES + 1, 0)
    decoder = FrameDecoder()
    with pytest.raises(FrameError, match="announced"):
        decoder.feed(head[:first])
        decoder.feed(head[first:])


@pytest.mark.parametrize("whole", [False, True])
def test_pieces_are_the_same_bytes_at_the_same_places(whole: bool) -> None:
    pick = random.Random(1)
    sent, stream = [], b""
    for channel in (1, 2):
        offset = 0
        for size in (0, 1, 15, 16, 17, 40, 3, 5, 300):
            kind = FrameType.DATA if size % 5 else FrameType.STARTED
            one = Frame(kind, channel % 2, channel, offset, pick.randbytes(size))
            stream += encode(kind, one.payload, stream=one.stream, channel=channel, offset=offset)
            sent.append(one)
            offset += size
    others = [one for one in sent if one.type != FrameType.DATA or not one.payload]
    cuts = [[cut] for cut in range(len(stream) + 1)]
    cuts += [sorted(pick.sample(range(len(stream)), pick.randrange(1, 60))) for _ in range(200)]
    for places in (*cuts, list(range(len(stream)))):
        decoder, found, bytes_found = FramePieces(lambda channel: whole and channel == 2), [], {1: b"", 2: b""}
        room = bytearray(len(stream))
        for begin, end in zip([0, *places], [*places, len(stream)], strict=True):
            room[: end - begin] = stream[begin:end]  # The same memory each time, so nothing may be kept of it.
            for frame in decoder.feed(memoryview(room)[: end - begin]):
                if frame.type == FrameType.DATA and frame.payload:
                    gone = sum(len(one.payload) for one in others if one.channel == frame.channel and one.offset < frame.offset)
                    assert frame.offset == len(bytes_found[frame.channel]) + gone
                    bytes_found[frame.channel] += bytes(frame.payload)
                    if whole and frame.channel == 2:
                        assert frame in sent
                else:
                    found.append(frame)
        assert found == others
        for channel, content in bytes_found.items():
            assert content == b"".join(one.payload for one in sent if one.channel == channel and one.type == FrameType.DATA)


@pytest.mark.parametrize("first", [0, 5, 16])
@pytest.mark.parametrize("kind", [FrameType.DATA, FrameType.REPLY])
def test_pieces_of_a_frame_that_announces_too_much(first: int, kind: FrameType) -> None:
    head = HEAD.pack(kind, 0, 0, MAX_PAYLOAD_BYTES + 1, 0)
    decoder = FramePieces()
    with pytest.raises(FrameError, match="announced"):
        list(decoder.feed(head[:first]))
        list(decoder.feed(head[first:]))
