"""Reads and writes the standard streams, whatever was given as them: pipes, sockets, files and terminals, blocking or not."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from typing import TYPE_CHECKING, NoReturn

from aviato.exceptions import AviatoValidationError
from aviato.system.standard_streams import STDERR, STDIN, STDOUT

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES = 64 << 10
NOBODY_READS = 128 + 13
"""Exit status where the reader of our output has gone, as a shell says it of a program that SIGPIPE has ended."""
FAILED = 125
_NAMES = {STDIN: "standard input", STDOUT: "standard output", STDERR: "standard error"}


class StreamError(OSError):
    """A standard stream cannot be used; its text is for the user."""

    def __str__(self) -> str:
        return str(self.strerror)


def read(fd: int) -> bytes:
    """What comes next, as soon as something is there; nothing is the end.

    Raises:
        StreamError: it cannot be read.
    """
    while True:
        try:
            return os.read(fd, PIECE_BYTES)
        except BlockingIOError:
            _wait(fd, select.POLLIN)
        except OSError as error:
            raise _named(fd, "read", error) from error


def write(fd: int, data: bytes | memoryview) -> None:
    """Write all of it, as its reader takes it.

    Raises:
        StreamError: it cannot be written; with EPIPE, nobody reads it any more.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            # Whoever shares the description with us has made it so, and may need it so: it stays as it is.
            _wait(fd, select.POLLOUT)
        except OSError as error:
            raise _named(fd, "written", error) from error


def be_patient() -> None:
    """Let what this process says itself wait, too, where its output or errors do not block."""
    for name, fd in (("stdout", STDOUT), ("stderr", STDERR)):
        stream = getattr(sys, name)
        if stream is not None and _is_at(stream, fd) and not os.get_blocking(fd):
            waiting = io.BufferedWriter(_Waiting(fd))
            again = io.TextIOWrapper(waiting, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
            setattr(sys, name, again)


def leave(error: OSError) -> NoReturn:
    """End, since a standard stream cannot be used: without a word where nobody reads any more, as other programs do."""
    quiet = error.errno == errno.EPIPE
    if not quiet:
        try:
            told = isinstance(error, StreamError) or error.filename is not None
            text = error if told else _named(STDOUT, "written", error)
            write(STDERR, f"aviato: {text}\n".encode(errors="backslashreplace"))
        except OSError:
            pass
    # The interpreter would try once more to write what is left over, and say that it cannot.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (STDOUT, STDERR):
        os.dup2(null, fd)
    os.close(null)
    sys.exit(NOBODY_READS if quiet else FAILED)


class _Waiting(io.RawIOBase):
    """A descriptor whose writers wait."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data)
        write(self._fd, view)
        return view.nbytes


def _is_at(stream: object, fd: int) -> bool:
    try:
        return stream.fileno() == fd  # type: ignore[attr-defined, no-any-return]
    except (AttributeError, OSError, ValueError):
        return False


def _wait(fd: int, event: int) -> None:
    waiting = select.poll()
    waiting.register(fd, event)
    waiting.poll()


def _named(fd: int, done: str, error: OSError) -> StreamError:
    return StreamError(error.errno, f"{_NAMES[fd]} cannot be {done}: {error.strerror}")


def check_terminal(who: str, otherwise: str) -> None:
    """Refuse to work without a terminal.

    Args:
        who: needs it.
        otherwise: what to do where there is none.

    Raises:
        AviatoValidationError: standard input or output is none.
    """
    if not (os.isatty(STDIN) and os.isatty(STDOUT)):
        raise AviatoValidationError(f"{who} needs a terminal as its input and output; {otherwise}")
