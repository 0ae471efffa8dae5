"""One layer: downloaded, checked, unpacked and put where it is looked for, by one process at a time."""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from aviato.exceptions import SandboxImageError
from aviato.server.images.blobs import Hashed, download, unpack_blob
from aviato.server.images.file_locks import hold, hold_now
from aviato.server.images.image_index import RecordedLayer
from aviato.server.images.layers import ROOT, LayerDescription, describe_layer, read_layer
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from aviato.server.images.image_sources import ImageSource
    from aviato.server.images.image_trash import ImageTrash
    from aviato.server.images.manifests import Descriptor
    from aviato.server.images.patience import Patience
    from aviato.server.images.unpacked_layer import Unpack, UnpackedLayer, UnpackLimits

_T = TypeVar("_T")
ORIGIN_DIGITS = 8


@dataclass(frozen=True, kw_only=True)
class WantedLayer:
    """A layer in its image.

    Attributes:
        descriptor: its blob.
        diff_id: of its tar.
        chain_id: of it and all below, as hexadecimal digits.
        origin: whoever it comes from.
    """

    descriptor: Descriptor
    diff_id: str
    chain_id: str
    origin: str

    @property
    def part(self) -> str:
        """What its download is called. One for each who has it: who sends a byte now and then for ever holds up no other."""
        return f"{self.descriptor.hex}-{hashlib.sha256(self.origin.encode()).hexdigest()[:ORIGIN_DIGITS]}.part"

    @property
    def keys(self) -> tuple[str, str]:
        """The names that it may have in a store: by itself, and by all that is below too."""
        return self.diff_id.partition(":")[2], self.chain_id


