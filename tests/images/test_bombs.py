"""Layers that become more than they should, from a registry to the end of the pull: none is an image, and none stays."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from aviato.exceptions import SandboxImageError
from aviato.server.backends.local import binary
from aviato.server.images.store import ImageStore
from aviato.server.images.unpacked_layer import UnpackLimits
from aviato.server.images.unpacking import Unpacking
from tests.images.faulty_registry import faulty_registry
from tests.images.layouts import Image, tar_of

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nobody")]
LIMITS = UnpackLimits(most_bytes=4_000_000, most_files=200)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store", Unpacking(binary.found, owners=False), limits=LIMITS)


def sparse(size: int) -> bytes:
    """One file of nothing but a size, in pax's form of files with holes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("hole")
        content = f"1\n{size}\n0\n".encode().ljust(512, b"\0")
        form = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        member.pax_headers = {**form, "GNU.sparse.name": "hole", "GNU.sparse.realsize": str(size)}
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def zeros() -> bytes:
    return tar_of({"zeros": bytes(64 << 20)})


BOMBS: dict[str, tuple[Callable[[], bytes], dict[str, Any], str]] = {
    "zeros": (zeros, {}, "too_large"),
    "zeros by zstd": (zeros, {"compress": zstd, "kind": "+zstd"}, "too_large"),
    "zeros behind the end": (lambda: tar_of({"x": b""}) + bytes(64 << 20), {}, "too_large"),
    "a head without end": (lambda: tar_of({"x": b""})[:-1024] + b"x" * (64 << 20), {}, "damaged_archive"),
    "files": (lambda: tar_of({f"{number:05}": b"" for number in range(20_000)}), {}, "too_large"),
    "an exact size": (lambda: sparse(1 << 40), {}, "too_large"),
    "compressed twice": (lambda: gzip.compress(zeros()), {}, "damaged_archive"),
}
"""Each is made by its test: all of them are 300 MB, and a second of each process that collects."""


@pytest.mark.parametrize("name", BOMBS)
async def test_it_is_refused_and_nothing_of_it_stays(store: ImageStore, tmp_path: Path, name: str) -> None:
    make, form, reason = BOMBS[name]
    fine = tar_of({"fine": b"yes"})
    async with faulty_registry() as registry:
        reference = registry.add("v1", Image(fine, make(), **form))
        with pytest.raises(SandboxImageError) as caught:
            await store.pull(reference)
        assert (caught.value.reason, caught.value.is_infrastructure, caught.value.retryable) == (reason, True, False)
        assert store.find(reference) is None and store.list() == []
        sizes = [path.lstat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file()]
        assert sum(sizes) < 1_000_000
        assert await store.pull(registry.add("v1", Image(fine)))
