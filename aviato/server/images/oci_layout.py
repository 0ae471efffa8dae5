"""An image in a directory, as OCI lays it out: `index.json`, and everything else by its digest below `blobs`."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

from aviato.server.images.bounded_json import read_object
from aviato.server.images.image_errors import image_error, quoted, there_are
from aviato.server.images.image_sources import RawManifest
from aviato.server.images.manifests import LARGEST_BYTES, OCI_INDEX, Index, read_manifest
from aviato.server.images.untrusted_files import open_file, pieces_of, read_small
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aviato.server.images.manifests import Descriptor
    from aviato.server.images.oci_reference import OciReference

VERSION = "oci-layout"
"""The file that says that a directory is a layout."""
_NAME = "org.opencontainers.image.ref.name"


class OciLayout:
    """The source of an `oci:` reference.

    Args:
        reference: what is wanted.
        directory: a descriptor of the layout.
        top: what the reference means in it.
    """

    def __init__(self, reference: OciReference, directory: int, top: RawManifest) -> None:
        self._what = reference.name
        self._directory = directory
        self._top = top

    @classmethod
    async def open(cls, reference: OciReference) -> OciLayout:
        """Look at a directory.

        Raises:
            SandboxImageError: there is none, or no image of that name in it.
        """
        return await in_thread(cls._open, reference)

    @classmethod
    def _open(cls, reference: OciReference) -> OciLayout:
        what = reference.name
        try:
            directory = os.open(reference.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise image_error("no_such_file", f"{what}: there is no directory {quoted(reference.path)}") from None
        except OSError as error:
            raise image_error("damaged_layout", f"{what}: {quoted(reference.path)}: {error.strerror}") from error
        try:
            return cls(reference, directory, choose(lambda path: _read(directory, path, what), reference))
        except BaseException:
            os.close(directory)
            raise

    async def digest(self) -> str | None:
        """See `ImageSource`."""
        return self._top.digest

    async def manifest(self, digest: str | None = None) -> RawManifest:
        """See `ImageSource`."""
        if digest is None:
            return self._top
        data = await in_thread(_read, self._directory, path_of(digest), self._what)
        return RawManifest(data=data, digest=digest, media_type=None)

    async def blob(self, descriptor: Descriptor, offset: int = 0) -> AsyncIterator[bytes]:
        """See `ImageSource`."""
        fd = await in_thread(open_file, self._directory, path_of(descriptor.digest), self._what)
        try:
            # One byte more, so that a file that is too long is seen to be.
            async for piece in pieces_of(fd, offset, descriptor.size_bytes + 1, self._what):
                yield piece
        finally:
            os.close(fd)

    async def close(self) -> None:
        """See `ImageSource`."""
        os.close(self._directory)


def choose(read: Callable[[str], bytes], reference: OciReference) -> RawManifest:
    """What a tag means in a layout, or the only image there is; several without names are one image for several platforms.

    Args:
        read: gives a small file of the layout.
        reference: what is wanted of it.

    Raises:
        SandboxImageError: it is no layout, or no image of that name is in it.
    """
    what = reference.name
    if read_object(read(VERSION), f"{VERSION} of {what}").get("imageLayoutVersion") != "1.0.0":
        raise image_error("damaged_layout", f"{what}: its {VERSION} is not of version 1.0.0")
    data = read("index.json")
    index = read_object(data, f"index.json of {what}")
    entries: Any = index.get("manifests")
    if not isinstance(read_manifest(data, OCI_INDEX, what), Index):
        raise image_error("bad_manifest", f"index.json of {what} is the manifest of one image, and no list of such")
    names: dict[str, str] = {}
    for entry in entries:
        annotations = entry.get("annotations")
        name = annotations.get(_NAME) if isinstance(annotations, dict) else None
        if isinstance(name, str):
            names.setdefault(name, entry["digest"])
    if reference.tag is not None:
        chosen = names.get(reference.tag)
        if chosen is None:
            raise image_error("unknown_tag", f"{what}: nothing has this name in it; {there_are(names)}")
    elif len(entries) == 1:
        chosen = entries[0]["digest"]
    elif names:
        raise image_error(
            "unknown_tag", f"{what}: there are several images in it; say which behind a colon; {there_are(names)}"
        )
    else:
        return RawManifest(data=data, digest=f"sha256:{hashlib.sha256(data).hexdigest()}", media_type=OCI_INDEX)
    return RawManifest(data=read(path_of(chosen)), digest=chosen, media_type=None)


def _read(directory: int, path: str, what: str) -> bytes:
    fd = open_file(directory, path, what)
    try:
        return read_small(fd, os.fstat(fd).st_size, 0, LARGEST_BYTES, f"{what}: {quoted(path)}")
    finally:
        os.close(fd)


def path_of(digest: str) -> str:
    """Where a layout has what has a digest."""
    return f"blobs/{digest.replace(':', '/', 1)}"
