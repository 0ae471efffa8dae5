"""Opens where an image comes from, as its reference says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.images.docker_archive import DockerArchive
from aviato.server.images.empty_image import EmptyImage
from aviato.server.images.oci_layout import OciLayout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aviato.server.images.image_sources import ImageSource
    from aviato.server.images.oci_reference import OciReference
    from aviato.server.images.patience import Patience


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
        return await OciLayout.open(reference)
    if reference.kind == "archive":
        return await DockerArchive.open(reference, scratch, most_bytes)
    if reference.kind == "scratch":
        return EmptyImage()
    # Here, since it is a client that many servers never need.
    from aviato.server.images.registry import Registry

    return Registry(reference, mirrors=mirrors, patience=patience)
