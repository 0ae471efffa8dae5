"""Images of registries, kept unpacked on this machine, in a directory that several servers use at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aviato.server.images.image_errors import disk_error, image_error, quoted
from aviato.server.images.image_exports import ImageExports
from aviato.server.images.image_index import ImageIndex, Name
from aviato.server.images.image_pulls import ImagePulls
from aviato.server.images.image_removal import ImageRemoval
from aviato.server.images.image_snapshots import ImageSnapshots, is_gone, is_over
from aviato.server.images.image_trash import ImageTrash, remove_as_oneself
from aviato.server.images.image_uses import ImageUses
from aviato.server.images.layer_leases import LayerLeases
from aviato.server.images.layer_pull import LayerPulls
from aviato.server.images.layer_sizes import LayerSizes
from aviato.server.images.layers import ROOT, says_other_top
from aviato.server.images.oci_reference import id_prefix, parse_oci_reference, parse_own_name
from aviato.server.images.patience import Patience
from aviato.server.images.starting_layers import StartingLayers
from aviato.server.images.stored_image import StoredImage, UnpackedImage
from aviato.server.images.unpacked_layer import UnpackLimits
from aviato.system.threads import in_thread
from aviato.wire.images import BUILT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

    from aviato.server.images.image_index import ImageRecord, RecordedLayer
    from aviato.server.images.image_snapshots import NewSnapshot
    from aviato.server.images.packing import Pack
    from aviato.server.images.stored_image import Progress
    from aviato.server.images.unpacked_layer import Count, Unpack

_Names = list[str]
_Images = list[StoredImage]
"""Within the class `list` is its method."""
MOST_LAYERS = 160
"""Of one image, as many as a sandbox can lie on."""
MOST_REMEMBERED = 1024
"""Images of which it is remembered what sandboxes are made of."""
FOLDERS = ("layers", "blobs", "images", "uses", "trash", "pulls")


class ImageStore:
    """The images of one directory.

    Args:
        directory: made where it is missing; its own user's alone.
        unpack: makes a directory of a layer.
        mirrors: by registry, the hosts that are asked before it.
        most_bytes: that all layers may have together; images that are not in use go after a pull, the longest unused first.
            None keeps all.
        limits: what one layer may become.
        patience: how long registries are waited for.
        remove: takes a tree of the store away; by default as this process's user.
        pack: makes a tar of a layer again.
        count: says how much is in what sandboxes have left, with the ids that layers of this store have. Without it nothing of
            them can be moved here.

    Attributes:
        exports: what goes out of it; None without `pack`.

    Raises:
        SandboxImageError: the directory cannot be made.
    """

    def __init__(
        self,
        directory: Path,
        unpack: Unpack,
        *,
        mirrors: Mapping[str, tuple[str, ...]] | None = None,
        most_bytes: int | None = None,
        limits: UnpackLimits | None = None,
        patience: Patience | None = None,
        remove: Callable[[Path], Awaitable[None]] = remove_as_oneself,
        pack: Pack | None = None,
        count: Count | None = None,
    ) -> None:
        self._directory = directory = directory.absolute()
        self._most_bytes = most_bytes
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in FOLDERS:
                (directory / folder).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise disk_error(error, str(directory)) from error
        self._index = ImageIndex(directory)
        self._unpacked: dict[str, tuple[ImageRecord, UnpackedImage]] = {}
        self._uses = ImageUses(directory)
        self._leases = LayerLeases(directory, self._index.alone)
        self._trash = ImageTrash(directory, remove)
        self._sizes = LayerSizes(directory, count)
        self._removal = ImageRemoval(directory, self._index, self._uses, self._leases, self._trash, self._sizes)
        limits, patience = limits or UnpackLimits(), patience or Patience()
        self.exports = None if pack is None else ImageExports(directory, self._index, self._leases, self.find, pack, patience)
        layers = LayerPulls(directory, self._trash, unpack, limits, patience)
        self._starting = StartingLayers(directory, self._index, layers, count is not None, MOST_LAYERS)
        self._snapshots = ImageSnapshots(self._index, self._uses, self._leases, layers, self._removal, self._starting)
        self._pulls = ImagePulls(
            directory,
            self._index,
            self._leases,
            self._trash,
            layers,
            mirrors=mirrors or {},
            limits=limits,
            patience=patience,
        )

    def find(self, reference: str) -> StoredImage | None:
        """The image that a reference means here: by name, digest, image id, or 12 and more digits of one. Asks no registry.

        Raises:
            SandboxImageError: the reference is wrong, or means several images.
        """
        record = self._record(reference)
        return None if record is None else self._stored(record)

    def unpacked(self, reference: str) -> UnpackedImage | None:
        """The same, as far as a sandbox needs it: cheap enough for each one.

        Raises:
            SandboxImageError: as of `find`.
        """
        record = self._record(reference)
        if record is None:
            return None
        kept = self._unpacked.get(record.image_id)
        if kept is None or kept[0] is not record or kept[1].lacks_start:
            if len(self._unpacked) >= MOST_REMEMBERED:
                self._unpacked.clear()
            kept = self._unpacked[record.image_id] = record, self._with_start(record)
        return kept[1]

    async def pull(
        self,
        reference: str,
        *,
        refresh: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> StoredImage:
        """The image that a reference means, fetched if it is not here. Whoever asks for one that is on its way joins.

        Args:
            reference: of a registry, or `oci:PATH[:TAG]`, or `docker-archive:PATH[:NAME]`.
            refresh: ask the registry although the image is here, since a tag may mean another one there.
            on_progress: called in the loop, now and then.
            on_begin: called where the image is not here and nobody fetches it yet.

        Raises:
            SandboxImageError: the image cannot be had; its `reason` says why.
        """
        if not refresh and (found := await in_thread(self.find, reference)) is not None:
            return found
        try:
            parsed = await in_thread(lambda: parse_oci_reference(_absolute(reference)))
            if parsed.registry == BUILT:
                # A host of that name could give builds of others whatever it likes.
                raise image_error("image_not_here", f"the step {quoted(reference)} of a build is not here; build it again")
            record = await self._pulls.pull(parsed, on_progress, on_begin)
            if self._most_bytes is not None:
                await self._settle_sizes()
                await in_thread(self._prune, self._most_bytes, 0.0, frozenset({record.image_id}))
                await self._empty_trash()
        except OSError as error:
            raise disk_error(error, f"image {quoted(reference)}") from error
        return await in_thread(self._stored, record)

    def under_way(self) -> dict[str, Progress]:
        """The full references that this process is pulling, whoever has asked for them, and how far each is."""
        return self._pulls.under_way()

    async def sized(self, images: Sequence[StoredImage]) -> _Images:
        """The same with their sizes: layers that nobody has counted are counted. None for one that is going."""
        unknown = {one.image_id for one in images if one.size_bytes is None}
        if not unknown:
            return [*images]
        await self._settle_sizes(unknown)
        return [await in_thread(self._again, one) if one.image_id in unknown else one for one in images]

    def list(self) -> list[StoredImage]:
        """All images, the newest pull first."""
        return sorted(map(self._stored, self._index.records()), key=lambda image: -image.pulled_at)

    async def remove(self, reference: str, *, force: bool = False) -> _Names:
        """Remove a name, and with its last name, or by its id, the image.

        Args:
            reference: as `find` takes it.
            force: of an image that sandboxes have, take the names away all the same; it goes with a later `prune`.

        Returns:
            The names that went.

        Raises:
            SandboxImageError: the image is not here, sandboxes have it, or the disk fails.
        """
        try:
            gone = await in_thread(self._remove, reference, force)
            await self._empty_trash()
        except OSError as error:
            raise disk_error(error, f"image {quoted(reference)}") from error
        return gone

    async def prune(self, *, most_bytes: int = 0, unused_seconds: float = 0.0) -> int:
        """Remove images that no sandbox has and nobody has pinned, the longest unused first.

        Args:
            most_bytes: leave the others, once all layers have no more than that.
            unused_seconds: leave those that were in use so short ago; downloads that were broken off likewise.

        Returns:
            The bytes that this frees.

        Raises:
            SandboxImageError: the disk fails.
        """
        try:
            await self._settle_sizes()
            freed = await in_thread(self._prune, most_bytes, unused_seconds, frozenset(), downloads=True)
            await self._empty_trash()
        except OSError as error:
            raise disk_error(error, "images that are to go") from error
        return freed

    def pin(self, reference: str, pinned: bool = True) -> None:
        """Let an image stay whatever is pruned, or no longer.

        Raises:
            SandboxImageError: it is not here.
        """
        with self._index.alone():
            image_id = self._find(reference)
            if image_id is None or not self._index.pin(image_id, pinned):
                raise self._not_here(reference)

    def name(self, reference: str, name: str) -> None:
        """Give an image one more name, as registries have them; another image that has it loses it.

        Raises:
            SandboxImageError: the image is not here, or that is no such name.
        """
        wanted = parse_own_name(name)
        with self._index.alone():
            image_id = self._find(reference)
            record = None if image_id is None else self._index.record(image_id)
            if record is None:
                raise self._not_here(reference)
            self._index.name([wanted.name], Name(image_id=record.image_id, digest=record.digests[0]))

    async def snapshot(self, source: AsyncIterator[bytes] | Path | None, new: NewSnapshot) -> StoredImage:
        """Make an image of a sandbox's layer.

        Args:
            source: pieces of the layer's tar, or where a dead sandbox has left it: it is moved here. None: nothing is in it.
            new: what it is to be.

        Raises:
            SandboxImageError: it cannot be one; its `reason` says why.
        """
        try:
            if source is None or isinstance(source, Path):
                # A way to a thread and back is a tenth of what it takes.
                return await in_thread(lambda: self._stored(self._snapshots.put(source, new, MOST_LAYERS)))
            try:
                record = await self._snapshots.take(source, new, MOST_LAYERS)
            finally:
                await self._trash.empty()
            return await in_thread(self._stored, record)
        except OSError as error:
            raise disk_error(error, f"snapshot {new.recorded.snapshot_id}") from error

    def snapshots(self) -> _Images:
        """All snapshots, the newest first."""
        return [*map(self._stored, self._snapshots.valid())]

    async def remove_snapshot(self, snapshot_id: str) -> bool:
        """Let a snapshot go: with `remove_expired`, once no sandbox has it. One that is no fork's means nothing any more.

        Returns:
            Whether it was there.
        """

        def remove() -> bool:
            with self._index.alone():
                found = [one for one in self._snapshots.valid() if one.snapshot and one.snapshot.snapshot_id == snapshot_id]
                for record in found:
                    self._snapshots.let_go(record)
                return bool(found)

        return await in_thread(remove)

    async def remove_expired(self, in_use: Collection[str] = ()) -> None:
        """Remove snapshots that are over and that no sandbox has, and what processes that were killed have left.

        Args:
            in_use: images of sandboxes that have no place yet.
        """

        def remove() -> bool:
            if not any(map(is_over, self._index.records())) and not self._removal.has_old_downloads():
                return False  # Most often: nobody need wait for those who remove something.
            with self._index.alone():
                self._removal.settle()
                if self._snapshots.remove_expired(in_use):
                    self._removal.sweep()
                self._removal.sweep_downloads()
                return True

        if await in_thread(remove):
            await self._empty_trash()

    def used_by(self, sandbox_id: str) -> str | None:
        """The image that a sandbox has."""
        return next((image_id for image_id in self._index.ids() if sandbox_id in self._uses.alive(image_id)), None)

    def layers_of(self, image_id: str) -> int:
        """How many an image has, also one that nobody may name any more."""
        record = self._index.record(image_id)
        return 0 if record is None else len(record.layers)

    def use(self, image_id: str, sandbox_id: str, places: str) -> None:
        """Say that a sandbox has an image: it stays while the sandbox's place exists.

        Args:
            image_id: of one that was found.
            sandbox_id: whose.
            places: the directory in which one of its name is there or about to be made, and goes with it.

        Raises:
            SandboxImageError: the image has been removed meanwhile (`image_gone`); pull it again.
        """
        self._uses.add(image_id, sandbox_id, places)
        if self._index.record(image_id) is None:
            self._uses.drop(image_id, sandbox_id)
            raise image_error("image_gone", f"the image {image_id} has just been removed; pull it again")

    async def put_start(self, image_id: str, left: Path) -> None:
        """Make the starting layer of an image, see `StartingLayers.put`.

        Raises:
            SandboxImageError, OSError: it cannot be made.
        """
        await in_thread(self._starting.put, image_id, left)

    def release(self, image_id: str, sandbox_id: str) -> None:
        """Say that a sandbox has an image no more."""
        self._uses.drop(image_id, sandbox_id)

    def _stored(self, record: ImageRecord) -> StoredImage:
        names = (name for name, meant in self._index.names().items() if meant.image_id == record.image_id)
        return StoredImage(
            **self._of_layers(record, record.layers),
            names=tuple(names),
            architecture=record.architecture,
            size_bytes=self._sizes.sum(record.layers),
            created_at=record.created_at,
            pulled_at=record.pulled_at,
            used_at=self._removal.used_at(record),
            pinned=record.pinned,
        )

    def _again(self, stored: StoredImage) -> StoredImage:
        record = self._index.record(stored.image_id)
        return stored if record is None else self._stored(record)

    async def _settle_sizes(self, image_ids: Collection[str] | None = None) -> None:
        """Have the layers of these images counted; default: of all."""
        records = await in_thread(self._index.records)
        wanted = (record for record in records if image_ids is None or record.image_id in image_ids)
        await self._sizes.settle([layer for record in wanted for layer in record.layers])

    def _with_start(self, record: ImageRecord) -> UnpackedImage:
        starting = self._starting.find(record)
        layers = record.layers if starting is None else (*record.layers, starting)
        lacks_start = starting is None and self._starting.can_be(record)
        return UnpackedImage(**self._of_layers(record, layers), lacks_start=lacks_start)

    def _of_layers(self, record: ImageRecord, layers: Sequence[RecordedLayer]) -> dict[str, Any]:
        # A layer that is there twice acts where it is uppermost; overlayfs takes no directory twice.
        uppermost_first = [*dict.fromkeys(layer.key for layer in reversed(layers))]
        said = ((at, says_other_top(self._directory / "layers" / key)) for at, key in enumerate(uppermost_first))
        at, is_other = next(((at, is_other) for at, is_other in said if is_other is not None), (0, False))
        return {
            "image_id": record.image_id,
            "layers": tuple(str(self._directory / "layers" / key / ROOT) for key in uppermost_first),
            "config": record.config,
            "top": at if is_other else None,
            "snapshot": record.snapshot,
        }

    def _record(self, reference: str) -> ImageRecord | None:
        """Of an image that may be named."""
        image_id = self._find(reference)
        record = None if image_id is None else self._index.record(image_id)
        return None if record is None or is_gone(record) else record

    def _find(self, reference: str) -> str | None:
        """The id of an image."""
        digits = id_prefix(reference)
        if digits is None:
            return self._find_by_name(reference)
        found = [one for one in self._index.ids() if one.startswith(f"sha256:{digits}")]
        if len(found) > 1:
            begins = f"{quoted(reference)} is the beginning of {len(found)} image ids"
            raise image_error("bad_reference", f"{begins}; give more digits")
        if found or ":" in reference or len(digits) == 64:
            return next(iter(found), None)
        return self._find_by_name(reference)  # What is no id may still be a name.

    def _find_by_name(self, reference: str) -> str | None:
        parsed = parse_oci_reference(_absolute(reference))
        meant = self._index.names().get(parsed.name)
        if meant is not None:
            return meant.image_id
        if parsed.digest is not None:  # Whatever it is called: the digest says all.
            return next((one.image_id for one in self._index.records() if parsed.digest in one.digests), None)
        return None

    def _remove(self, reference: str, force: bool) -> _Names:
        with self._index.alone():
            self._removal.settle()
            image_id = self._find(reference)
            if image_id is None:
                raise self._not_here(reference)
            names = [name for name, meant in self._index.names(anew=True).items() if meant.image_id == image_id]
            if id_prefix(reference) is None and len(names) > 1:
                name = parse_oci_reference(_absolute(reference)).name
                if name in names:
                    self._index.drop_names([name])
                    return [name]
            using = self._removal.remove(image_id)
            if using and not force:
                raise image_error(
                    "image_in_use",
                    f"the image {quoted(reference)} is in use by {len(using)} sandboxes, such as {using[0]}; stop them first",
                )
            if using:
                self._index.drop_names(names)
            self._removal.sweep()
            return names

    async def _empty_trash(self) -> None:
        """Take away for good what was removed. Then there is room to write down what that was."""
        await self._trash.empty()
        if await in_thread(self._removal.names_of_none):
            await in_thread(self._settle)

    def _settle(self) -> None:
        with self._index.alone():
            self._removal.settle()

    def _prune(self, most_bytes: int, unused_seconds: float, kept: frozenset[str], *, downloads: bool = False) -> int:
        with self._index.alone():
            self._removal.settle()
            self._removal.prune(most_bytes, unused_seconds, kept)
            freed = self._removal.sweep()
            return freed + (self._removal.sweep_downloads(unused_seconds) if downloads else 0)

    def _not_here(self, reference: str) -> Exception:
        return image_error(
            "image_not_here", f"the image {quoted(reference)} is not here; `aviato image ls` lists those that are"
        )


def _absolute(reference: str) -> str:
    """A reference to a path as any process understands it."""
    for start in ("oci:", "docker-archive:"):
        if reference.startswith(start) and len(reference) > len(start) and reference[len(start)] not in ":/":
            return f"{start}{os.getcwd()}/{reference[len(start) :]}"
    return reference
