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
        size_bytes: of all its files, as far as they take place on the disk: holes do not.
        files: of any kind, directories too.
        implied: directories that its tar leaves out, and that were made like those in the layers below.
        left_out: members that were not made, such as device nodes.
        says_top: whether the tar says how the top itself is to be.
    """

    size_bytes: int
    files: int
    implied: int
    left_out: int
    says_top: bool = False


class Count(Protocol):
    """Says how much is in a layer that was a sandbox's own."""

    async def __call__(self, root: Path) -> UnpackedLayer:
        """Count it. Nothing is changed: sandboxes may lie on it.

        Args:
            root: the layer's directory.

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
