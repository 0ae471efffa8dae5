"""Pseudo-terminals: made, given to a command, resized, read and typed into. Standard library only.

The supervisor never has the inner side of one open: it would be told the end of it too late, and it must not take it for its
own. The command is the leader of a new session, and the first terminal that such a one opens is its controlling terminal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
from typing import TYPE_CHECKING, Any

from aviato.server.supervisor.spawn import TERMINALS, Ends
from aviato.server.supervisor.streams import Input, Output

if TYPE_CHECKING:
    from aviato.server.supervisor.spawn import Connect

ENVIRONMENT = {"TERM": "xterm-256color"}
"""What a command on a terminal finds set, unless the sandbox or the command says otherwise."""
END_OF_FILE = b"\x04"
"""The key that ends input, unless a program chose another."""
PIPELINE_BYTES = 32 << 10
"""More than the kernel holds of a terminal's output on its way; how much it holds, it does not tell."""
FIRST_END_SECONDS, LAST_END_SECONDS = 0.05, 1.0
"""Pauses between two such keys, which are typed until the command has ended; they double from the one to the other."""
REOPEN_SECONDS = 0.01
"""Pause between two looks at a terminal that nobody inside has open."""
PIECES_A_TURN = 16
"""A terminal gives at most 4 KiB at a time."""

TIOCGPTN, TIOCSPTLCK = 0x80045430, 0x40045431
IUTF8 = 0o40000


def open_directory() -> int | None:
    """The sandbox's own terminals, before anything runs inside; None where there are none."""
    try:
        return os.open("/dev/pts", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def terminal(size: tuple[int, int], directory: int | None, machines: bool = False) -> Connect:
    """A new terminal for all three streams.

    Args:
        size: width and height in characters.
        directory: see `open_directory`.
        machines: whether that is the machine's, and not the sandbox's own.
    """

    def connect(opened: list[int]) -> tuple[Ends, list[tuple[Any, ...]]]:
        if directory is None:
            raise OSError(errno.ENODEV, "no terminals", TERMINALS)
        # The machine's own directory of terminals has no door; theirs is beside it.
        flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
        master = os.open("/dev/ptmx", flags) if machines else os.open(TERMINALS, flags, dir_fd=directory)
        opened.append(master)
        attributes = termios.tcgetattr(master)
        attributes[0] |= IUTF8
        termios.tcsetattr(master, termios.TCSANOW, attributes)
        _set_size(master, *size)
        opened.append(os.dup(master))
        fcntl.ioctl(master, TIOCSPTLCK, struct.pack("i", 0))
        number = struct.unpack("i", fcntl.ioctl(master, TIOCGPTN, bytes(4)))[0]
        inner = f"/proc/self/fd/{directory}/{number}"
        moves = [(os.POSIX_SPAWN_OPEN, 0, inner, os.O_RDWR, 0), (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
        return Ends(opened[1], master, None), moves

    return connect


def _set_size(master: int, width: int, height: int) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


class Screen(Output):
    """A terminal's output. That nobody has the terminal open is its end only once the command has exited."""

    def resize(self, width: int, height: int) -> None:
        """Another size; the processes in the foreground get SIGWINCH."""
        if self._fd is not None:
            try:
                _set_size(self._fd, width, height)
            except OSError:
                pass  # Whoever is inside may have made it something that has no size.

    def signal(self, number: int) -> None:
        """Send a signal to the processes in the foreground."""
        try:
            group = os.tcgetpgrp(self._fd) if self._fd is not None else 0
            if group > 1:
                os.killpg(group, number)
        except OSError:
            pass

    def _pending(self) -> int:
        return PIPELINE_BYTES

    def _ready(self, events: int) -> None:
        for _ in range(PIECES_A_TURN):
            if not self._read():
                break
        self._changed()

    def _ended(self) -> None:
        if self.target is not None:
            super()._ended()
        elif not self._resting:
            self._resting = True
            self._loop.after(REOPEN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._resting = False
        self._watch()


class Keyboard(Input):
    """A terminal's input. Its end is a key, and that nobody has the terminal open may change."""

    _resting = False
    _pause = FIRST_END_SECONDS

    def _end(self) -> None:
        self._buffer += END_OF_FILE

    def _exhausted(self) -> None:
        # The first one may only hand over an unfinished line, be lost while a shell takes over from a program, or end the
        # program before the shell. The end of a pipe is there for everyone and for good.
        self._rest(self._pause)

    def _broken(self) -> None:
        self._rest(REOPEN_SECONDS)

    def _rest(self, seconds: float) -> None:
        if self._watched and self._fd is not None:
            self._watched = False
            self._loop.forget(self._fd)
        if not self._resting:
            self._resting = True
            self._loop.after(seconds, self._look_again)

    def _look_again(self) -> None:
        self._resting = False
        if self._eof and not self._buffer and self._fd is not None:
            self._pause = min(2 * self._pause, LAST_END_SECONDS)
            self._end()
        self._push()
        self._admit()
