"""What is in the pipes of a child that has ended or was left behind. Standard library only.

Process 1 of every sandbox imports it. It is also a part of the program that runs tests in a grader's sandbox (`broker.py`), so
Python 3.8 has to take it.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
from typing import TYPE_CHECKING

from aviato.grading.inside.loop import READ

if TYPE_CHECKING:
    from aviato.grading.inside.loop import Loop

DRAIN_BYTES = 64 << 10


def unread_bytes(fd: int) -> int:
    """How many bytes were written to a pipe, or a terminal, and not read yet; at least. By either end."""
    waiting = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, waiting)
    return waiting[0]


class Drain:
    """The pipe of a child that outlived its command: read and thrown away, so that it neither blocks nor dies of SIGPIPE."""

    def __init__(self, loop: Loop, fd: int, drains: set[Drain]) -> None:
        self._loop = loop
        self._fd = fd
        self._drains = drains
        drains.add(self)
        loop.watch(fd, READ, self._ready)

    def _ready(self, events: int) -> None:
        try:
            if os.read(self._fd, DRAIN_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._loop.forget(self._fd)
        os.close(self._fd)
        self._drains.discard(self)
