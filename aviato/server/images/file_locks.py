"""Locks on files, between the processes that share a directory: the kernel lets go of them when a process ends."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOOK_SECONDS = 0.05
"""How often whoever waits looks again. A blocking wait could be cancelled by nobody."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """A lock that is held for moments only; waits for it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def try_to_hold(path: Path, *, make: bool = True) -> int | None:
    """A descriptor of a file that is locked by it and lies at its path; None while somebody else has it, or there is none."""
    try:
        fd = os.open(path, os.O_RDWR | (os.O_CREAT if make else 0) | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        if make:
            raise
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(fd, path):
            return fd
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)  # Else whoever had it has removed the file.
    return None


def hold_now(path: Path) -> int:
    """As `try_to_hold`, and waits for it. Blocks: only for what nobody else has for long."""
    while (fd := try_to_hold(path)) is None:  # Nobody tells of a lock that another process has let go.
        time.sleep(LOOK_SECONDS)
    return fd


async def hold(path: Path) -> int:
    """As `try_to_hold`, and waits for it."""
    held: list[int] = []

    def attempt() -> None:
        if (fd := try_to_hold(path)) is not None:
            held.append(fd)

    try:
        await in_thread(attempt)
        while not held:  # Nobody tells of a lock that another process has let go.
            await asyncio.sleep(LOOK_SECONDS)
            await in_thread(attempt)
    except asyncio.CancelledError:
        for fd in held:
            os.close(fd)
        raise
    return held[0]


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
