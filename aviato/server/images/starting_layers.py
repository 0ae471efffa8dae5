"""Starting layers: the names that every sandbox of an image begins with, made once for each image.

A sandbox needs directories to mount on and a few names of its own, which most images lack. In its own layer they would cost the
disk's file system as much as several system calls each, and nobody else could have that layer afterwards.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from aviato.server.images.image_errors import image_error
from aviato.server.images.image_index import RecordedLayer
from aviato.server.images.layers import read_layer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aviato.server.images.image_index import ImageIndex, ImageRecord
    from aviato.server.images.layer_pull import LayerPulls

FORM = "2"
"""Of what is in one: servers of another form make their own."""


class StartingLayers:
    """Those of one store. They stay as long as their images.

    Args:
        directory: of the store.
        index: its images.
        layers: puts them in.
        move_in: whether what sandboxes leave can be moved here; else there are none.
        most_layers: that a sandbox can lie on.
    """

    def __init__(self, directory: Path, index: ImageIndex, layers: LayerPulls, move_in: bool, most_layers: int) -> None:
        self._directory = directory / "layers"
        self._index = index
        self._layers = layers
        self._moves_in = move_in
        self._most_layers = most_layers

    def find(self, record: ImageRecord) -> RecordedLayer | None:
        """That of an image, if it is here. Blocks."""
        if not self.can_be(record):
            return None
        key = key_of(record)
        found = read_layer(self._directory / key, _diff_id(key))
        return None if found is None else RecordedLayer(key=key, size_bytes=found.size_bytes)

    def can_be(self, record: ImageRecord) -> bool:
        """Whether an image can have one: a snapshot has that of the image below it."""
        return self._moves_in and record.snapshot is None and len(record.layers) < self._most_layers

    def put(self, image_id: str, left: Path) -> None:
        """Make it of what a sandbox of the image has in its layer at its start. Blocks for moments.

        Args:
            image_id: of the image.
            left: where that sandbox, which is dead, has left it.

        Raises:
            SandboxImageError: the image has gone.
            OSError: the disk fails.
        """
        record = self._index.record(image_id)
        if record is None:
            raise image_error("image_gone", f"the image {image_id} has been removed")

        def publish(put: Callable[[], RecordedLayer], diff_id: str) -> None:
            with self._index.alone():  # Nobody looks meanwhile which layers are of use.
                if self._index.record(image_id) is not None:
                    put()

        key = key_of(record)
        self._layers.move_in(left, key, _diff_id(key), publish)


def key_of(record: ImageRecord) -> str:
    """The name of the directory of an image's starting layer, whether it is there or not."""
    name = "\n".join(["start", FORM, record.config.working_dir or "", *(layer.key for layer in record.layers)])
    return hashlib.sha256(name.encode()).hexdigest()


def _diff_id(key: str) -> str:
    return f"sha256:{key}"
