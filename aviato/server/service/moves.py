"""Moves: a sandbox at rest leaves its layer to a snapshot, where it lies, and goes on in another place over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aviato.server.service.snapshot_requests import SnapshotRequest
from aviato.system.threads import in_thread

if TYPE_CHECKING:
    import asyncio

    from aviato.server.backends.base import Backend
    from aviato.server.images.image_snapshots import NewSnapshot
    from aviato.server.images.stored_image import StoredImage
    from aviato.server.link.link import Process1Link
    from aviato.server.service.departures import Departures
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.store import SandboxRecord

MOST_LAYERS = 48
"""A sandbox that lies on so many moves no more: each makes looking names up in it a little slower."""


class Moves:
    """Takes snapshots in a time that does not depend on how much was written, of sandboxes in which nothing runs.

    Args:
        backend: has the places.
        departures: let a sandbox go from one to another.
    """

    def __init__(self, backend: Backend, departures: Departures) -> None:
        self._backend = backend
        self._departures = departures

    async def begin(
        self, sandbox: LiveSandbox, link: Process1Link, request: SnapshotRequest, new: NewSnapshot
    ) -> asyncio.Future[StoredImage] | None:
        """Let a sandbox move, and give what comes to the snapshot. None where it has to stay: something runs or is kept in it.

        Args:
            sandbox: it runs, and this request alone uses it.
            link: of its process 1.
            request: what was asked for.
            new: the same, as the store takes it.
        """
        if not _can_move(sandbox):
            return None
        if not await in_thread(self._has_room, sandbox.place_id, new.image_id):
            return None
        said = await link.rest()
        if said is None or not said.rests:
            return None
        # From here on in one turn: whoever has asked for something since the answer is seen, and nobody can before the move.
        if not (_can_move(sandbox) and sandbox.link is link and link.is_quiet):
            return None
        return self._departures.move(sandbox, said.done, request, new)

    def _has_room(self, place_id: str, image_id: str | None) -> bool:
        """Whether its layer can be moved, over so many others. Blocks for a moment."""
        store = self._backend.image_store
        below = 0 if store is None or image_id is None else store.layers_of(image_id)
        return below < MOST_LAYERS and self._backend.leaves_layer(place_id)

    async def finish(self, record: SandboxRecord) -> SandboxRecord:
        """Go on with a move that a server was killed in; the sandbox can begin in its new place then.

        Raises:
            AviatoError, OSError: its layer cannot be had.
        """
        assert record.moving is not None
        request, leaves = SnapshotRequest.from_json(record.moving)
        store = self._backend.image_store
        if store is None or await in_thread(store.find, request.snapshot_id) is None:
            below = await in_thread(request.below, self._backend, leaves)
            await self._backend.leave_layer(leaves, request.new(*below))
        return record.but(moving=None)


def _can_move(sandbox: LiveSandbox) -> bool:
    """Whether all that it has is on record or in its files, and nobody but one request uses it."""
    wanted = sandbox.request
    own = wanted.command is not None or wanted.secrets or sandbox.record.for_one_run
    return sandbox.runs and sandbox.calls == 1 and not own and all(one.recorded is not None for one in sandbox.execs.values())
