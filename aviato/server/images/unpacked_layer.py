"""How a layer becomes a directory: what the store asks of whoever unpacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

MOST_BYTES = 64 << 30
MOST_FILES = 4_000_000


@dataclass(frozen=True)
class UnpackLimits:
    """What a layer may become at most.

    Attributes:
        most_bytes: of all its files.
        most_files: of any kind, directories too.
    """

    most_bytes: int = MOST_BYTES
    most_files: int = MOST_FILES


@dataclass(frozen=True)
class UnpackedLayer:
    """What a layer has become.

    Attributes:
        size_bytes: of all its files.
        files: of any kind, directories too.
        implied: directories that its tar leaves out, and that were made like those in the layers below.
        left_out: members that were not made, such as device nodes.
    """

    size_bytes: int
    files: int
    implied: int
    left_out: int


@dataclass(frozen=True)
class HostIds:
    """The ids that files of a tree have on disk, where a store has others.

    Attributes:
        first: what 0 is there.
        count: so many from there on.
    """

    first: int
    count: int


@dataclass(frozen=True)
class LeftLayer:
    """The writable layer of a sandbox that is dead, on the file system of the store.

    Attributes:
        path: its directory.
        ids: that its files have, where the store has others.
    """

    path: Path
    ids: HostIds | None


class Adopt(Protocol):
    """Makes a layer of a directory that was a sandbox's own, where it lies. Blocks."""

    def __call__(self, root: Path, ids: HostIds | None) -> UnpackedLayer:
        """Give its files the ids of a store, and count them. It may be done again.

        Args:
            root: the directory, in the form of overlayfs; nobody changes it any more.
            ids: that its files have; None: those of the store.

        Raises:
            SandboxImageError: it cannot be done.
        """
        ...


class Unpack(Protocol):
    """Makes a layer's directory."""

    async def __call__(
        self, pieces: AsyncIterator[bytes], into: Path, below: Sequence[Path], limits: UnpackLimits
    ) -> UnpackedLayer:
        """Unpack a layer.

        Args:
            pieces: its tar, decompressed.
            into: an empty directory, which becomes the layer's `root`.
            below: the `root`s under it, the uppermost first.
            limits: what it may become.

        Raises:
            SandboxImageError: the tar is damaged or hostile, or becomes too large.
        """
        ...
