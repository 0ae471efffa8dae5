"""Joins this process's terminal to one in a sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoError, AviatoValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aviato.async_client import AsyncSandbox
    from aviato.terminal import AsyncTerminal

PIECE_BYTES = 64 << 10
ESCAPE = b"\r~."
STDIN, STDOUT = 0, 1
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def check_terminal() -> None:
    """Refuse to work without a terminal.

    Raises:
        AviatoValidationError: standard input or output is none.
    """
    if not (os.isatty(STDIN) and os.isatty(STDOUT)):
        raise AviatoValidationError(
            "`aviato sh` needs a terminal as its input and output; in a pipe use `aviato run -i` or `aviato exec -i`"
        )


async def attach(sandbox: AsyncSandbox, command: Sequence[str], **options: Any) -> int:
    """Run a command on a terminal of the sandbox that this one shows; its returncode, or 128 + the signal that ended us.

    Raises:
        AviatoError: it came to no returncode.
    """
    loop = asyncio.get_running_loop()
    terminal = sandbox.shell(command, *_size(), **options)
    ended_by: list[int] = []

    def end(number: int) -> None:
        ended_by.append(number)
        terminal.cancel()

    resizer, keyboard = Resizer(terminal), Keyboard(terminal, end)
    # A signal that came between would leave the terminal raw.
    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, end, number)
    loop.add_signal_handler(signal.SIGWINCH, resizer.changed)
    try:
        with raw_mode(), keyboard:
            await _show(terminal, end)
            return (await terminal).returncode
    except asyncio.CancelledError:
        if not ended_by:
            raise
        return 128 + ended_by[0]
    finally:
        for number in (signal.SIGWINCH, *ENDING_SIGNALS):
            loop.remove_signal_handler(number)
        resizer.close()
        terminal.cancel()


@contextmanager
def raw_mode() -> Iterator[None]:
    """Every key is a byte, and the terminal is as it was afterwards."""
    before = termios.tcgetattr(STDIN)
    try:
        tty.setraw(STDIN, termios.TCSADRAIN)
        yield
    finally:
        with suppress(termios.error):  # it was hung up
            termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


class Keyboard:
    """Passes on what is typed. Enter, `~`, `.` is the way out of a terminal that answers to nothing.

    Args:
        terminal: where it goes.
        end: called with the signal that the way out, or the loss of our terminal, counts as.
    """

    def __init__(self, terminal: AsyncTerminal, end: Callable[[int], None]) -> None:
        self._terminal = terminal
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._typed: asyncio.Queue[bytes] = asyncio.Queue()
        self._last = b"\r"

    def __enter__(self) -> None:
        self._task = self._loop.create_task(self._send())
        self._loop.add_reader(STDIN, self._read)

    def __exit__(self, *error: object) -> None:
        self._loop.remove_reader(STDIN)
        self._task.cancel()

    def _read(self) -> None:
        try:
            piece = os.read(STDIN, PIECE_BYTES)
        except OSError:
            piece = b""
        if not piece:
            self._loop.remove_reader(STDIN)
            self._end(signal.SIGHUP)
        elif ESCAPE in self._last + piece:
            self._end(signal.SIGINT)
        self._last = (self._last + piece)[1 - len(ESCAPE) :]
        self._typed.put_nowait(piece)

    async def _send(self) -> None:
        """All that came while a piece was on its way goes as one."""
        with suppress(AviatoError):
            while True:
                piece = await self._typed.get()
                while not self._typed.empty():
                    piece += self._typed.get_nowait()
                await self._terminal.write_stdin(piece)


class Resizer:
    """Passes our window's size on; of many changes in a row the last one."""

    def __init__(self, terminal: AsyncTerminal) -> None:
        self._terminal = terminal
        self._size = _size()
        self._task: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """The window may have another size."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def close(self) -> None:
        """Follow no more."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        with suppress(AviatoError):
            while (size := _size()) != self._size:
                self._size = size
                await self._terminal.resize(*size)


async def _show(terminal: AsyncTerminal, end: Callable[[int], None]) -> None:
    try:
        async for chunk in terminal.output:
            # Writing blocks while our terminal is slow, and the command is slowed down with it.
            view = memoryview(chunk)
            while view:
                view = view[os.write(STDOUT, view) :]
    except AviatoError:
        pass  # `await terminal` raises it
    except OSError:
        end(signal.SIGHUP)


def _size() -> tuple[int, int]:
    try:
        width, height = os.get_terminal_size(STDOUT)
    except OSError:
        width = height = 0
    return width or 80, height or 24
