"""How far a run of many items is: a bar on a terminal once it takes longer than a second, else lines in the log."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from aviato.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_SECONDS = 1.0
BETWEEN_BARS_SECONDS = 0.1
BETWEEN_LINES_SECONDS = 10.0

_on_screen: Progress | None = None
"""A terminal has room for one bar."""


class Progress:
    """One run.

    Args:
        what: names it, such as `evaluate`.
        total: items in all.
        told: called with (items done, items in all) in place of all else; False: nobody is told.
    """

    def __init__(self, what: str, total: int, told: Callable[[int, int], object] | bool | None = None) -> None:
        self._what = what
        self._total = total
        self._told = told
        self._done = 0
        self._notes: dict[str, int] = {}
        self._begun = self._shown = time.monotonic()
        self._bar: Any = None

    def advance(self, note: str = "") -> None:
        """One more item is done; `note` says in a word how."""
        self._done += 1
        if note:
            self._notes[note] = self._notes.get(note, 0) + 1
        if callable(self._told):
            self._call(self._told)
        elif self._told is not False:
            self._show(time.monotonic())
        if self._done == self._total:
            self.close()

    def close(self) -> None:
        """Take the bar away."""
        global _on_screen
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()
        if _on_screen is self:
            _on_screen = None

    def _call(self, told: Callable[[int, int], object]) -> None:
        try:
            told(self._done, self._total)
        except Exception:
            logger.exception("the progress callback of %s raised; it goes on", self._what)

    def _show(self, now: float) -> None:
        global _on_screen
        if self._bar is None and _on_screen is None and now - self._begun >= FIRST_SECONDS and _is_terminal():
            self._bar, _on_screen = _bar(self._what, self._total), self
        if self._bar is not None:
            if now - self._shown >= BETWEEN_BARS_SECONDS or self._done == self._total:
                self._shown = now
                self._bar.update(0, completed=self._done, notes=self._said(), refresh=True)
        elif now - self._shown >= BETWEEN_LINES_SECONDS:
            self._shown = now
            logger.info(
                "%s: %d of %d done%s", self._what, self._done, self._total, f" ({said})" if (said := self._said()) else ""
            )

    def _said(self) -> str:
        return ", ".join(f"{count} {note}" for note, count in sorted(self._notes.items()))


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # closed, or put in its place by something that is no file
        return False


def _bar(what: str, total: int) -> Any:
    """A bar on stderr, which leaves nothing behind and draws only when told."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[notes]}", markup=False),
    )
    screen = Console(stderr=True, markup=False, emoji=False)
    bar = Bar(*columns, console=screen, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
    bar.start()
    bar.add_task(what, total=total, notes="")
    return bar
