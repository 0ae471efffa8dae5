"""Snapshots of sandboxes, which go on whoever waits for them, and what else is asked of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, SandboxImageError, SandboxSnapshotError, SandboxUnavailableError
from aviato.server.backends.capabilities import Capability
from aviato.server.images.image_errors import disk_error
from aviato.server.images.oci_reference import parse_own_name
from aviato.server.link.ended import SandboxGone
from aviato.server.link.file_calls import InTime
from aviato.server.service.registry import error_of_gone, running
from aviato.server.service.snapshot_requests import SnapshotRequest
from aviato.server.states import State
from aviato.system.threads import in_thread
from aviato.wire.errors import RequestConflictError
from aviato.wire.ids import SNAPSHOT_ID
from aviato.wire.images import BUILT
from aviato.wire.snapshots import SnapshotInfo, SnapshotList

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.backends.base import Backend
    from aviato.server.callers import Caller
    from aviato.server.images.image_snapshots import NewSnapshot
    from aviato.server.images.resolved import ResolvedImage
    from aviato.server.images.store import ImageStore
    from aviato.server.images.stored_image import StoredImage
    from aviato.server.link.channels import ReadChannel
    from aviato.server.link.link import Process1Link
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.moves import Moves
    from aviato.server.service.registry import Registry
    from aviato.server.service.slots import Slots
    from aviato.server.service.snapshot_requests import Below
    from aviato.wire.snapshots import TakeSnapshot

MOST_OF_A_KEY = 64
"""Snapshots that an API key may have at once, steps of its builds among them."""


class Snapshots:
    """What is asked of the snapshots of a server.

    Args:
        backend: has the store.
        registry: of its sandboxes.
        slots: are told that one is in use meanwhile.
        moves: takes those of sandboxes at rest.
    """

    def __init__(self, backend: Backend, registry: Registry, slots: Slots, moves: Moves) -> None:
        self._backend = backend
        self._registry = registry
        self._slots = slots
        self._moves = moves
        self._taking: dict[str, asyncio.Task[SnapshotInfo]] = {}

    async def take(self, sandbox_id: str, snapshot_id: str, request: TakeSnapshot, caller: Caller) -> SnapshotInfo:
        """Make an image of what a sandbox has written. Its commands stand still meanwhile.

        Args:
            sandbox_id: whose.
            snapshot_id: made by the client; who comes again with it joins the first.
            request: how it is to be.
            caller: whose it will be.

        Raises:
            SandboxSnapshotError: it cannot be taken, and why.
            RequestConflictError: the id is that of another sandbox's snapshot.
            SandboxError: the sandbox has ended, or does meanwhile.
        """
        if SNAPSHOT_ID.fullmatch(snapshot_id) is None:
            raise SandboxSnapshotError(f"{snapshot_id!r} is not the id of a snapshot", reason="bad_id", is_infrastructure=False)
        store = self._store(sandbox_id)
        if request.kind == "build" and request.name is not None:
            request = request.model_copy(update={"name": caller.image(request.name)})
        if (known := await self._find(store, snapshot_id)) is not None:
            if known.sandbox_id != sandbox_id:
                raise RequestConflictError(f"{snapshot_id} was used before for another sandbox")
            return known
        task = self._taking.get(snapshot_id)
        if task is None:
            await self._check(request, caller, store, sandbox_id)
            task = self._taking[snapshot_id] = asyncio.create_task(
                self._take(store, sandbox_id, snapshot_id, request, caller), name=f"snapshot {snapshot_id}"
            )
            task.add_done_callback(lambda _: self._taking.pop(snapshot_id, None))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([task])
        if task.cancelled():
            raise SandboxUnavailableError("the server is stopping", reason="server_stopping")
        return task.result()

    async def list(self, caller: Caller) -> SnapshotList:
        """Those that the caller sees, the newest first."""
        seen = await self._seen(caller)
        named = [one for one in seen if one.snapshot is not None and one.snapshot.kind == "snapshot"]
        store = self._backend.image_store
        return SnapshotList(snapshots=[*map(_info, named if store is None else await store.sized(named))])

    async def remove(self, snapshot_id: str, caller: Caller) -> None:
        """Remove one; its files go once no sandbox has them. No sandbox loses any.

        Raises:
            SandboxSnapshotError: there is none of this id for this caller (`not_found`).
        """
        store = self._store(None)
        if not any(_id_of(one) == snapshot_id for one in await self._seen(caller)):
            message = f"snapshot {snapshot_id!r} is not known to this server"
            raise SandboxSnapshotError(message, reason="not_found", is_infrastructure=False)
        await store.remove_snapshot(snapshot_id)
        await self.expire()

    async def expire(self) -> None:
        """Take away what is over."""
        store = self._backend.image_store
        if store is not None:
            waiting = (one.image for one in self._registry.live.values() if one.state < State.ENDED)
            await store.remove_expired({str(image.image_id) for image in waiting if image is not None and image.is_snapshot})

    @property
    def is_taking(self) -> bool:
        """Whether one is under way."""
        return bool(self._taking)

    async def close(self) -> None:
        """Give up what is being taken; the sandboxes go on."""
        tasks = [*self._taking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, request: TakeSnapshot, caller: Caller, store: ImageStore, sandbox_id: str) -> None:
        if request.name is not None:
            if caller.tenant is not None and (request.kind != "build" or not request.name.startswith(f"{BUILT}/")):
                message = "this API key names no snapshots: use their ids, which are images too"
                raise SandboxSnapshotError(message, sandbox_id=sandbox_id, reason="tenant", is_infrastructure=False)
            try:
                parse_own_name(request.name, of_build=request.kind == "build")
            except SandboxImageError as error:
                message = str(error)
                raise SandboxSnapshotError(
                    message, sandbox_id=sandbox_id, reason=error.reason, is_infrastructure=False
                ) from None
        if caller.tenant is not None and not await self._has_room(caller, store):
            message = f"this API key has {MOST_OF_A_KEY} snapshots, and may have no more; remove some"
            raise SandboxSnapshotError(message, sandbox_id=sandbox_id, reason="key_limit", is_infrastructure=False)

    async def _has_room(self, caller: Caller, store: ImageStore) -> bool:
        """Whether a key may have another one. Steps of builds make room, the longest unused first: they can be made again."""
        seen = await self._seen(caller)
        steps = [one for one in seen if one.snapshot is not None and one.snapshot.kind == "build"]
        excess = len(seen) + len(self._taking) + 1 - MOST_OF_A_KEY
        if excess > len(steps):
            return False
        for one in sorted(steps, key=lambda one: one.used_at or one.pulled_at)[: max(excess, 0)]:
            await store.remove_snapshot(_id_of(one))
        return True

    async def _take(
        self, store: ImageStore, sandbox_id: str, snapshot_id: str, request: TakeSnapshot, caller: Caller
    ) -> SnapshotInfo:
        sandbox = self._registry.find(sandbox_id)
        with self._slots.use(sandbox):
            link = await running(sandbox)
            place_id = sandbox.place_id  # A reset may come meanwhile, and what was begun is of the place before.
            asked = SnapshotRequest(
                snapshot_id=snapshot_id,
                sandbox_id=sandbox_id,
                image=sandbox.record.image or "host",
                owner=caller.tenant,
                body=request,
            )
            image_id, image = await self._below(asked, sandbox)
            self._check_layers(sandbox_id, link, image)
            new = asked.new(image_id, image)
            try:
                if image_id is not None and not await in_thread(self._backend.has_written, place_id):
                    return _info(await store.snapshot(None, new))
                moving = await self._moves.begin(sandbox, link, asked, new)
                if moving is not None:
                    return _info(await asyncio.shield(moving))
                return _info(await self._copy(store, link, new))
            except SandboxGone as gone:
                raise await error_of_gone(sandbox, gone) from None
            except SandboxSnapshotError:
                raise
            except (AviatoError, OSError) as failure:
                error = failure if isinstance(failure, AviatoError) else disk_error(failure, f"snapshot {snapshot_id}")
                raise SandboxSnapshotError(
                    f"sandbox {sandbox_id} cannot be made a snapshot of: {error}",
                    sandbox_id=sandbox_id,
                    reason=error.reason,
                    retryable=error.retryable,
                    is_infrastructure=error.is_infrastructure,
                ) from failure

    async def _copy(self, store: ImageStore, link: Process1Link, new: NewSnapshot) -> StoredImage:
        """As process 1 reads the layer, while commands stand still."""
        reader = link.read_layer()
        try:
            async with InTime("/"):
                await reader.opened()
            return await store.snapshot(_pieces(reader), new)
        finally:
            await reader.aclose()

    async def _below(self, asked: SnapshotRequest, sandbox: LiveSandbox) -> Below:
        """What its place lies on; also of an earlier server's."""
        if sandbox.image is None:
            return await in_thread(asked.below, self._backend, sandbox.place_id)
        return (sandbox.image.image_id, None) if sandbox.image.image_id is not None else (None, sandbox.image)

    def _check_layers(self, sandbox_id: str, link: Process1Link, image: ResolvedImage | None) -> None:
        why = None
        if image is not None and not self._backend.has_layers(image):
            why = "has no layer of its own: this machine cannot put one over the machine's files"
        elif not link.knows_layers:
            why = "was made by a version that takes no snapshots"
        if why is not None:
            raise SandboxSnapshotError(f"sandbox {sandbox_id} {why}", sandbox_id=sandbox_id, reason="no_layers")

    def _store(self, sandbox_id: str | None) -> ImageStore:
        self._backend.require(Capability.SNAPSHOTS, "snapshot")
        store = self._backend.image_store
        if store is None:
            message = f"the images of the backend {self._backend.name!r} cannot be had"
            raise SandboxSnapshotError(message, sandbox_id=sandbox_id, reason="no_image_store")
        return store

    async def _find(self, store: ImageStore, snapshot_id: str) -> SnapshotInfo | None:
        found = await in_thread(store.find, snapshot_id)
        return None if found is None or found.snapshot is None else _info(found)

    async def _seen(self, caller: Caller) -> _Stored:
        store = self._backend.image_store
        found = [] if store is None else await in_thread(store.snapshots)
        return [one for one in found if one.snapshot is not None and caller.sees(one.snapshot.owner)]


_Stored = list["StoredImage"]
"""Within the class `list` is its method."""


async def _pieces(reader: ReadChannel) -> AsyncIterator[bytes]:
    while True:
        async with InTime("/"):
            piece = await anext(reader, None)
        if piece is None:
            return
        yield piece


def _id_of(stored: StoredImage) -> str:
    return "" if stored.snapshot is None else stored.snapshot.snapshot_id


def _info(stored: StoredImage) -> SnapshotInfo:
    snapshot = stored.snapshot
    assert snapshot is not None
    return SnapshotInfo(
        snapshot_id=snapshot.snapshot_id,
        name=snapshot.name,
        sandbox_id=snapshot.sandbox_id,
        image=snapshot.image,
        image_id=stored.image_id,
        size_bytes=stored.size_bytes,
        created_at=stored.pulled_at,
        expires_at=snapshot.expires_at,
    )
