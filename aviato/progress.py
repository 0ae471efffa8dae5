"""How far a run is: a bar on a terminal once it takes longer than a second, one line in a notebook, else lines in the log.

`AVIATO_PROGRESS=0` shows nothing of it, unless a call asks by `progress=True`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from aviato.log import logger

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    Told: TypeAlias = Callable[[int, Any], object] | bool | None

VARIABLE = "AVIATO_PROGRESS"
FIRST_SECONDS = 1.0
BETWEEN_BARS_SECONDS = 0.1
BETWEEN_TICKS_SECONDS = 0.5
"""So often a bar moves on although nothing is done, to show that time passes."""
BETWEEN_LINES_SECONDS = 10.0

_on_screen: weakref.ref[Progress] | None = None
"""A terminal has room for one bar."""


class Progress:
    """One run, from any thread.

    Args:
        what: names it, such as `evaluate`; one printable line.
        total: items or bytes in all; None is not known.
        told: called with (done, total) in place of all else; False: nobody is told; None: unless `AVIATO_PROGRESS` says no.
        unit: what is counted.
        ticking: move a bar on although nothing is done; False leaves event loops alone.
        loop: does that where the thread that calls runs none.
    """

    def __init__(
        self,
        what: str,
        total: int | None,
        told: Told = None,
        *,
        unit: Literal["items", "bytes"] = "items",
        ticking: bool = True,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.what = what
        self.total = total
        self.unit = unit
        self.done = 0
        self._told = told if told is not None else _wanted()
        self._notes: dict[str, int] = {}
        self._begun = self._shown = time.monotonic()
        self._lines = 0
        self._said_of = -1
        self._screen: _Screen | None = None
        self._lock = threading.RLock()
        self._closed = False
        self._ticks = not ticking
        self.tick(loop)

    def tick(self, other: asyncio.AbstractEventLoop | None = None) -> None:
        """Move on by itself, on the running loop, else the other, if it does not yet and anybody would see it."""
        if not self._ticks and self._is_shown and (_may_draw() or logger.isEnabledFor(logging.INFO)):
            self._ticks = self._begin_to_tick(other)

    def advance(self, note: str = "", count: int = 1) -> None:
        """So much more is done; `note` says in a word how."""
        self.done += count
        if note:
            self._notes[note] = self._notes.get(note, 0) + 1
        if callable(self._told):
            self._call(self._told)
        elif self._is_shown:
            self._show(time.monotonic())
        if self.done == self.total:
            self.close()

    def restart(self) -> None:
        """What was done counts no more: it is done again."""
        self.done = 0

    def close(self) -> None:
        """Take the bar away; where lines were written, the last one says how far it came."""
        global _on_screen
        with self._lock:
            self._closed = True
            screen, self._screen = self._screen, None
            if screen is not None:
                screen.show(self)
                screen.stop()
                _on_screen = None
            elif self._lines and self._said_of != self.done:
                self._log()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_screen", None) is not None:  # an iteration that was left half way
            self.close()

    @property
    def said(self) -> str:
        """How things went so far, such as `2 failed, 7 passed`."""
        return ", ".join(f"{count} {note}" for note, count in sorted(self._notes.items()))

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._begun

    @property
    def amount(self) -> str:
        """How much is done, in words."""
        if self.unit == "items":
            return f"{self.done} of {self.total}"
        from rich.filesize import decimal

        return decimal(self.done) if self.total is None else f"{decimal(self.done)} of {decimal(self.total)}"

    def show(self) -> None:
        """Draw the bar now, on a terminal."""
        if self._is_shown:
            self._show(self._begun + FIRST_SECONDS, again=True)

    @property
    def _is_shown(self) -> bool:
        return self._told is True or self._told is None

    def _call(self, told: Callable[[int, Any], object]) -> None:
        try:
            told(self.done, self.total)
        except Exception:
            logger.exception("the progress callback of %s raised; it goes on", self.what)

    def _show(self, now: float, *, again: bool = False) -> None:
        global _on_screen
        with self._lock:
            if self._closed:
                return
            free = _on_screen is None or _on_screen() is None
            if self._screen is None and free and now - self._begun >= FIRST_SECONDS and _may_draw():
                self._screen, _on_screen, again = _screen(self), weakref.ref(self), True
            if self._screen is not None:
                if again or now - self._shown >= BETWEEN_BARS_SECONDS:
                    self._shown = now
                    self._screen.show(self)
            elif now - self._shown >= BETWEEN_LINES_SECONDS:
                self._shown = now
                self._log()

    def _log(self) -> None:
        self._lines += 1
        self._said_of = self.done
        logger.info("%s: %s done%s", self.what, self.amount, f" ({self.said})" if self.said else "")

    def _begin_to_tick(self, other: asyncio.AbstractEventLoop | None) -> bool:
        import asyncio

        running = asyncio._get_running_loop()
        if running is not None:
            _tick_later(weakref.ref(self), running, FIRST_SECONDS)
        elif other is not None:
            with suppress(RuntimeError):  # it has closed
                other.call_soon_threadsafe(_tick_later, weakref.ref(self), other, FIRST_SECONDS)
        return running is not None or other is not None

    def _tick(self) -> bool:
        """Draw; whether to go on."""
        if not self._closed:
            self._show(time.monotonic(), again=True)
        return not self._closed


def _tick_later(ref: weakref.ref[Progress], loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    loop.call_later(seconds, _tick, ref, loop)


def _tick(ref: weakref.ref[Progress], loop: asyncio.AbstractEventLoop) -> None:
    """Whoever lets go of a run is not kept by its clock."""
    if (run := ref()) is not None and run._tick():
        _tick_later(ref, loop, BETWEEN_TICKS_SECONDS)


_DUMB = ("dumb", "unknown")
"""Terminals on which nothing can be drawn anew."""


def _wanted() -> bool | None:
    return False if os.environ.get(VARIABLE, "").strip().lower() in ("0", "false", "no", "off") else None


def _may_draw() -> bool:
    return _in_notebook() or (_is_terminal(sys.stderr) and os.environ.get("TERM") not in _DUMB)


def _is_terminal(file: Any) -> bool:
    try:
        return bool(file.isatty())
    except (AttributeError, ValueError):  # closed, or put in its place by something that is no file
        return False


def _in_notebook() -> bool:
    """Whether cells show what is written: a terminal of IPython is a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ in ("ZMQInteractiveShell", "Shell")  # of Jupyter, and of Colab


