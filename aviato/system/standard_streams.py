"""Descriptors 0, 1 and 2 are a program's standard streams and nothing else, also where it was started without them."""

from __future__ import annotations

import fcntl
import os

STDIN, STDOUT, STDERR = 0, 1, 2


def hold() -> None:
    """Put /dev/null where one is closed: what is opened next would have its number.

    A connection at 1 would be sent what is printed, and libuv ends a process that closes something below 3 (`abort`). Programs
    that this one starts see no difference. Costs less than a microsecond where all are open.
    """
    for fd in (STDIN, STDOUT, STDERR):
        try:
            fcntl.fcntl(fd, fcntl.F_GETFD)
        except OSError:
            _fill()
            return


def _fill() -> None:
    try:
        while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= STDERR:
            pass
    except OSError:
        return  # No descriptors are left, or there is no /dev: what comes next says so itself.
    os.close(fd)
