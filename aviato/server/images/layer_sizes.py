"""How much layers have.

What sandboxes have left is counted when somebody asks: a snapshot waits for no count, and a fork needs none.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from aviato.exceptions import SandboxImageError
from aviato.server.images.layers import ROOT, note_layer_size, read_layer_size
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aviato.server.images.image_index import RecordedLayer
    from aviato.server.images.unpacked_layer import Count


class LayerSizes:
    """Those of one store.

    Args:
        directory: of the store.
        count: says how much is in a layer; None: all are counted when they come.
    """

    def __init__(self, directory: Path, count: Count | None) -> None:
        self._directory = directory / "layers"
        self._count = count
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def sum(self, layers: Iterable[RecordedLayer]) -> int | None:
        """Of all of these, each once, in bytes; None where not all have been counted. Blocks for moments."""
        sizes = [self._known(layer) for layer in {layer.key: layer for layer in layers}.values()]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def least(self, layers: Iterable[RecordedLayer]) -> int:
        """What is known of the same sum. Blocks for moments."""
        return sum(self._known(layer) or 0 for layer in {layer.key: layer for layer in layers}.values())

    async def settle(self, layers: Iterable[RecordedLayer]) -> None:
        """Count those of these that nobody has counted; one that goes meanwhile, or cannot be counted, stays unknown."""
        unknown = await in_thread(lambda: [layer for layer in layers if self._known(layer) is None])
        if (count := self._count) is None:
            return
        for layer in {layer.key: layer for layer in unknown}.values():
            # A tree can be large, and any number of clients may ask at once.
            async with self._turns.setdefault(layer.key, asyncio.Lock()):
                with suppress(SandboxImageError, OSError, ValueError):
                    await self._settle(layer, count)

    async def _settle(self, layer: RecordedLayer, count: Count) -> None:
        path = self._directory / layer.key
        if await in_thread(self._known, layer) is None:
            counted = await count(path / ROOT)
            await in_thread(note_layer_size, path, counted.size_bytes, counted.files)

    def _known(self, layer: RecordedLayer) -> int | None:
        return layer.size_bytes if layer.size_bytes is not None else read_layer_size(self._directory / layer.key)
