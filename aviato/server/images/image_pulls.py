"""The pulls of one store: who asks for an image that is on its way joins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aviato.server.images.image_pull import PullPlaces, pull_image
from aviato.server.images.platforms import this_platform
from aviato.server.images.pull_progress import PullProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aviato.server.images.image_index import ImageIndex, ImageRecord
    from aviato.server.images.image_trash import ImageTrash
    from aviato.server.images.layer_leases import LayerLeases
    from aviato.server.images.layer_pull import LayerPulls
    from aviato.server.images.oci_reference import OciReference
    from aviato.server.images.patience import Patience
    from aviato.server.images.stored_image import Progress
    from aviato.server.images.unpacked_layer import UnpackLimits


class ImagePulls:
    """Pulls into one store.

    Args:
        directory: of the store.
        index: its images.
        leases: what its pulls need.
        trash: where things go.
        layers: puts layers in.
        mirrors: by registry, the hosts that are asked before it.
        limits: what one layer may become.
        patience: with registries.
    """

    def __init__(
        self,
        directory: Path,
        index: ImageIndex,
        leases: LayerLeases,
        trash: ImageTrash,
        layers: LayerPulls,
        *,
        mirrors: Mapping[str, tuple[str, ...]],
        limits: UnpackLimits,
        patience: Patience,
    ) -> None:
        self._trash = trash
        self._places = PullPlaces(
            directory=directory,
            index=index,
            leases=leases,
            layers=layers,
            own=this_platform(),
            mirrors=mirrors,
            patience=patience,
            most_bytes=limits.most_bytes,
        )
        self._running: dict[str, _Running] = {}

    async def pull(
        self,
        reference: OciReference,
        on_progress: Callable[[Progress], None] | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> ImageRecord:
        """Have an image; a pull ends when nobody waits for it any more, and the next one goes on with it.

        Args:
            reference: of the image.
            on_progress: called in the loop, now and then.
            on_begin: called where this is the call that begins it.

        Raises:
            SandboxImageError: it cannot be had.
            OSError: the disk of the store fails.
        """
        running = self._running.get(reference.name)
        if running is None:
            running = self._running[reference.name] = _Running()
            running.task = asyncio.create_task(self._pull(reference, running), name=f"pull {reference.name}")
            if on_begin is not None:
                on_begin()
        running.waiting += 1
        if on_progress is not None:
            running.progress.listeners.append(on_progress)
        try:
            return await asyncio.shield(running.task)
        finally:
            running.waiting -= 1
            if on_progress is not None:
                running.progress.listeners.remove(on_progress)
            if not running.waiting and not running.task.done():
                self._forget(reference.name, running)
                running.task.cancel()
                await asyncio.wait({running.task})

    def under_way(self) -> dict[str, Progress]:
        """How far each is, by its name."""
        return {name: running.progress.now() for name, running in self._running.items()}

    async def _pull(self, reference: OciReference, running: _Running) -> ImageRecord:
        try:
            return await pull_image(self._places, reference, running.progress)
        finally:
            self._forget(reference.name, running)
            await self._trash.empty()

    def _forget(self, name: str, running: _Running) -> None:
        if self._running.get(name) is running:
            del self._running[name]


class _Running:
    """A pull under way."""

    task: asyncio.Task[ImageRecord]

    def __init__(self) -> None:
        self.progress = PullProgress()
        self.waiting = 0
