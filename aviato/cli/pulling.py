"""Pulls as a person sees them: bars on a terminal, else nothing until each has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from aviato.values.text import line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.progress import Progress, TaskID

    from aviato.results import ImageInfo

PHASES = {"resolving": "looking up", "pulling": "pulling", "unpacking": "unpacking", "done": "done"}


class Pulling:
    """Shows several pulls; use it with `with`.

    Args:
        ended: called once for each that is here or has failed.
        bars: whether standard error is a terminal that has bars.
    """

    def __init__(self, ended: Callable[[ImageInfo], None], *, bars: bool) -> None:
        self._ended = ended
        self._progress = _progress() if bars else None
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def tell(self, info: ImageInfo) -> None:
        """So much is known of one."""
        if self._progress is not None:
            self._draw(self._progress, info)
        if info.status != "pulling":
            self._ended(info)

    def _draw(self, progress: Progress, info: ImageInfo) -> None:
        bar = self._bars.get(info.reference)
        if info.status != "pulling":
            if bar is not None:
                progress.remove_task(bar)
            return
        layers = f"{info.layers_done}/{info.layers} layers" if info.layers else ""
        phase = PHASES[info.phase or "pulling"]
        if bar is None:
            bar = self._bars[info.reference] = progress.add_task(line(info.reference), total=None, phase=phase, layers=layers)
        progress.update(bar, completed=info.done_bytes, total=info.total_bytes, phase=phase, layers=layers)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[phase]}", markup=False),
        BarColumn(bar_width=30),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[layers]}", markup=False),
    )
    return Progress(*columns, console=Console(stderr=True, markup=False, emoji=False), transient=True)
