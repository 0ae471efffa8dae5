"""Pulls of images, followed to their end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aviato.core.client import LONG_POLL_SECONDS
from aviato.exceptions import SandboxImageError
from aviato.results import ImageInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aviato.core.client import Client
    from aviato.wire.images import ImageInfo as SentInfo

AT_ONCE = 4
"""Pulls of one prefetch."""
BETWEEN_PROGRESS_SECONDS = 0.5


async def pull(
    client: Client,
    reference: str,
    *,
    refresh: bool = False,
    name: str | None = None,
    on_progress: Callable[[ImageInfo], object] | None = None,
) -> ImageInfo:
    """An image, once it is here or has failed."""
    seconds = LONG_POLL_SECONDS if on_progress is None else BETWEEN_PROGRESS_SECONDS
    while True:
        info = public(await client.pull_image(reference, refresh=refresh, timeout_seconds=seconds, name=name))
        if on_progress is not None:
            on_progress(info)
        if info.status != "pulling":
            return info
        refresh = False  # It has been asked for; a pull that ends between two polls is not to begin again.


async def have(
    client: Client,
    reference: str,
    *,
    refresh: bool = False,
    name: str | None = None,
    on_progress: Callable[[ImageInfo], object] | None = None,
) -> ImageInfo:
    """An image once it is here.

    Raises:
        SandboxImageError: it cannot be had; its `reason` says why.
    """
    info = await pull(client, reference, refresh=refresh, name=name, on_progress=on_progress)
    if info.status == "failed":
        message = info.message or f"image {reference!r} cannot be had"
        raise SandboxImageError(message, reason=info.reason, retryable=info.retryable)
    return info


async def prefetch(
    client: Client,
    references: Iterable[str],
    *,
    refresh: bool = False,
    on_progress: Callable[[ImageInfo], object] | None = None,
) -> list[ImageInfo]:
    """Pull images, each once, a few at a time; one that cannot be had is `failed`, and the others go on."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(reference: str) -> ImageInfo:
        async with free:
            try:
                return await pull(client, reference, refresh=refresh, on_progress=on_progress)
            except SandboxImageError as error:
                failed = ImageInfo(
                    reference=reference, status="failed", message=str(error), reason=error.reason, retryable=error.retryable
                )
        if on_progress is not None:
            on_progress(failed)
        return failed

    tasks = [asyncio.ensure_future(one(reference)) for reference in dict.fromkeys(references)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def public(info: SentInfo) -> ImageInfo:
    """What a server says of an image, as callers have it."""
    values = info.model_dump()
    for name in ("names", "entrypoint", "command", "shell"):
        values[name] = tuple(values[name])
    return ImageInfo(**values)
