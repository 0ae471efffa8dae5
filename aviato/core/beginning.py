"""What a sandbox may have to wait for before it can be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aviato.exceptions import AviatoError


class Beginning(Protocol):
    """What has to be there before a sandbox can be asked for."""

    @property
    def status_reason(self) -> str | None:
        """Of a sandbox that waits for it, which no server knows yet; None: nothing is said of it."""
        ...

    async def taken(self) -> str:
        """The image that the sandbox is of, once that is there.

        Raises:
            AviatoError: it cannot be had.
        """
        ...

    def is_lost(self, error: AviatoError) -> bool:
        """Take note of how asking for a sandbox of it failed.

        Returns:
            Whether the image has been removed since it was taken, and `taken` makes it anew.
        """
        ...

    def begun(self) -> None:
        """The sandbox has been accepted, or never will be."""
        ...
