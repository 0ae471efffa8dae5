"""What a reference turned out to mean."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from aviato.server.images.image_config import ImageConfig


class Came(NamedTuple):
    """What it took to have an image come.

    Attributes:
        seconds: how long it took.
        done_bytes: that were downloaded for it.
    """

    seconds: float
    done_bytes: int


@dataclass(frozen=True, kw_only=True)
class ResolvedImage:
    """An image that this backend can start, or fetch.

    Attributes:
        reference: what is in use, for the record.
        note: what the client should log once, or None: a substitution, or what will not work.
        kind: `host`, `dir` (a directory that is there), or `oci` (of a registry, a layout or an archive).
        layers: root directories that lie over one another, the uppermost first; of a `host` image none.
        above: of a `host` image, those that lie over what is the machine's own.
        strange: directories of a `dir` image that belong to a user whom no sandbox of this server can have, with their modes. A
            sandbox begins with such ones of its own in their place, which what is in those is seen through.
        top: of an image of the store, which of its layers says how the root itself is, where that is not as it is by itself.
        interpreter: the host Python that `python` means in a `host` sandbox.
        image_id: of an image that the store has.
        lacks_start: such an image can have a starting layer, and has none.
        owner: of a snapshot, the tenant who has it; None: whoever may use this server.
        is_snapshot: it was made of a sandbox here.
        config: what such an image says of its commands.
        came: of one that this call alone has had come; nothing that the image is.
    """

    reference: str
    kind: Literal["host", "dir", "oci"]
    note: str | None = None
    layers: tuple[str, ...] = ()
    above: tuple[str, ...] = ()
    strange: tuple[tuple[str, int], ...] = ()
    top: int | None = None
    interpreter: str | None = None
    image_id: str | None = None
    config: ImageConfig | None = None
    lacks_start: bool = False
    owner: str | None = None
    is_snapshot: bool = False
    came: Came | None = field(default=None, compare=False)

    @property
    def is_host(self) -> bool:
        """Whether its files are the machine's own."""
        return self.kind == "host"

    @property
    def is_here(self) -> bool:
        """Whether a sandbox can be made of it at once."""
        return self.kind != "oci" or self.image_id is not None

    @property
    def lasting_id(self) -> str | None:
        """By which it can be had again when its name means another one; None where nothing but the name tells."""
        if self.image_id is None:
            # An image that is called `python:3.12` may come later.
            return self.reference.replace("python", "host") if self.is_host else None
        return self.image_id if "sha256:" in self.image_id else None

    @property
    def without_names(self) -> ResolvedImage:
        """The same whatever it was asked for by, and whether it has its starting layer already or not: known by its id."""
        if self.image_id is None:
            return self
        named = replace(self, reference=self.image_id, note=None)
        return named if self.is_snapshot else replace(named, layers=(), top=None, lacks_start=False)

    @property
    def is_stored(self) -> bool:
        """Whether layers of the store are in it, or will be."""
        return self.kind == "oci" or self.image_id is not None
