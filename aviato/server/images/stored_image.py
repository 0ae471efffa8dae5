"""An image that a store has, and how far a pull is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from aviato.server.images.image_config import ImageConfig
    from aviato.server.images.image_index import RecordedSnapshot


@dataclass(frozen=True, kw_only=True)
class UnpackedImage:
    """What sandboxes are made of.

    Attributes:
        image_id: `sha256:HEX` of its configuration.
        layers: absolute paths of its layers' directories, the uppermost first; each is there once.
        config: what it says of commands.
        top: which of these layers says that the root is another one than sandboxes have by themselves, or None.
        lacks_start: it can have a starting layer, and has none.
        snapshot: of an image that is one.
    """

    image_id: str
    layers: tuple[str, ...]
    config: ImageConfig
    top: int | None = None
    lacks_start: bool = False
    snapshot: RecordedSnapshot | None = None


@dataclass(frozen=True, kw_only=True)
class StoredImage(UnpackedImage):
    """An image that is here whole.

    Attributes:
        names: normalised references that mean it here.
        architecture: as OCI names it, such as `amd64`.
        size_bytes: of all its layers, unpacked; None: not all have been counted, see `ImageStore.sized`.
        created_at: in seconds since the epoch, as the image says.
        pulled_at: in seconds since the epoch.
        used_at: when a sandbox last began or ended with it, or when it was pulled.
        pinned: it stays, whatever is pruned.
    """

    names: tuple[str, ...]
    architecture: str
    size_bytes: int | None
    created_at: float | None
    pulled_at: float
    used_at: float
    pinned: bool


@dataclass(frozen=True)
class Progress:
    """How far a pull is.

    Attributes:
        phase: what it is at.
        done_bytes: downloaded, of layers that were not here.
        total_bytes: of these layers; None until it is known.
        layers_done: layers that are here whole.
        layers_total: all layers of the image; 0 until it is known.
    """

    phase: Literal["resolving", "pulling", "unpacking", "done"]
    done_bytes: int
    total_bytes: int | None
    layers_done: int
    layers_total: int
