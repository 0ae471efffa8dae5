"""Who is told what a session counted."""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from aviato.exceptions import AviatoValidationError
from aviato.log import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aviato.policy.metrics import Metrics, Snapshot

REPORTERS_GROUP = "aviato.reporters"
BUILT_IN = {"wandb": "aviato.integrations.wandb:WandbReporter"}

_lock = threading.Lock()
_made: dict[str, Reporter] = {}


@runtime_checkable
class Reporter(Protocol):
    """Somewhere that metrics are logged to.

    Ours are known by name; those of other packages by the entry point group `aviato.reporters`, which names a callable that
    makes one. There is one for the process, and one thread at a time that logs.
    """

    name: str

    def log(self, metrics: Snapshot, step: int | None) -> bool:
        """Log one row; False when there is nowhere to log it to now, such as no active run."""
        ...


class Reporting:
    """Where one session reports to.

    Args:
        report_to: None is W&B whenever it has an active run; a list names reporters.

    Raises:
        TypeError: a bare string, or no names.
        AviatoValidationError: a reporter that does not exist, or whose package is not installed.
    """

    def __init__(self, report_to: Sequence[str] | None) -> None:
        if isinstance(report_to, str):
            raise TypeError(f"report_to must be a list of names, not one string: write [{report_to!r}]")
        self._names = None if report_to is None else list(dict.fromkeys(report_to))
        self._warned = False
        for name in self._names or ():
            find(name)

    @property
    def is_off(self) -> bool:
        """`report_to=[]`: counted, and never told anyone."""
        return self._names == []

    def log(self, metrics: Metrics, step: int | None, *, reset: bool, rest: bool = False) -> bool:
        """Whether anyone logged them.

        Args:
            metrics: what was counted.
            step: of the training run.
            reset: begin to count anew, if they were logged.
            rest: only if something was counted that is not logged yet.
        """
        reporters = self._reporters()
        if not reporters:
            return False
        with _lock:
            if rest and not metrics.has_news:
                return False
            snapshot = metrics.take()
            silent = [reporter.name for reporter in reporters if not _log(reporter, snapshot, step)]
            logged = len(silent) < len(reporters)
            if not logged:
                metrics.log_failed()
            elif reset:
                metrics.discard(snapshot)
        if silent and self._names and not self._warned:
            self._warned = True
            logger.warning("metrics of a session were not logged to %s: it has no active run here", ", ".join(silent))
        return logged

    def _reporters(self) -> list[Reporter]:
        if self._names is not None:
            return [find(name) for name in self._names]
        if "wandb" not in sys.modules and "wandb" not in _made:
            # No run can be active. And at exit after a Ctrl-C nothing may be imported that runs `exec`, as `dataclass` does:
            # Python would forget that it was interrupted and end with 1.
            return []
        try:
            return [find("wandb")]
        except AviatoValidationError:
            return []


def find(name: str) -> Reporter:
    """The reporter of that name; of one kind there is one in the process.

    Raises:
        TypeError: no name.
        AviatoValidationError: there is none, or it cannot be loaded.
    """
    if not isinstance(name, str):
        raise TypeError(f"report_to must be a list of names, not of {type(name).__name__}")
    if name not in _made:
        _made[name] = _load(name)
    return _made[name]


def _load(name: str) -> Reporter:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        built_in: Reporter = getattr(import_module(module), attribute)()
        return built_in
    from importlib.metadata import entry_points

    others = entry_points(group=REPORTERS_GROUP)
    for entry in others.select(name=name):
        try:
            made: Reporter = entry.load()()
        except Exception as error:
            raise AviatoValidationError(
                f"report_to names {name!r}, and {entry.value} cannot be loaded: {error}",
                field_violations={"report_to": "cannot be loaded"},
            ) from error
        return made
    known = ", ".join(sorted({*BUILT_IN, *others.names}))
    raise AviatoValidationError(
        f"report_to names {name!r}, which is no reporter here; there is: {known}",
        field_violations={"report_to": "unknown"},
    )


def _log(reporter: Reporter, metrics: Snapshot, step: int | None) -> bool:
    try:
        return reporter.log(metrics, step)
    except Exception:
        logger.warning("the reporter %r failed", reporter.name, exc_info=True)
        return False


def _begin_in_child() -> None:
    """A lock held at the fork by another thread has no holder in the child."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_begin_in_child)
