"""The window of an output stream: the same bytes whether it is a ring or not."""

from __future__ import annotations

import os
import random

import pytest

from aviato.server.supervisor.window import LARGE_PIECE_BYTES, PIECE_BYTES, WINDOW_BYTES, Window
from aviato.wire.frames import WIDE_WINDOW_BYTES


def fill(window: Window, data: bytes) -> int:
    """Have it read from a pipe with this in it; returns how much it took."""
    ours, theirs = os.pipe()
    try:
        os.write(theirs, data)
        return window.read(ours)
    finally:
        os.close(ours)
        os.close(theirs)


def test_any_order_of_reading_and_dropping() -> None:
    pick = random.Random(2)
    for _ in range(20):
        window, held = Window(), b""
        for step in range(120):
            if len(held) < window.limit_bytes and pick.random() < 0.6:
                data = pick.randbytes(pick.choice([1, 100, 4096, PIECE_BYTES]))
                count = fill(window, data)
                assert 0 < count <= len(data)
                held += data[:count]
            else:
                count = pick.randrange(len(held) + 1)
                window.drop(count)
                held = held[count:]
            if step == 40:
                window.grow()
                assert window.large
            if step == 70:
                window.widen()
                assert window.limit_bytes == WIDE_WINDOW_BYTES
            if step == 100 and pick.random() < 0.5:
                window.put(b"a line of its own")
                held += b"a line of its own"
            assert len(window) == len(held)
            assert window.rest == held
            seen, position = b"", 0
            while position < len(held):
                piece = bytes(window.peek(position))
                assert 0 < len(piece) <= LARGE_PIECE_BYTES
                seen += piece
                position += len(piece)
            assert seen == held


def test_a_full_ring_takes_no_more_and_loses_nothing() -> None:
    window = Window()
    window.grow()
    data = os.urandom(WINDOW_BYTES)
    for at in range(0, WINDOW_BYTES, PIECE_BYTES):
        assert fill(window, data[at : at + PIECE_BYTES]) == PIECE_BYTES
    assert window.rest == data
    window.drop(WINDOW_BYTES // 2 + 7)
    assert fill(window, b"x" * 100) == 100
    assert window.rest == data[WINDOW_BYTES // 2 + 7 :] + b"x" * 100


def test_a_ring_that_has_gone_round_becomes_wider() -> None:
    window, data = Window(), os.urandom(PIECE_BYTES)
    window.grow()
    while len(window) < WINDOW_BYTES:
        fill(window, data)
    window.drop(WINDOW_BYTES - 1000)
    fill(window, data)
    old = window.peek(0)
    window.widen()
    assert window.rest == data[-1000:] + data
    while len(window) < WIDE_WINDOW_BYTES:
        fill(window, data)
    assert window.rest == (data[-1000:] + data * (WIDE_WINDOW_BYTES // PIECE_BYTES))[:WIDE_WINDOW_BYTES]
    assert bytes(old) == data[-1000:]  # On its way, it stays what it was.


def test_what_is_put_has_room_in_any_case() -> None:
    window = Window()
    window.grow()
    data = os.urandom(PIECE_BYTES)
    while len(window) < WINDOW_BYTES:
        fill(window, data)
    window.put(b"killed")
    assert len(window) == WINDOW_BYTES + 6
    assert window.rest.endswith(data[-3:] + b"killed")
    window.grow()
    assert not window.large


def test_the_end_and_nothing_yet() -> None:
    for window in (Window(), Window()):
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        with pytest.raises(BlockingIOError):
            window.read(ours)
        os.close(theirs)
        assert window.read(ours) == 0
        os.close(ours)
        window.grow()
