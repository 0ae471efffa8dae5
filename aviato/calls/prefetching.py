"""Images that a session will need, pulled before its sandboxes are made; on the loop thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.calls.sandbox_state import connect
from aviato.progress import Progress

if TYPE_CHECKING:
    from aviato.calls.sandbox_config import Connection
    from aviato.policy.metrics import Metrics
    from aviato.progress import Told
    from aviato.results import ImageInfo

FEW = 2
"""Up to so many images it is not shown how far it is, unless a call asks for it."""


async def prefetch(
    connection: Connection, references: tuple[str, ...], *, refresh: bool, metrics: Metrics, progress: Told
) -> list[ImageInfo]:
    """Have images on a server.

    Args:
        connection: to the server.
        references: of the images.
        refresh: ask registries although images are here.
        metrics: count what came of each.
        progress: how far it is.

    Raises:
        SandboxImageError: none of them could be had.
    """
    from aviato.core import images

    client, _ = connect(connection, metrics)
    few = progress is None and len(references) <= FEW
    bar = Progress("prefetch", len(references), False if few else progress)

    def ended(info: ImageInfo) -> None:
        if info.status == "failed":
            metrics.image_failed()
        elif info.pull_seconds is None:
            metrics.image_was_here()
        else:
            metrics.image_pulled(info.pull_seconds)
        bar.advance()

    try:
        return await images.prefetch(client, references, refresh=refresh, on_end=ended)
    finally:
        bar.close()
