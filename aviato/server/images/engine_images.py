"""What a reference names where whoever starts sandboxes has the images itself: an engine, or the nodes of a cluster."""

from __future__ import annotations

from typing import NamedTuple

from aviato.exceptions import SandboxImageError
from aviato.server.images.oci_reference import id_prefix, parse_oci_reference
from aviato.wire.ids import SNAPSHOT_ID
from aviato.wire.images import is_machines_own


class Refusals(NamedTuple):
    """Why there is none of a kind, in words for a backend's callers.

    Attributes:
        backend: its name.
        host: of the machine's own files.
        directory: how a directory becomes an image.
        archive: where its images are.
    """

    backend: str
    host: str
    directory: str
    archive: str


def named(reference: str | None, default: str, refusals: Refusals, *, by_id: bool) -> str:
    """The image, which is one of a registry.

    Args:
        reference: as it was asked for; None: the default.
        default: of sandboxes that name none.
        refusals: what else is told.
        by_id: whether it may be the id of one that is there.

    Raises:
        SandboxImageError: it is of another kind.
    """
    found = default if reference is None else reference
    backend = f"the backend {refusals.backend!r}"
    if found.startswith("dir:"):
        raise SandboxImageError(f"image {found!r}: {backend} starts no directories; {refusals.directory}")
    if is_machines_own(found):
        instead = f"name an image, or none for this server's {default!r} (default_image)"
        if found == default:
            instead = "name an image, and have this server's default_image be one"
        raise SandboxImageError(f"image {found!r}: {refusals.host}; {instead}", reason="image_not_here")
    if SNAPSHOT_ID.fullmatch(found):
        raise SandboxImageError(f"image {found!r}: {backend} has no snapshots", reason="image_not_here")
    if not (by_id and id_prefix(found) is not None) and parse_oci_reference(found).kind != "registry":
        raise SandboxImageError(f"image {found!r}: {backend} {refusals.archive}", reason="image_not_here")
    return found
