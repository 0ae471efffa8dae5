"""How far a pull is, as it is told to whoever waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from aviato.server.images.stored_image import Progress

if TYPE_CHECKING:
    from collections.abc import Callable


class PullProgress:
    """Counts, and tells those who listen."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Progress], None]] = []
        self._done_bytes = 0
        self._total_bytes: int | None = None
        self._layers_done = 0
        self._layers_total = 0
        self._is_whole = False

    def begin(self, total_bytes: int, layers_done: int, layers_total: int) -> None:
        """It is known what there is to do."""
        self._total_bytes, self._layers_done, self._layers_total = total_bytes, layers_done, layers_total
        self.tell()

    def add_bytes(self, count: int) -> None:
        """So many more are here."""
        if count:
            self._done_bytes += count
            self.tell()

    def add_layer(self) -> None:
        """One more is here whole."""
        self._layers_done += 1
        self.tell()

    def finish(self) -> None:
        """All is here."""
        self._is_whole = True
        self.tell()

    def now(self) -> Progress:
        """How far it is."""
        phase: Literal["resolving", "pulling", "unpacking", "done"] = "pulling"
        if self._is_whole:
            phase = "done"
        elif self._total_bytes is None:
            phase = "resolving"
        elif self._done_bytes >= self._total_bytes:
            phase = "unpacking"
        return Progress(phase, self._done_bytes, self._total_bytes, self._layers_done, self._layers_total)

    def tell(self) -> None:
        """Tell everybody."""
        now = self.now()
        for listener in [*self.listeners]:
            listener(now)
