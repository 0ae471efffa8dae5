"""Images of a server: have several there at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aviato.core.client import LONG_POLL_SECONDS
from aviato.exceptions import AviatoValidationError, SandboxImageError
from aviato.results import ImageInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aviato.core.client import Client
    from aviato.wire import images as wire

AT_ONCE = 4
"""Images of one call that are pulled at a time; each has several layers under way."""
TOLD_SECONDS = 0.5
"""How often it is asked how far a pull is, for those who want to know."""


async def prefetch(
    client: Client,
    references: Iterable[str],
    *,
    refresh: bool = False,
    name: str | None = None,
    on_progress: Callable[[ImageInfo], object] | None = None,
    on_end: Callable[[ImageInfo], object] | None = None,
) -> list[ImageInfo]:
    """Have images on a server, each once, in the order in which they are named first.

    Args:
        client: of the server.
        references: of the images.
        refresh: ask registries although images are here.
        name: one more name for the image, where it is one.
        on_progress: told whenever more is known of one, ends included.
        on_end: told how each has ended.

    Raises:
        SandboxImageError: none of them could be had.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(reference: str) -> ImageInfo:
        async with slots:
            info = await _pull(client, reference, refresh, name, on_progress)
        for tell in (on_progress, on_end):
            if tell is not None:
                tell(info)
        return info

    tasks = [asyncio.ensure_future(one(reference)) for reference in dict.fromkeys(references)]
    try:
        infos = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if infos and all(info.status == "failed" for info in infos):
        raise error_of(infos)
    return infos


async def _pull(
    client: Client, reference: str, refresh: bool, name: str | None, on_progress: Callable[[ImageInfo], object] | None
) -> ImageInfo:
    """An image that is here, or has failed to come."""
    seconds = LONG_POLL_SECONDS if on_progress is None else TOLD_SECONDS
    while True:
        try:
            info = public(await client.pull_image(reference, refresh=refresh, name=name, timeout_seconds=seconds))
        except (SandboxImageError, AviatoValidationError) as error:
            return ImageInfo(
                reference=reference,
                status="failed",
                message=str(error),
                reason=error.reason,
                is_infrastructure=error.is_infrastructure,
                retryable=error.retryable,
            )
        if info.status != "pulling":
            return info
        if on_progress is not None:
            on_progress(info)


def error_of(infos: list[ImageInfo]) -> SandboxImageError:
    """The error of images that have failed: that of the first."""
    first = infos[0]
    more = "" if len(infos) == 1 else f"; {len(infos) - 1} more could not be had either"
    return SandboxImageError(
        f"{first.message}{more}",
        reason=first.reason,
        is_infrastructure=first.is_infrastructure,
        retryable=first.retryable,
    )


def public(info: wire.ImageInfo) -> ImageInfo:
    """As users have it."""
    return ImageInfo(**info.model_dump())
