"""The broker's loop where the kernel or time is against it."""

from __future__ import annotations

import errno
import os

from aviato.grading.inside.loop import READ, Loop


class NoRoom:
    """An epoll at the end of its user's share."""

    def __init__(self, real):
        self.full = True
        self._real = real

    def register(self, fd, events):
        if self.full:
            raise OSError(errno.ENOSPC, "")
        self._real.register(fd, events)

    def __getattr__(self, name):
        return getattr(self._real, name)


def test_descriptors_that_epoll_has_no_room_for_are_tried():
    errors = []
    loop = Loop(errors.append)
    loop.begin()
    epoll = loop._epoll = NoRoom(loop._epoll)
    read, write = os.pipe2(os.O_NONBLOCK)
    got = []

    def ready(events):
        try:
            got.append(os.read(read, 10))
        except BlockingIOError:
            got.append(None)

    loop.watch(read, READ, ready)
    os.write(write, b"1")
    loop.turn()
    assert got == [b"1"]
    loop.turn()
    assert got == [b"1", None]
    epoll.full = False
    loop.turn()
    os.write(write, b"2")
    loop.turn()
    assert got[-1] == b"2"
    loop.forget(read)
    assert (loop._blind, loop._handlers, errors) == ({}, {}, [])
    os.close(read)
    os.close(write)


def test_cancelled_timers_do_not_pile_up():
    loop = Loop(lambda error: None)
    loop.begin()
    called = []
    loop.after(0, lambda: called.append(1))
    for _ in range(50_000):
        loop.after(86_400, lambda: None).cancel()
    assert len(loop._timers) < 5_000
    loop.turn()
    assert called == [1]


def stood_still(loop, seconds):
    """Have the loop find that so much time has passed since it looked at its clock."""
    real = loop.now
    loop.now = lambda: real() + seconds


def test_a_limit_that_comes_much_too_late_begins_anew_once():
    loop = Loop(lambda error: None)
    loop.begin()
    over = []
    timer = loop.limit(60, lambda: over.append("late"))
    cancelled = loop.limit(60, lambda: over.append("cancelled"))
    in_time = loop.limit(60, lambda: over.append("in time"))
    in_time.due += 0.5
    stood_still(loop, 61.4)
    loop.after(0, lambda: None)  # No turn waits.
    loop.turn()
    assert over == ["in time"]
    cancelled.cancel()
    assert 59 < timer.due - loop.now() <= 60
    stood_still(loop, 600)
    loop.after(0, lambda: None)
    loop.turn()
    assert over == ["in time", "late"]
