"""Layers packed for others: each a tar, compressed by gzip, in a file that has no name and goes with this process."""

from __future__ import annotations

import hashlib
import os
import zlib
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aviato.server.images.manifests import OCI_LAYER, Descriptor
from aviato.system.threads import in_thread, opened_in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aviato.server.images.packing import Pack

READ_BYTES = 256 << 10
GZIP_LEVEL = 4
"""Most of what the highest one saves, in a third of the time."""
_GZIP_BITS = 31


@dataclass(frozen=True, kw_only=True)
class PackedLayer:
    """A layer that can be read any number of times, until its file is closed.

    Attributes:
        descriptor: of its blob.
        diff_id: of its tar.
        fd: of the file.
    """

    descriptor: Descriptor
    diff_id: str
    fd: int

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its blob, from the beginning."""
        offset = 0
        while piece := await in_thread(os.pread, self.fd, READ_BYTES, offset):
            offset += len(piece)
            yield piece

    def close(self) -> None:
        """Let the file go."""
        os.close(self.fd)


async def pack_layer(pack: Pack, root: Path, scratch: Path) -> PackedLayer:
    """Pack a layer; close it.

    Args:
        pack: makes its tar.
        root: its directory.
        scratch: a directory on the disk that the blob is put on.

    Raises:
        SandboxImageError: it cannot be packed.
        OSError: the disk fails.
    """
    writer = await opened_in_thread(_Writer, scratch)
    assert writer is not None
    try:
        async with aclosing(pack(root)) as pieces:
            async for piece in pieces:
                await in_thread(writer.add, piece)
        await in_thread(writer.finish)
    except BaseException:
        writer.close()
        raise
    descriptor = Descriptor(digest=writer.digest, size_bytes=writer.size_bytes, media_type=f"{OCI_LAYER}+gzip")
    return PackedLayer(descriptor=descriptor, diff_id=writer.diff_id, fd=writer.fd)


class _Writer:
    """Compresses, writes and counts. Blocks; for worker threads."""

    def __init__(self, scratch: Path) -> None:
        self.fd = os.open(scratch, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self._compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_BITS)
        self._tar, self._blob = hashlib.sha256(), hashlib.sha256()
        self.size_bytes = 0

    @property
    def diff_id(self) -> str:
        return f"sha256:{self._tar.hexdigest()}"

    @property
    def digest(self) -> str:
        return f"sha256:{self._blob.hexdigest()}"

    def add(self, piece: bytes) -> None:
        self._tar.update(piece)
        self._write(self._compressor.compress(piece))

    def finish(self) -> None:
        self._write(self._compressor.flush())

    def close(self) -> None:
        os.close(self.fd)

    def _write(self, data: bytes) -> None:
        self._blob.update(data)
        self.size_bytes += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]
