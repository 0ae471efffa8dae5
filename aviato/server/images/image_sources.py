"""Where an image comes from: one small interface for a registry, a layout directory and an archive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.images.manifests import Descriptor


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