class _Screen:
    """What a run is shown on."""

    def show(self, run: Progress) -> None:
        """Draw how far it is."""
        raise NotImplementedError

    def stop(self) -> None:
        """Leave the screen to others."""
        raise NotImplementedError


def _screen(run: Progress) -> _Screen:
    return _Line() if _in_notebook() else _Bar(run)


class _Line(_Screen):
    """One line that is written anew, as notebooks show it; the last one stays."""

    def __init__(self) -> None:
        self._width = 0

    def show(self, run: Progress) -> None:
        share = f"{run.done / run.total:4.0%} " if run.total else ""
        text = f"{run.what}: {share}{run.amount}, {run.seconds:.0f} s{f', {run.said}' if run.said else ''}"
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)

    def stop(self) -> None:
        sys.stderr.write("\n")
        sys.stderr.flush()


class _Bar(_Screen):
    """A bar on stderr, which leaves nothing behind and draws only when told; what is printed meanwhile stands above it."""

    def __init__(self, run: Progress) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        counts = (MofNCompleteColumn(),) if run.unit == "items" else (DownloadColumn(), TransferSpeedColumn())
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *counts,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[notes]}", markup=False),
            console=Console(stderr=True, markup=False, emoji=False, highlight=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(run.what, total=run.total, notes="")
        self._bar.tasks[0].start_time = self._bar.get_time() - run.seconds

    def show(self, run: Progress) -> None:
        self._bar.update(self._task, description=run.what, completed=run.done, total=run.total, notes=run.said, refresh=True)

    def stop(self) -> None:
        self._bar.stop()