class LayerPulls:
    """Puts layers into one store.

    Args:
        directory: of the store.
        trash: of it.
        unpack: makes a directory of a layer.
        limits: what it may become.
        patience: with cuts.
    """

    def __init__(self, directory: Path, trash: ImageTrash, unpack: Unpack, limits: UnpackLimits, patience: Patience) -> None:
        self._layers = directory / "layers"
        self._blobs = directory / "blobs"
        self._trash = trash
        self._unpack = unpack
        self._limits = limits
        self._patience = patience

    def find(self, wanted: WantedLayer) -> RecordedLayer | None:
        """The layer, if it is here. Blocks."""
        for key in wanted.keys:
            layer = read_layer(self._layers / key, wanted.diff_id)
            # A lowest one that leaves out directories is right nowhere else.
            if layer is not None and (not layer.implied or key == wanted.chain_id):
                return RecordedLayer(key=key, size_bytes=layer.size_bytes)
        return None

    async def make(
        self,
        source: ImageSource,
        wanted: WantedLayer,
        below: Sequence[asyncio.Future[RecordedLayer]],
        slots: asyncio.Semaphore,
        what: str,
        on_bytes: Callable[[int], None],
    ) -> RecordedLayer:
        """The layer, made if it is not here.

        It is unpacked before those below are here, if need be. Where its tar then turns out to leave out directories, which
        are to be like those below, it is unpacked again once these are here; nobody is kept from the blob until then.

        Args:
            source: of the image.
            wanted: which layer.
            below: those under it, the lowest first.
            slots: how many may be at work.
            what: whose it is, for messages.
            on_bytes: told how many more bytes are here.

        Raises:
            SandboxImageError: it cannot be had.
            OSError: the disk fails.
        """
        made = await self._try(source, wanted, below, slots, what, on_bytes)
        if made is None:
            for one in below:
                await one
            made = await self._try(source, wanted, below, slots, what, lambda _: None)
        assert made is not None, "all layers below are here"
        return made

    async def _try(
        self,
        source: ImageSource,
        wanted: WantedLayer,
        below: Sequence[asyncio.Future[RecordedLayer]],
        slots: asyncio.Semaphore,
        what: str,
        on_bytes: Callable[[int], None],
    ) -> RecordedLayer | None:
        """None if it has to wait for the layers below."""
        path = self._blobs / wanted.part
        async with slots:
            fd = await hold(path)
            try:
                if (found := await in_thread(self.find, wanted)) is not None:
                    await in_thread(path.unlink, missing_ok=True)
                    on_bytes(wanted.descriptor.size_bytes)
                    return found
                await download(source, wanted.descriptor, fd, what, self._patience, on_bytes)
                are_here = all(one.done() and not one.cancelled() and one.exception() is None for one in below)
                roots = [self._layers / one.result().key / ROOT for one in reversed(below)] if are_here else []
                tree = path.with_suffix(".tree")
                try:
                    unpacked = await self._make_tree(fd, tree, wanted, roots, what)
                    if unpacked.implied and not are_here:
                        return None
                    key = wanted.keys[1 if unpacked.implied else 0]
                    return await in_thread(self._publish, tree, key, wanted.diff_id, unpacked, path)
                finally:
                    await in_thread(self._trash.take, tree)
            except Exception as error:
                if _is_of_no_use(error):
                    await in_thread(path.unlink, missing_ok=True)
                raise
            finally:
                os.close(fd)

    async def unpack(self, pieces: AsyncIterator[bytes], publish: Callable[[Callable[[], RecordedLayer], str], _T]) -> _T:
        """A layer out of a tar whose digest nobody knows yet.

        Args:
            pieces: of the tar.
            publish: called in a thread with what puts the layer into its place, and its `diff_id`.

        Raises:
            SandboxImageError: it is none, or has more than a layer may.
            OSError: the disk fails.
        """
        path = self._blobs / f"{os.urandom(16).hex()}.part"
        tree = path.with_suffix(".tree")
        fd = await hold(path)
        try:
            await in_thread(self._begin_tree, tree)
            stream = Hashed(pieces)
            unpacked = await self._unpack(stream, tree / ROOT, [], self._limits)
            async for _ in stream:
                pass
            key = stream.digest.partition(":")[2]
            return await in_thread(publish, lambda: self._publish(tree, key, stream.digest, unpacked, path), stream.digest)
        finally:
            await in_thread(self._trash.take, tree)
            await in_thread(path.unlink, missing_ok=True)
            os.close(fd)

    def move_in(self, left: Path, key: str, diff_id: str, publish: Callable[[Callable[[], RecordedLayer], str], _T]) -> _T:
        """A layer out of what a sandbox has left, which is moved here. What was broken off goes on the next time.

        Nobody looks into it. Overlayfs alone has written there, for a sandbox that can make no device nodes, and has refused or
        renamed attributes that are its own. Wherever a sandbox lies on it, the mount gives no meaning to devices and set-uid.

        Blocks: it is a matter of moments, and on its way from thread to thread it would take twice as long.

        Args:
            left: the directory, of this file system and with the ids that the store has; nobody changes it any more.
            key: of the layer, the same for no other one.
            diff_id: that is written down for it.
            publish: as of `unpack`.

        Raises:
            OSError: the disk fails, or the directory is not there.
        """
        path = self._blobs / f"{key}.part"
        tree = path.with_suffix(".tree")
        fd = hold_now(path)
        try:
            if (found := read_layer(self._layers / key, diff_id)) is None:
                if left.exists():
                    self._trash.take(tree)  # Of one of the same name that was not finished.
                _move(left, tree)
                return publish(lambda: self._publish(tree, key, diff_id, None, path), diff_id)
            path.unlink(missing_ok=True)
            layer = RecordedLayer(key=key, size_bytes=found.size_bytes)
            return publish(lambda: layer, diff_id)
        finally:
            os.close(fd)

    async def _make_tree(self, fd: int, tree: Path, wanted: WantedLayer, roots: list[Path], what: str) -> UnpackedLayer:
        await in_thread(self._begin_tree, tree)
        return await unpack_blob(fd, wanted.diff_id, tree / ROOT, roots, unpack=self._unpack, limits=self._limits, what=what)

    def _begin_tree(self, tree: Path) -> None:
        self._trash.take(tree)  # Of a process that was killed.
        tree.mkdir(mode=0o700)
        (tree / ROOT).mkdir()
        (tree / ROOT).chmod(0o755)

    def _publish(self, tree: Path, key: str, diff_id: str, unpacked: UnpackedLayer | None, part: Path) -> RecordedLayer:
        size, files, implied = (None, None, 0) if unpacked is None else (unpacked.size_bytes, unpacked.files, unpacked.implied)
        says_top = unpacked is not None and unpacked.says_top
        describe_layer(
            tree, LayerDescription(diff_id=diff_id, size_bytes=size, files=files, implied=implied, says_top=says_top)
        )
        place = self._layers / key
        if place.exists() and read_layer(place, diff_id) is None:
            self._trash.take(place)  # Its description is damaged.
        try:
            os.rename(tree, place)
        except OSError as error:
            # The same layer may have come by another blob, compressed in another way.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        part.unlink(missing_ok=True)
        return RecordedLayer(key=key, size_bytes=size)


def _move(left: Path, tree: Path) -> None:
    tree.mkdir(mode=0o700, exist_ok=True)
    try:
        os.rename(left, tree / ROOT)
    except FileNotFoundError:
        if not (tree / ROOT).exists():
            raise


def _is_of_no_use(error: Exception) -> bool:
    """Whether a download that is here whole leads nowhere: it is damaged, or there is no room for it."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    passing = ("interrupted", "stalled", "registry_failed", "registry_unreachable", "store_failed", "too_many_requests")
    return isinstance(error, SandboxImageError) and error.reason not in passing
