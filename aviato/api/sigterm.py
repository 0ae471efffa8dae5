"""Cleaning up on SIGTERM, by choice."""

from __future__ import annotations

import os
import signal
from _thread import get_ident
from typing import Any


def stop_on_sigterm() -> None:
    """Clean up on SIGTERM as at a normal end, then do what the signal did before; a second one meanwhile does that at once.

    By choice, and from the main thread only.

    Raises:
        ValueError: on another thread.
    """
    global _previous_sigterm, _undo_registered
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        return
    _previous_sigterm = signal.signal(signal.SIGTERM, _on_sigterm)
    if not _undo_registered:
        _undo_registered = True
        os.register_at_fork(before=_hold_sigterm, after_in_parent=_let_sigterm_in, after_in_child=_undo_in_child)


_previous_sigterm: Any = signal.SIG_DFL
_undo_registered = False
_cleaning_up = False
_masks: dict[int, Any] = {}


def _on_sigterm(number: int, frame: Any) -> None:
    from aviato.bridge.loop import run_hooks

    global _cleaning_up
    previous = _previous_sigterm
    if not _cleaning_up:
        _cleaning_up = True
        try:
            run_hooks()
        finally:
            _cleaning_up = False
    if callable(previous):
        previous(number, frame)
    elif previous != signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _hold_sigterm() -> None:
    """Before a fork: the interpreter forgets signals that reach a child in its first moments, so they have to wait."""
    _masks[get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_sigterm_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.pop(get_ident()))


def _undo_in_child() -> None:
    """SIGTERM ends a forked child as it would have without us."""
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, _previous_sigterm)
    _let_sigterm_in()
