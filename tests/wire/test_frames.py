"""Frames come out as they went in, however the stream is cut."""

from __future__ import annotations

import random

import pytest

from aviato.wire.frames import HEAD, MAX_PAYLOAD_BYTES, Frame, FrameDecoder, FrameError, FrameType, encode

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
