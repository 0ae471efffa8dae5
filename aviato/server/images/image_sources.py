"""Where an image comes from: one small interface for a registry, a layout directory and an archive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from aviato.server.images.manifests import Descriptor
    from aviato.server.images.oci_reference import OciReference
    from aviato.server.images.registry_requests import Patience


@dataclass(frozen=True, kw_only=True)
class RawManifest:
    """A manifest or an index as it came.

    Attributes:
        data: its bytes.
        digest: of these.
        media_type: what the source says it is, or None.
    """

    data: bytes
    digest: str
    media_type: str | None


class ImageSource(Protocol):
    """One image's source."""

    async def digest(self) -> str | None:
        """The digest of what the reference means there; None where only the manifest itself tells.

        Raises:
            SandboxImageError: there is no such image, or the source fails.
        """
        ...

    async def manifest(self, digest: str | None = None) -> RawManifest:
        """What the reference means there, or a manifest that an index names.

        Raises:
            SandboxImageError: there is none, or the source fails.
        """
        ...

    def blob(self, descriptor: Descriptor, offset: int = 0) -> AsyncIterator[bytes]:
        """The bytes of a layer or a configuration, from one on. Nobody has checked them.

        Raises:
            SandboxImageError: it is not there, or the source fails; `interrupted` and `stalled` may be gone on with.
        """
        ...

    async def close(self) -> None:
        """Let go of what it holds."""
        ...


async def open_source(
    reference: OciReference, *, mirrors: Mapping[str, tuple[str, ...]], patience: Patience, scratch: Path, most_bytes: int
) -> ImageSource:
    """The source of a reference; `close` it.

    Args:
        reference: what is wanted.
        mirrors: by registry, the hosts that are asked before it.
        patience: with each of them.
        scratch: a directory for an archive that has to be decompressed.
        most_bytes: that it may be then.

    Raises:
        SandboxImageError: the path does not exist, or is no image.
    """
    if reference.kind == "layout":
        from aviato.server.images.oci_layout import OciLayout

        return await OciLayout.open(reference)
    if reference.kind == "archive":
        from aviato.server.images.docker_archive import DockerArchive

        return await DockerArchive.open(reference, scratch, most_bytes)
    from aviato.server.images.registry import Registry

    return Registry(reference, mirrors=mirrors, patience=patience)
