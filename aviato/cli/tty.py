"""Joins this process's terminal to one in a sandbox."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import termios
import threading
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from aviato.cli import common, descriptors
from aviato.exceptions import AviatoError
from aviato.system.standard_streams import STDIN, STDOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aviato.aio.async_client import AsyncClient
    from aviato.aio.async_sandbox import AsyncSandbox
    from aviato.aio.async_terminal import AsyncTerminal

PIECE_BYTES = 64 << 10
ESCAPE = b"\r~."
STOP_SECONDS = 3.0
LEAVE_SECONDS = 2.0
"""How long the end of the command may take, once it has been asked for."""
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


async def in_new_sandbox(
    client: AsyncClient, command: Sequence[str], options: dict[str, Any], *, user: str | None = None
) -> int:
    """As `attach`, in a sandbox that is made with these options and ends with the command."""
    sandbox = await client.sandbox(**options)
    common.tell(sandbox)
    try:
        return await attach(sandbox, command, env=options.get("environment_variables", {}), user=user)
    finally:
        with suppress(TimeoutError):  # the client's own end says what becomes of it
            async with asyncio.timeout(STOP_SECONDS):
                await sandbox.stop(0, missing_ok=True)


async def attach(
    sandbox: AsyncSandbox, command: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None, user: str | None = None
) -> int:
    """Run a command on a terminal of the sandbox that this one shows; its returncode, or 128 + the signal that ended us.

    Args:
        sandbox: where it runs.
        command: program and arguments.
        env: variables of this command; without a TERM among them it has this terminal's.
        cwd: absolute; where it begins.
        user: who it is; None is the image's user, or root.

    Raises:
        AviatoError: it came to no returncode.
    """
    loop = asyncio.get_running_loop()
    kind = os.environ.get("TERM")  # What our terminal understands is what programs may send.
    terminal = sandbox.shell(command, *_size(), cwd=cwd, user=user, env={**({"TERM": kind} if kind else {}), **env})
    screen = Screen()
    showing = loop.create_task(_show(terminal, screen))
    ended_by: list[int] = []

    def end(number: int) -> None:
        ended_by.append(number)
        showing.cancel()
        terminal.cancel()
        # The second time it waits for no clean-up: the server may not answer.
        loop.call_later(LEAVE_SECONDS, terminal.cancel)

    resizer, keyboard = Resizer(terminal), Keyboard(terminal, end)
    # A signal that came between would leave the terminal raw.
    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, end, number)
    loop.add_signal_handler(signal.SIGWINCH, resizer.changed)
    try:
        with raw_mode(), keyboard, screen:
            await asyncio.wait([showing])
            if not showing.cancelled() and showing.exception() is not None:
                end(signal.SIGHUP)
            return (await terminal).returncode
    except asyncio.CancelledError:
        if not ended_by:
            raise
        return 128 + ended_by[0]
    finally:
        for number in (signal.SIGWINCH, *ENDING_SIGNALS):
            loop.remove_signal_handler(number)
        resizer.close()
        showing.cancel()
        terminal.cancel()


@contextmanager
def raw_mode() -> Iterator[None]:
    """Every key is a byte, and the terminal is as it was afterwards."""
    before = termios.tcgetattr(STDIN)
    try:
        tty.setraw(STDIN, termios.TCSANOW)
        yield
    finally:
        with suppress(termios.error):  # it was hung up
            termios.tcsetattr(STDIN, termios.TCSANOW, before)  # whoever is stuck writing to it is not waited for


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
        except BlockingIOError:
            return  # Somebody else has read it.
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


class Screen:
    """Writes to our terminal, in a thread of its own: one that takes nothing stops its writer, and nobody else."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunks: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()

    def __enter__(self) -> None:
        threading.Thread(target=self._run, name="aviato-screen", daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self._chunks.put(None)

    async def write(self, chunk: bytes) -> None:
        """Return when the terminal has taken it.

        Raises:
            OSError: it was hung up.
        """
        written: asyncio.Future[None] = self._loop.create_future()
        self._chunks.put((chunk, written))
        await written

    def _run(self) -> None:
        while (item := self._chunks.get()) is not None:
            chunk, written = item
            problem: OSError | None = None
            try:
                descriptors.write(STDOUT, chunk)
            except OSError as error:
                problem = error
            with suppress(RuntimeError):  # nobody waits any more: the loop is closed
                self._loop.call_soon_threadsafe(_settle, written, problem)


def _settle(written: asyncio.Future[None], problem: OSError | None) -> None:
    if written.done():
        return
    if problem is None:
        written.set_result(None)
    else:
        written.set_exception(problem)


async def _show(terminal: AsyncTerminal, screen: Screen) -> None:
    with suppress(AviatoError):  # `await terminal` raises it
        async for chunk in terminal.output:
            await screen.write(chunk)


def _size() -> tuple[int, int]:
    try:
        width, height = os.get_terminal_size(STDOUT)
    except OSError:
        width = height = 0
    return width or 80, height or 24
