"""An image in a tar file, as `docker save` writes it, or a layout in one. Names in it are looked up, never opened.

It may be compressed by gzip or zstd.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from typing import TYPE_CHECKING, Any

from aviato.exceptions import SandboxImageError
from aviato.server.images.decompression import MAGIC_BYTES, decompress, is_compressed
from aviato.server.images.image_errors import image_error, quoted, there_are
from aviato.server.images.image_sources import RawManifest
from aviato.server.images.manifests import DOCKER_CONFIG, LARGEST_BYTES, MOST_LAYERS, OCI_LAYER, OCI_MANIFEST
from aviato.server.images.oci_layout import VERSION, choose, path_of
from aviato.server.images.oci_reference import is_digest, parse_oci_reference
from aviato.server.images.untrusted_files import PIECE_BYTES, open_file, pieces_of, read_small
from aviato.system.threads import in_thread
from aviato.trees.errors import SenderFailed, TreeError
from aviato.trees.tar import BLOCK_BYTES, FILE, HARD_LINK, LINK, Member, Reader, padding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aviato.server.images.manifests import Descriptor
    from aviato.server.images.oci_reference import OciReference

MOST_MEMBERS = 100_000
OTHERS = {"xz": re.compile(rb"\xfd7zXZ\0"), "bzip2": re.compile(rb"BZh[1-9]1AY&SY")}
"""How what other programs have compressed begins, by the program."""
START_BYTES = 16
_SKIPPED = bytes(PIECE_BYTES)


class DockerArchive:
    """The source of a `docker-archive:` reference.

    Args:
        what: the reference, for messages.
        fd: of the archive, not compressed.
        top: a manifest of it; that of Docker's form is made of what its own files say.
        blobs: where what that names lies, by digest: offset and size.
    """

    def __init__(self, what: str, fd: int, top: RawManifest, blobs: dict[str, tuple[int, int]]) -> None:
        self._what = what
        self._fd = fd
        self._top = top
        self._blobs = blobs

    @classmethod
    async def open(cls, reference: OciReference, scratch: Path, most_bytes: int) -> DockerArchive:
        """Look through an archive.

        Raises:
            SandboxImageError: there is none, or no image of that name in it.
        """
        return await in_thread(cls._open, reference, scratch, most_bytes)

    @classmethod
    def _open(cls, reference: OciReference, scratch: Path, most_bytes: int) -> DockerArchive:
        what = reference.name
        fd = open_file(None, reference.path, what)
        try:
            start = os.pread(fd, START_BYTES, 0)
            if (program := next((name for name, begins in OTHERS.items() if begins.match(start)), None)) is not None:
                why = f"it is compressed by {program}, which is not read here; decompress it first"
                raise image_error("damaged_layout", f"{what} is no archive of an image: {why} (`{program} -dk FILE`)")
            if is_compressed(start[:MAGIC_BYTES]):
                fd, compressed = os.open(scratch, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), fd
                try:
                    for piece in decompress(compressed, most_bytes, what):
                        _write(fd, piece)
                finally:
                    os.close(compressed)
            contents = _Contents(fd, what)
            top, blobs = contents.layout(reference) if contents.is_layout else contents.image(reference.tag)
            return cls(what, fd, top, blobs)
        except (TreeError, SenderFailed) as error:
            os.close(fd)
            raise image_error("damaged_layout", f"{what} is no archive of an image: {error}") from error
        except BaseException:
            os.close(fd)
            raise

    async def digest(self) -> str | None:
        """See `ImageSource`."""
        return self._top.digest

    async def manifest(self, digest: str | None = None) -> RawManifest:
        """See `ImageSource`."""
        if digest is None or digest == self._top.digest:
            return self._top
        offset, size = self._place(digest)
        what = f"{self._what}: {quoted(path_of(digest))}"
        data = await in_thread(read_small, self._fd, size, offset, LARGEST_BYTES, what)
        return RawManifest(data=data, digest=digest, media_type=None)

    async def blob(self, descriptor: Descriptor, offset: int = 0) -> AsyncIterator[bytes]:
        """See `ImageSource`."""
        start, size = self._place(descriptor.digest)
        async for piece in pieces_of(self._fd, start + offset, start + size, self._what):
            yield piece

    async def close(self) -> None:
        """See `ImageSource`."""
        os.close(self._fd)

    def _place(self, digest: str) -> tuple[int, int]:
        found = self._blobs.get(digest)
        if found is None:
            raise image_error("damaged_layout", f"{self._what} is no archive of an image: it has no {quoted(path_of(digest))}")
        return found


class _Contents:
    """What lies where in an archive."""

    def __init__(self, fd: int, what: str) -> None:
        self._fd = fd
        self._what = what
        self._files: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        self._scan()

    @property
    def is_layout(self) -> bool:
        """Whether it has no image of Docker's form, but a layout."""
        return "manifest.json" not in self._files and VERSION in self._files

    def layout(self, reference: OciReference) -> tuple[RawManifest, dict[str, tuple[int, int]]]:
        """What a reference means in the layout, and where all its parts lie."""
        paths = ((name.split("/"), place) for name, place in self._files.items())
        blobs = {f"{path[1]}:{path[2]}": place for path, place in paths if path[0] == "blobs" and len(path) == 3}
        return choose(lambda path: self._read(self._place(path)), reference), blobs

    def image(self, wanted: str | None) -> tuple[RawManifest, dict[str, tuple[int, int]]]:
        """The manifest of an image, and where its parts lie."""
        entry = self._entry(wanted)
        layers = entry.get("Layers")
        if not isinstance(layers, list) or len(layers) > MOST_LAYERS:
            raise self._damaged("its manifest.json names no layers, or too many")
        place = self._place(entry.get("Config"))
        config = self._read(place)
        descriptors = []
        blobs = {}
        for layer, diff_id in zip(layers, self._diff_ids(config, len(layers)), strict=True):
            there = self._place(layer)
            digest = self._digest(there) if is_compressed(os.pread(self._fd, MAGIC_BYTES, there[0])) else diff_id
            blobs[digest] = there
            descriptors.append({"mediaType": OCI_LAYER, "digest": digest, "size": there[1]})
        described = {"mediaType": DOCKER_CONFIG, "digest": f"sha256:{hashlib.sha256(config).hexdigest()}", "size": len(config)}
        blobs[f"sha256:{hashlib.sha256(config).hexdigest()}"] = place
        data = json.dumps({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described, "layers": descriptors}).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        return RawManifest(data=data, digest=digest, media_type=OCI_MANIFEST), blobs

    def _scan(self) -> None:
        reader, position = Reader(), 0
        while not reader.ended:
            block = os.pread(self._fd, BLOCK_BYTES, position)
            position += len(block)
            if not block:
                reader.finish()
            for member in reader.feed(block):
                if not isinstance(member, Member):
                    continue
                name = posixpath.normpath(member.name.decode(errors="surrogateescape"))
                self._files.pop(name, None)
                self._links.pop(name, None)
                if member.kind == FILE:
                    self._files[name] = (position, member.size_bytes)
                    fill = padding(member.size_bytes)
                    position += member.size_bytes + len(fill)
                    # What lies there is read when it is wanted.
                    while reader.content_left:
                        _exhaust(reader.feed(_SKIPPED[: reader.content_left]))
                    _exhaust(reader.feed(fill))
                elif member.kind in (LINK, HARD_LINK):
                    target = member.target.decode(errors="surrogateescape")
                    above = posixpath.dirname(name) if member.kind == LINK else ""
                    self._links[name] = posixpath.normpath(posixpath.join(above, target))
                if len(self._files) + len(self._links) > MOST_MEMBERS:
                    raise self._damaged(f"it has more than {MOST_MEMBERS} files")

    def _entry(self, wanted: str | None) -> dict[str, Any]:
        if "manifest.json" not in self._files and "manifest.json" not in self._links:
            raise self._damaged(f"it has neither manifest.json, as `docker save` writes it, nor {VERSION}")
        data = self._read(self._place("manifest.json"))
        try:
            entries = json.loads(data)
        except (ValueError, RecursionError):
            raise self._damaged("its manifest.json is not JSON") from None
        if not isinstance(entries, list) or not entries or not all(isinstance(one, dict) for one in entries):
            raise self._damaged("its manifest.json is no list of images")
        names: dict[str, dict[str, Any]] = {}
        for entry in entries:
            tags = entry.get("RepoTags") or []
            if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
                raise self._damaged("its manifest.json has names that are none")
            names |= dict.fromkeys(tags, entry)
        if wanted is not None:
            found = names.get(wanted) or {_in_full(name): entry for name, entry in names.items()}.get(_in_full(wanted))
            if found is None:
                raise image_error("unknown_tag", f"{self._what}: nothing has this name in it; {there_are(names)}")
            return found
        if len(entries) > 1:
            several = f"{self._what}: there are several images in it; say which behind a colon"
            raise image_error("unknown_tag", f"{several}; {there_are(names)}")
        return dict(entries[0])

    def _diff_ids(self, config: bytes, count: int) -> list[str]:
        try:
            found = json.loads(config)["rootfs"]["diff_ids"]
        except (ValueError, RecursionError, LookupError, TypeError):
            found = None
        if not isinstance(found, list) or len(found) != count or not all(map(is_digest, found)):
            raise self._damaged("its configuration does not name its layers by sha256")
        return found

    def _place(self, name: object) -> tuple[int, int]:
        """Where a file lies; a link to another one in the archive is followed, once."""
        path = posixpath.normpath(name) if isinstance(name, str) else ""
        found = self._files.get(path) or self._files.get(self._links.get(path, ""))
        if found is None:
            raise self._damaged(f"it has no file {quoted(name)}")
        return found

    def _read(self, place: tuple[int, int]) -> bytes:
        return read_small(self._fd, place[1], place[0], LARGEST_BYTES, f"{self._what}: a description in it")

    def _digest(self, place: tuple[int, int]) -> str:
        found, (offset, size) = hashlib.sha256(), place
        while size > 0 and (piece := os.pread(self._fd, min(size, PIECE_BYTES), offset)):
            found.update(piece)
            offset, size = offset + len(piece), size - len(piece)
        return f"sha256:{found.hexdigest()}"

    def _damaged(self, why: str) -> SandboxImageError:
        return image_error("damaged_layout", f"{self._what} is no archive of an image: {why}")


def _exhaust(found: Iterator[object]) -> None:
    for _ in found:
        pass


def _in_full(name: str) -> str:
    try:
        return parse_oci_reference(name).name
    except SandboxImageError:
        return name


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
