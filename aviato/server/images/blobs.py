"""Downloads of blobs: gone on with where they were cut, and known to be right before anybody uses them."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING, Self

from aviato.exceptions import SandboxImageError
from aviato.server.images.decompression import decompress
from aviato.server.images.image_errors import image_error
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from aviato.server.images.image_sources import ImageSource
    from aviato.server.images.manifests import Descriptor
    from aviato.server.images.patience import Patience
    from aviato.server.images.unpacked_layer import Unpack, UnpackedLayer, UnpackLimits

WRITE_BYTES = 256 << 10
PROGRESS_BYTES = 1 << 20
"""A download that got so far before it was cut has its attempts anew."""
HEADER_BYTES = 2048
"""What a member of a tar takes beside its contents, generously."""
_PASSING = ("interrupted", "stalled", "registry_failed", "registry_unreachable")


async def read_blob(source: ImageSource, descriptor: Descriptor, what: str, patience: Patience) -> bytes:
    """A small blob, checked.

    Raises:
        SandboxImageError: it is another one, or does not come.
    """
    data = bytearray()
    for attempt in range(patience.attempts):
        data.clear()
        try:
            async for piece in source.blob(descriptor):
                data += piece
                if len(data) > descriptor.size_bytes:
                    break
            break
        except SandboxImageError as error:
            if error.reason != "interrupted" or attempt == patience.attempts - 1:
                raise
        await asyncio.sleep(patience.backoff(attempt))
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != descriptor.digest:
        raise image_error("wrong_digest", f"the configuration of {what} is not the one that its manifest names")
    return bytes(data)


async def download(
    source: ImageSource, descriptor: Descriptor, fd: int, what: str, patience: Patience, on_bytes: Callable[[int], None]
) -> None:
    """Have a blob in a file, whole and right.

    Args:
        source: where it comes from.
        descriptor: which one it is.
        fd: of the file, with what an earlier download has left in it.
        what: whose it is, for messages.
        patience: with cuts.
        on_bytes: told how many more bytes are here; fewer than none where they were wrong.

    Raises:
        SandboxImageError: it cannot be had; what came so far stays, unless it is wrong.
        OSError: the disk fails.
    """
    part = _Part(fd, descriptor.size_bytes)
    await in_thread(part.resume)
    is_resumed = part.size > 0
    on_bytes(part.size)
    await _fetch(source, descriptor, part, what, patience, on_bytes)
    if part.digest != descriptor.digest and is_resumed:
        # What was left may have been damaged since.
        on_bytes(-part.size)
        await in_thread(part.clear)
        await _fetch(source, descriptor, part, what, patience, on_bytes)
    if part.digest != descriptor.digest:
        found = part.digest
        on_bytes(-part.size)
        await in_thread(part.clear)
        raise image_error("wrong_digest", f"a layer of {what} came with other bytes: {found}, and not {descriptor.digest}")


async def unpack_blob(
    fd: int, diff_id: str, into: Path, below: Sequence[Path], *, unpack: Unpack, limits: UnpackLimits, what: str
) -> UnpackedLayer:
    """Make a layer's directory of a blob that is here and right.

    Raises:
        SandboxImageError: it cannot be unpacked, or is not the layer that the configuration names.
    """
    most = limits.most_bytes + limits.most_files * HEADER_BYTES
    stream = _Decompressed(fd, most, f"a layer of {what}")
    unpacked = await unpack(stream, into, below, limits)
    async for _ in stream:  # Whatever follows the end of the tar belongs to its digest.
        pass
    if stream.digest != diff_id:
        raise image_error("wrong_digest", f"a layer of {what} is {stream.digest}, and not {diff_id}")
    return unpacked


async def _fetch(
    source: ImageSource, descriptor: Descriptor, part: _Part, what: str, patience: Patience, on_bytes: Callable[[int], None]
) -> None:
    failures = 0
    while part.size < descriptor.size_bytes:
        before = part.size
        failure = None
        try:
            await _take(source, descriptor, part, on_bytes, what)
        except SandboxImageError as error:
            if error.reason not in _PASSING:
                raise
            failure = error
        if part.size == descriptor.size_bytes:
            return
        if failure is None and part.size == before:
            failure = image_error("truncated_layer", f"a layer of {what} ends after {before} of {descriptor.size_bytes} bytes")
            raise failure
        failures = 0 if part.size - before >= PROGRESS_BYTES else failures + 1
        if failures >= patience.attempts:
            raise failure or image_error("truncated_layer", f"a layer of {what} ends early again and again")
        await asyncio.sleep(patience.backoff(failures))


async def _take(source: ImageSource, descriptor: Descriptor, part: _Part, on_bytes: Callable[[int], None], what: str) -> None:
    """Write down what comes until the source ends or is cut."""
    waiting: list[bytes] = []
    size = 0
    try:
        async for piece in source.blob(descriptor, part.size):
            waiting.append(piece)
            size += len(piece)
            if part.size + size > descriptor.size_bytes:
                waiting.clear()
                on_bytes(-part.size)
                await in_thread(part.clear)
                raise image_error("oversized_layer", f"a layer of {what} has more than its {descriptor.size_bytes} bytes")
            if size >= WRITE_BYTES:
                taken, waiting, size = waiting, [], 0
                await in_thread(part.add, taken)
                on_bytes(sum(map(len, taken)))
    finally:
        if waiting:
            await in_thread(part.add, waiting)
            on_bytes(sum(map(len, waiting)))


class _Part:
    """The file of a download, and the digest of what it holds. Blocks; for worker threads."""

    def __init__(self, fd: int, most_bytes: int) -> None:
        self.size = 0
        self._fd = fd
        self._most_bytes = most_bytes
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of all that is there."""
        return f"sha256:{self._hash.hexdigest()}"

    def resume(self) -> None:
        """Look at what is there."""
        if os.fstat(self._fd).st_size > self._most_bytes:
            self.clear()
        while piece := os.pread(self._fd, PROGRESS_BYTES, self.size):
            self._hash.update(piece)
            self.size += len(piece)

    def add(self, pieces: list[bytes]) -> None:
        """Write more."""
        for piece in pieces:
            view = memoryview(piece)
            while view:
                written = os.pwrite(self._fd, view, self.size)
                self._hash.update(view[:written])
                self.size += written
                view = view[written:]

    def clear(self) -> None:
        """Begin anew."""
        os.ftruncate(self._fd, 0)
        self.size = 0
        self._hash = hashlib.sha256()


class _Digested:
    """Pieces, and the digest of those that have been read. No generator, so that whoever stops early does not end it."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Of what has been read."""
        return f"sha256:{self._hash.hexdigest()}"

    def __aiter__(self) -> Self:
        return self


class _Decompressed(_Digested):
    """The tar of a layer."""

    def __init__(self, fd: int, most_bytes: int, what: str) -> None:
        super().__init__()
        self._pieces = decompress(fd, most_bytes, what)

    async def __anext__(self) -> bytes:
        piece = await in_thread(self._next)
        if piece is None:
            raise StopAsyncIteration
        return piece

    def _next(self) -> bytes | None:
        piece = next(self._pieces, None)
        if piece is not None:
            self._hash.update(piece)
        return piece


class Hashed(_Digested):
    """Pieces that come from elsewhere."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces

    async def __anext__(self) -> bytes:
        piece = await anext(self._pieces)
        self._hash.update(piece)
        return piece
