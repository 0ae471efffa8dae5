"""What is on its way to a reader, who may be slow."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Backpressure:
    """Of one stream of frames.

    Attributes:
        sending_bytes: of a piece that its reader has not taken yet.
        sending_since: by the loop's clock.
        cut: breaks the connection; who reads on comes back for the rest.
        by_memory: of large output only the places in memory are sent, which are worth sending at once.
        is_quiet: it has begun and has said nothing yet, and its caller waits for what it says or for its end.
        is_fed: its input is still to come, from a caller who waits to hear that it has begun.
    """

    sending_bytes = 0
    sending_since = 0.0
    cut: Callable[[], None] | None = None
    by_memory = False
    is_quiet = False
    is_fed = False

    @contextmanager
    def sending(self, size_bytes: int) -> Iterator[None]:
        """A piece is being sent within the context; where its reader is slow that takes as long as it likes."""
        self.sending_bytes, self.sending_since = size_bytes, asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self.sending_bytes = 0
