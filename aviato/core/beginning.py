"""What a sandbox may have to wait for before it can be asked for."""

from __future__ import annotations

from typing import Protocol


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

    def begun(self) -> None:
        """The sandbox has been accepted, or never will be."""
        ...
