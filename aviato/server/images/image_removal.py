"""How images and layers leave a store, so that no sandbox loses one and a process that ends in between changes nothing."""

from __future__ import annotations

import errno
import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aviato.server.images.file_locks import try_to_hold
from aviato.server.images.layers import read_layer_size
from aviato.server.images.starting_layers import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aviato.server.images.image_index import ImageIndex, ImageRecord
    from aviato.server.images.image_trash import ImageTrash
    from aviato.server.images.image_uses import ImageUses
    from aviato.server.images.layer_leases import LayerLeases
    from aviato.server.images.layer_sizes import LayerSizes

_DIGEST = re.compile(r"[0-9a-f]{64}(?:-[0-9a-f]+)?")
OLD_SECONDS = 7 * 24 * 3600.0
"""What was downloaded of a layer is kept so long for somebody who goes on with it."""


class ImageRemoval:
    """Removes from one store. Everything here blocks for moments, and is called within `ImageIndex.alone`.

    Args:
        directory: of the store.
        index: its images and names.
        uses: its sandboxes.
        leases: its pulls.
        trash: where things go.
        sizes: of layers.
    """

    def __init__(
        self, directory: Path, index: ImageIndex, uses: ImageUses, leases: LayerLeases, trash: ImageTrash, sizes: LayerSizes
    ) -> None:
        self._directory = directory
        self._blobs = directory / "blobs"
        self._index = index
        self._uses = uses
        self._leases = leases
        self._trash = trash
        self._sizes = sizes

    def settle(self) -> None:
        """Decide about records that a process took away and did not decide about before it ended, and about names of none."""
        for path, image_id in self._trash.records():
            if self._uses.alive(image_id):
                self._put_back(path, image_id)
            else:
                path.unlink(missing_ok=True)
                self._uses.forget(image_id)
        self._drop_names(self.names_of_none())

    def names_of_none(self) -> list[str]:
        """Names that mean an image which has gone: there was no room on the disk to write that they went, too."""
        names = self._index.names()
        there = set(self._index.ids()) if names else set()
        return [name for name, meant in names.items() if meant.image_id not in there]

    def remove(self, image_id: str) -> list[str]:
        """Take an image away, unless sandboxes have it.

        Returns:
            The sandboxes that have it; none if it has gone.
        """
        taken = self._trash.take_record(self._index.path(image_id))
        if taken is None:
            return []
        using = self._uses.alive(image_id)
        if using:
            self._put_back(taken, image_id)
            return using
        self._drop_names([name for name, meant in self._index.names(anew=True).items() if meant.image_id == image_id])
        taken.unlink(missing_ok=True)
        self._uses.forget(image_id)
        return []

    def sweep(self) -> int:
        """Take away layers that no image has and no pull needs.

        Returns:
            Their bytes.
        """
        needed = self._leases.keys()
        records = [*self._index.records()]
        for record in records:
            needed.update(layer.key for layer in record.layers)
            needed.add(key_of(record))
        if len(records) < len(self._index.ids()):
            return 0  # A record is damaged, so nobody knows which layers its image has.
        freed = 0
        for key in os.listdir(self._directory / "layers"):
            if key not in needed:
                size = read_layer_size(self._directory / "layers" / key)
                if self._trash.take(self._directory / "layers" / key) is not None:
                    freed += size or 0
        return freed

    def has_old_downloads(self) -> bool:
        """Whether `sweep_downloads` may find something. Needs no lock."""
        return any(self._is_old(stem, OLD_SECONDS) for stem in self._downloads())

    def sweep_downloads(self, unused_seconds: float = OLD_SECONDS) -> int:
        """Take away what was downloaded of layers so long ago, and at once what nobody can go on with, where nobody is at it.

        Returns:
            Its bytes.
        """
        freed = 0
        for stem in self._downloads():
            part = self._blobs / f"{stem}.part"
            if not self._is_old(stem, unused_seconds) or (fd := try_to_hold(part)) is None:
                continue
            try:
                freed += os.fstat(fd).st_blocks * 512
                self._trash.take(part.with_suffix(".tree"))
                part.unlink(missing_ok=True)
            finally:
                os.close(fd)
        return freed

    def _downloads(self) -> set[str]:
        """What downloads, and what is made of them, are called."""
        return {name.rpartition(".")[0] for name in os.listdir(self._blobs) if name.endswith((".part", ".tree"))}

    def _is_old(self, stem: str, unused_seconds: float) -> bool:
        try:
            written_at = os.stat(self._blobs / f"{stem}.part").st_mtime
        except FileNotFoundError:
            return True  # Who makes a tree has the other file before.
        # One of another name was drawn by whoever unpacked what is called by its digest in the end.
        return _DIGEST.fullmatch(stem) is None or time.time() - written_at >= unused_seconds

    def prune(self, most_bytes: int, unused_seconds: float, kept: frozenset[str]) -> None:
        """Take images away, the longest unused first, until the others have so many bytes.

        Args:
            most_bytes: that all layers may have together; 0 takes all images away that may go.
            unused_seconds: images that were in use after that stay.
            kept: ids of images that stay too.
        """
        records = {record.image_id: record for record in self._index.records()}
        for image_id in set(self._index.ids()) - records.keys():
            self.remove(image_id)  # Its record is damaged.
        now = time.time()
        for record in sorted(records.values(), key=self.used_at):
            if most_bytes > 0 and self._size(records) <= most_bytes:
                return
            self._uses.tidy(record.image_id)
            if record.pinned or record.image_id in kept or now - self.used_at(record) < unused_seconds:
                continue
            if not self.remove(record.image_id):
                del records[record.image_id]

    def used_at(self, record: ImageRecord) -> float:
        """When an image was last of use."""
        return max(record.pulled_at, self._uses.used_at(record.image_id) or 0.0)

    def _drop_names(self, gone: Iterable[str]) -> None:
        """Let names mean nothing, as soon as there is room to write that: what is removed makes some."""
        try:
            self._index.drop_names(gone)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def _put_back(self, taken: Path, image_id: str) -> None:
        """Unless it was pulled again meanwhile."""
        with suppress(FileExistsError):
            os.link(taken, self._index.path(image_id))
        taken.unlink(missing_ok=True)

    def _size(self, records: dict[str, ImageRecord]) -> int:
        """Of all layers of some images, each once, as far as it is known: one that cannot be counted keeps no other here."""
        return self._sizes.least(layer for record in records.values() for layer in record.layers)
