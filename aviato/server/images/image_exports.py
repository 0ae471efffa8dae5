"""Images of a store as others take them: a layout of OCI in a tar, or what a registry is given."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Literal

from aviato.exceptions import SandboxImageError
from aviato.server.images import image_documents as documents
from aviato.server.images.image_errors import disk_error, image_error, quoted
from aviato.server.images.oci_reference import id_prefix, parse_oci_reference
from aviato.server.images.packed_image import PackedImage
from aviato.system.threads import in_thread
from aviato.trees import tar
from aviato.wire.ids import SNAPSHOT_ID
from aviato.wire.images import BUILT, is_machines_own

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
    from pathlib import Path

    from aviato.server.images.image_index import ImageIndex, ImageRecord
    from aviato.server.images.image_push import PushProgress
    from aviato.server.images.layer_leases import LayerLeases, Lease
    from aviato.server.images.oci_reference import OciReference
    from aviato.server.images.packing import Pack
    from aviato.server.images.patience import Patience
    from aviato.server.images.stored_image import StoredImage

Form = Literal["layout", "archive"]
"""Of an export: what OCI lays out; or that and a list by which `docker load` finds its way."""
_TAG = "latest"


class ImageExports:
    """What goes out of one store.

    Args:
        directory: of the store.
        index: its images.
        leases: keep layers meanwhile.
        find: gives the image that a reference means here.
        pack: makes tars of layers.
        patience: with registries.
    """

    def __init__(
        self,
        directory: Path,
        index: ImageIndex,
        leases: LayerLeases,
        find: Callable[[str], StoredImage | None],
        pack: Pack,
        patience: Patience,
    ) -> None:
        self._directory = directory
        self._index = index
        self._leases = leases
        self._find = find
        self._pack = pack
        self._patience = patience

    @asynccontextmanager
    async def archive(self, reference: str, form: Form) -> AsyncIterator[AsyncIterator[bytes]]:
        """An image as a tar that has a layout, in pieces. It stays whole until the end.

        Args:
            reference: as `ImageStore.find` takes it.
            form: what the tar has.

        Raises:
            SandboxImageError: the image is not here, or cannot go out; its `reason` says why.
        """
        async with (
            self._going_out(reference) as (image, names),
            aclosing(_tar(image, form, *name_out_of(reference, names))) as pieces,
        ):
            yield _as_image_errors(pieces, reference)

    async def push(self, reference: str, destination: str | None, on_progress: Callable[[PushProgress], None]) -> PushProgress:
        """Put an image into a registry, by the credentials there are for it.

        Args:
            reference: as `ImageStore.find` takes it.
            destination: what it is called there; None: `reference`.
            on_progress: called in the loop, now and then.

        Returns:
            What was done.

        Raises:
            SandboxImageError: the image is not here, or cannot go there; its `reason` says why.
        """
        # Here, since it is a client that many servers never need.
        from aviato.server.images.image_push import push_image

        wanted = parse_destination(reference if destination is None else destination)
        try:
            async with self._going_out(reference) as (image, _):
                return await push_image(image, wanted, self._patience, on_progress)
        except OSError as error:
            raise disk_error(error, f"image {quoted(reference)}") from error

    @asynccontextmanager
    async def _going_out(self, reference: str) -> AsyncIterator[tuple[PackedImage, tuple[str, ...]]]:
        """An image, and its names here."""
        if is_machines_own(reference):
            raise _no_image(reference, reference)
        found = await in_thread(self._find, reference)
        if found is None:
            text = f"the image {quoted(reference)} is not here; `aviato image ls` lists those that are"
            raise image_error("image_not_here", text)
        if found.snapshot is not None and found.snapshot.base is not None:
            raise _no_image(reference, found.snapshot.base)
        lease = self._leases.new()
        try:
            record = await in_thread(self._keep, lease, found.image_id)
            if record is None:
                raise image_error("image_gone", f"the image {quoted(reference)} has just been removed")
            yield PackedImage(record, self._pack, self._directory), found.names
        finally:
            await in_thread(lease.end)

    def _keep(self, lease: Lease, image_id: str) -> ImageRecord | None:
        """Have the layers of an image stay; what was removed just before is not there any more."""
        record = self._index.record(image_id)
        if record is not None:
            lease.take({layer.key for layer in record.layers})
        return self._index.record(image_id)


def parse_destination(text: str) -> OciReference:
    """Where in a registry an image goes.

    Raises:
        SandboxImageError: that is no name in a registry.
    """
    wanted = None
    if id_prefix(text) is None and SNAPSHOT_ID.fullmatch(text) is None:
        wanted = parse_oci_reference(text)
    if wanted is None or wanted.kind != "registry" or wanted.digest is not None or wanted.registry == BUILT:
        raise image_error("bad_reference", f"{quoted(text)} is no place in a registry: write HOST/NAME:TAG")
    return wanted


def name_out_of(reference: str, names: Sequence[str]) -> tuple[str, str | None]:
    """What an image is called where it goes: a tag, and a name as registries have them, if it has one.

    Args:
        reference: by which it was asked for.
        names: that it has here.
    """
    for one in (reference, *names):
        try:
            wanted = parse_destination(one)
        except SandboxImageError:
            continue
        is_own = wanted.registry == BUILT or SNAPSHOT_ID.fullmatch(wanted.repository.rpartition("/")[2]) is not None
        if wanted.name in names and not is_own:
            return str(wanted.tag), wanted.name
    return _TAG, None


async def _tar(image: PackedImage, form: Form, tag: str, name: str | None) -> AsyncGenerator[bytes, None]:
    """A layout, whose index comes last."""
    yield _folder(b"blobs") + _folder(b"blobs/sha256") + _file("oci-layout", documents.LAYOUT)
    there: set[str] = set()
    async with aclosing(image.layers()) as layers:
        async for layer in layers:
            descriptor = layer.descriptor
            if descriptor.digest in there:
                continue  # What others imply may be the same when it is said.
            there.add(descriptor.digest)
            yield _head(documents.blob_path(descriptor), descriptor.size_bytes)
            async for piece in layer.pieces():
                yield piece
            yield tar.padding(descriptor.size_bytes)
    config, manifest = image.documents()
    yield b"".join(_file(documents.blob_path(one.descriptor), one.data) for one in (config, manifest))
    if form == "archive":
        yield _file("manifest.json", documents.docker_manifest(config.descriptor, image.descriptors(), name))
    yield _file("index.json", documents.index(manifest.data, tag, name)) + tar.END


async def _as_image_errors(pieces: AsyncIterator[bytes], reference: str) -> AsyncIterator[bytes]:
    try:
        async for piece in pieces:
            yield piece
    except OSError as error:
        raise disk_error(error, f"image {quoted(reference)}") from error


def _no_image(reference: str, base: str) -> SandboxImageError:
    """The error for an image that is this machine's own, or begins with what is."""
    text = f"the image {quoted(reference)} begins with {quoted(base)}: with this machine's own files, which are in no image"
    return image_error("base_of_this_machine", f"{text}; begin with an image of a registry, such as debian:12")


def _folder(name: bytes) -> bytes:
    return tar.header(tar.Member(name, tar.DIRECTORY, mode=0o755))


def _head(name: str, size_bytes: int) -> bytes:
    return tar.header(tar.Member(name.encode(), tar.FILE, size_bytes=size_bytes))


def _file(name: str, data: bytes) -> bytes:
    return _head(name, len(data)) + data + tar.padding(len(data))
