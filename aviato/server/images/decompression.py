"""Layers and archives decompressed, in bounded memory and up to a bounded size. Blocks; for worker threads."""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

from aviato.server.images.image_errors import image_error

if TYPE_CHECKING:
    from collections.abc import Iterator

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
MAGIC_BYTES = 4
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_GZIP_BITS = 31
PIECE_BYTES = 1 << 20
INPUT_BYTES = 256 << 10
LARGEST_WINDOW_BYTES = 128 << 20
"""Of zstd: what every decompressor has to be able to do, and what one layer may take of memory."""


def decompress(fd: int, most_bytes: int, what: str) -> Iterator[bytes]:
    """What a file holds, decompressed if its first bytes say that it is compressed.

    Args:
        fd: of the file; read from its beginning on, whatever its position is.
        most_bytes: that it may become.
        what: whose it is, for messages.

    Raises:
        SandboxImageError: it is damaged (`damaged_layer`) or becomes too large (`too_large`).
    """
    start = os.pread(fd, MAGIC_BYTES, 0)
    if start[:2] == GZIP:
        found = _gzip(fd, what)
    elif is_compressed(start):
        found = _zstd(fd, what)
    else:
        found = _plain(fd)
    total = 0
    for piece in found:
        total += len(piece)
        if total > most_bytes:
            raise image_error("too_large", f"{what} becomes larger than {most_bytes} bytes")
        yield piece


def is_compressed(start: bytes) -> bool:
    """Whether something that begins with these `MAGIC_BYTES` bytes is compressed."""
    is_zstd = start == ZSTD or (len(start) == MAGIC_BYTES and int.from_bytes(start, "little") in _SKIPPABLE)
    return is_zstd or start[:2] == GZIP


def _plain(fd: int) -> Iterator[bytes]:
    offset = 0
    while piece := os.pread(fd, PIECE_BYTES, offset):
        offset += len(piece)
        yield piece


def _gzip(fd: int, what: str) -> Iterator[bytes]:
    """Of one or more members; zeros may follow the last one."""
    offset, waiting, ended = 0, b"", False
    reader = zlib.decompressobj(wbits=_GZIP_BITS)
    while True:
        if not waiting:
            waiting = os.pread(fd, INPUT_BYTES, offset)
            offset += len(waiting)
            ended = not waiting
        if reader.eof:
            waiting = waiting.lstrip(b"\0")
            if not waiting:
                if ended:
                    return
                continue
            reader = zlib.decompressobj(wbits=_GZIP_BITS)
        try:
            piece = reader.decompress(waiting, PIECE_BYTES)
        except zlib.error as error:
            raise image_error("damaged_layer", f"{what} cannot be decompressed by gzip: {error}") from error
        if ended and not piece and not reader.eof:
            raise image_error("damaged_layer", f"{what} ends within a stream of gzip")
        waiting = reader.unused_data if reader.eof else reader.unconsumed_tail
        if piece:
            yield piece


def _zstd(fd: int, what: str) -> Iterator[bytes]:
    import zstandard

    with open(os.dup(fd), "rb", buffering=0) as file:
        file.seek(0)
        decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW_BYTES)
        try:
            with decompressor.stream_reader(file, read_size=INPUT_BYTES, read_across_frames=True) as reader:
                while piece := reader.read(PIECE_BYTES):
                    yield piece
        except zstandard.ZstdError as error:
            raise image_error("damaged_layer", f"{what} cannot be decompressed by zstd: {error}") from error
