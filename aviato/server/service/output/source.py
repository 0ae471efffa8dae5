"""Where the frames of a command come from, all alike: live from process 1, recorded on disk, or retained after the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aviato.wire.frames import Frame


class Source(Protocol):
    """A `link.Subscription`, a `RecordedReader` or a `RetainedReader`."""

    @property
    def queued_bytes(self) -> int:
        """Payload that has arrived and was not taken yet."""

    async def wait(self, enough_bytes: int = 0) -> None:
        """Wait until `drain()` has something to give, and so much of it, or nothing more will come."""

    def drain(self, most_bytes: float = ...) -> list[Frame]:
        """The frames that have arrived and were not taken yet, of more than so much payload only the first; never waits.

        Raises:
            SandboxGone: nothing is left and the sandbox ended before the command did.
            AviatoError: how else the command came to no end.
        """

    def close(self) -> None:
        """Stop reading; the command runs on."""
