"""Snapshots as a client takes them, and the one that a fork begins with."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aviato.core.background import background
from aviato.core.shared import SharedTask
from aviato.exceptions import AviatoError
from aviato.log import logger
from aviato.results import Snapshot
from aviato.wire.ids import new_snapshot_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.core.client import Client
    from aviato.core.lifecycle import SandboxHandle
    from aviato.wire.snapshots import SnapshotInfo

FORK_SECONDS = 24 * 3600.0
"""When the snapshot of a fork goes whose process died before it had removed it."""


async def take(handle: SandboxHandle, name: str | None, expires_after_seconds: float | None) -> Snapshot:
    """Make an image of what a sandbox has written, once it runs."""
    await handle.wait_running()
    return public(await taken(handle, new_snapshot_id(), name=name, expires_after_seconds=expires_after_seconds))


async def taken(handle: SandboxHandle, snapshot_id: str, **wanted: Any) -> SnapshotInfo:
    """Take one of a sandbox that runs, as `TakeSnapshot` has it.

    Where nothing is left to be fetched its files can stay where they lie, so the server is told first what has arrived.
    """
    await handle.lease.acknowledgements.told_of(handle.sandbox_id)
    return await handle.client.take_snapshot(handle.sandbox_id, snapshot_id, **wanted)


async def found(client: Client) -> list[Snapshot]:
    """Those of a server, the newest first."""
    return [public(info) for info in await client.list_snapshots()]


def public(info: SnapshotInfo) -> Snapshot:
    """What a server says of a snapshot, as callers have it."""
    return Snapshot(**info.model_dump())


class Fork:
    """What the children of one fork begin with: a snapshot that is taken once, and goes when they have begun and ended.

    Args:
        parent: gives the handle of the sandbox that is forked; called on the loop thread.
        children: how many there will be.

    Attributes:
        image: of the children.
    """

    status_reason = None

    def __init__(self, parent: Callable[[], SandboxHandle], children: int) -> None:
        self.image = new_snapshot_id()
        self._parent = parent
        self._left = children
        self._taking: SharedTask[None] | None = None

    async def begin(self) -> None:
        """Take it now, whenever children begin; what goes wrong is theirs to say."""
        with suppress(AviatoError):
            await self.taken()

    async def taken(self) -> str:
        """The image, once the image is there. It is taken once: all children are of the same moment, or fail."""
        if self._taking is None:
            handle = self._parent()
            self._taking = SharedTask(self._take(handle), f"fork into {self.image}")
            handle.forking.append(self._taking)
        await self._taking.outcome()
        return self.image

    def is_lost(self, error: AviatoError) -> bool:
        """Never: it is of one moment."""
        return False

    def begun(self) -> None:
        """A child has been accepted, or has failed."""
        self._left -= 1
        if self._left == 0 and self._taking is not None:
            background(self._remove())

    async def _take(self, handle: SandboxHandle) -> None:
        handle.enter()
        try:
            await handle.wait_running()
            await taken(handle, self.image, expires_after_seconds=FORK_SECONDS, kind="fork")
        except AviatoError as error:
            handle.has_failed(error)
            raise
        finally:
            handle.forking = [one for one in handle.forking if one is not self._taking]
            handle.leave()

    async def _remove(self) -> None:
        assert self._taking is not None
        await self._taking.ended()  # Children that were given up need not wait for it.
        try:
            await self._parent().client.delete_snapshot(self.image, missing_ok=True)
        except AviatoError as error:
            logger.debug("the snapshot %s of a fork could not be removed, and goes by itself: %s", self.image, error)
