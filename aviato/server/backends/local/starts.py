"""Makes the starting layers of images: each of a sandbox that nobody is in, once."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError
from aviato.server.backends.base import SandboxSpec
from aviato.system.threads import in_thread
from aviato.wire.ids import new_sandbox_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from aviato.server.images.resolved import ResolvedImage
    from aviato.server.images.store import ImageStore

log = logging.getLogger(__name__)


class Starts:
    """Those of one backend.

    Args:
        make: makes a sandbox, kills it, and says where its layer lies.
        destroy: takes away what is left of it.
    """

    def __init__(self, make: Callable[[SandboxSpec], Awaitable[Path]], destroy: Callable[[str], Awaitable[None]]) -> None:
        self._make = make
        self._destroy = destroy
        self._making: dict[str, asyncio.Task[None]] = {}
        self._without: set[str] = set()
        """Images for which it failed: their sandboxes have all of it in their own layers."""

    async def over(self, image: ResolvedImage, store: ImageStore) -> ResolvedImage:
        """The same image over its starting layer; as it is where there can be none."""
        assert image.image_id is not None
        if image.image_id in self._without:
            return image
        task = self._making.get(image.image_id)
        if task is None:
            task = self._making[image.image_id] = asyncio.create_task(self._put(image, image.image_id, store))
            task.add_done_callback(lambda _: self._making.pop(str(image.image_id), None))
        await asyncio.wait((task,))
        found = await in_thread(store.unpacked, image.image_id)
        return image if found is None else replace(image, layers=found.layers, top=found.top, lacks_start=False)

    async def close(self) -> None:
        """Wait for those that are being made."""
        await asyncio.gather(*self._making.values(), return_exceptions=True)

    async def _put(self, image: ResolvedImage, image_id: str, store: ImageStore) -> None:
        spec = SandboxSpec(sandbox_id=new_sandbox_id(), image=image)
        try:
            try:
                await store.put_start(image_id, await self._make(spec))
            finally:
                await self._destroy(spec.sandbox_id)
        except (AviatoError, OSError) as error:
            self._without.add(image_id)
            log.warning("image %s cannot have a starting layer: %s", image.reference, error)
