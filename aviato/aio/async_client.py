"""AsyncClient: sandboxes as plain coroutines on the caller's own loop, without a thread.

::

    async with AsyncClient() as client:
        sandbox = await client.sandbox(tags=["rollout"])
        result = await sandbox.exec(["python", "-c", "print(6 * 7)"])

        process = sandbox.spawn(["make", "test"])
        async for text in process.stdout:
            print(text, end="")
        result = await process

Calls are retried by the same policy as everywhere; no metrics are counted. A client and what it makes belong to the loop that
entered it. Leaving the `async with` ends its sandboxes, except the detached ones.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Self

from aviato import defaults as checks
from aviato.aio.async_sandbox import AsyncSandbox
from aviato.calls import forking, sandbox_config
from aviato.calls.image_arguments import image_name, image_reference, image_references
from aviato.calls.recipe import Building
from aviato.calls.sandbox_state import begin, connect
from aviato.exceptions import AviatoError, AviatoValidationError, SandboxNotFoundError
from aviato.log import logger
from aviato.policy.retry import RetryPolicy
from aviato.values.parameters import suggests
from aviato.values.representation import cut
from aviato.wire.ids import SANDBOX_ID, new_sandbox_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Unpack

    from aviato.calls.recipe import Recipe
    from aviato.calls.sandbox_config import Connection, SandboxOptions
    from aviato.core.client import Client
    from aviato.core.lease import Lease
    from aviato.core.lifecycle import SandboxHandle
    from aviato.defaults import SandboxDefaults
    from aviato.options import SandboxStatus
    from aviato.results import ImageInfo, PushInfo, Snapshot
    from aviato.wire.sandboxes import SandboxInfo

_Images = list["ImageInfo"]
_Names = list[str]
_Snapshots = list["Snapshot"]
"""Within the class `list` is its method."""
LEAVE_SECONDS = 5.0
LEAVE_AGAIN_SECONDS = 1.0


class AsyncClient:
    """Makes and finds sandboxes on one server. Enter it with `async with`.

    Args:
        base_url: the server; None is that of the defaults, `AVIATO_BASE_URL`, or the embedded one.
        defaults: of its sandboxes.
    """

    @suggests
    def __init__(self, *, base_url: str | None = None, defaults: SandboxDefaults | None = None) -> None:
        self._connection: Connection = sandbox_config.connection(defaults, base_url)
        self._defaults = defaults
        self._here: Lease | None = None

    async def __aenter__(self) -> Self:
        from aviato.core.lease import Lease

        self._here = Lease(self._connection.base_url, RetryPolicy())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here, self._here = self._lease(), None
        here.left = True
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await here.end(again=True)  # The lease may be this process, which lives on.
        except BaseException as failed:
            begin(_leave_later(self._connection, here.lease_id), "end the sandboxes of a client")
            if not isinstance(failed, (AviatoError, TimeoutError)) or (error is None and isinstance(failed, AviatoError)):
                raise
            why = str(failed) or f"no answer within {LEAVE_SECONDS:g} s"
            logger.warning("the end of the client's sandboxes is asked for on, from the background: %s", why)

    async def sandbox(self, **options: Unpack[SandboxOptions]) -> AsyncSandbox:
        """Make a sandbox; it has been accepted by the server when this returns. Who is cancelled meanwhile leaves none behind.

        Args:
            options: as the constructor of `Sandbox`.
        """
        options["defaults"] = options.get("defaults") or self._defaults
        options["base_url"] = options.get("base_url") or self._connection.base_url
        if options["base_url"] != self._connection.base_url:
            raise AviatoValidationError("an AsyncClient speaks to one server; make another one for another base_url")
        config = sandbox_config.config(options)
        handle = self._handle(new_sandbox_id(), config.connection, config.create, config.recipe)
        try:
            await handle.start()
        except BaseException:
            handle.give_up()
            raise
        return AsyncSandbox(handle, config.exec_timeout_seconds)

    async def from_id(self, sandbox_id: str) -> AsyncSandbox:
        """A sandbox that exists; it is used, not owned.

        Raises:
            SandboxNotFoundError: the server does not know it.
        """
        if SANDBOX_ID.fullmatch(sandbox_id) is None:
            raise SandboxNotFoundError(f"{sandbox_id!r} is not the id of a sandbox", sandbox_id=sandbox_id)
        found = self._found(sandbox_id)
        await found.get_status()
        return found

    async def list(
        self, *, tags: Sequence[str] = (), status: Sequence[SandboxStatus | str] = (), include_stopped: bool = False
    ) -> list[AsyncSandbox]:
        """All sandboxes that match, oldest first; a terminal status implies `include_stopped`."""
        wanted = sandbox_config.statuses(status)
        client = self._client(self._connection)
        infos = await client.list_sandboxes(
            tags=checks.tags(tags),
            status=wanted,
            include_stopped=include_stopped or any(item.is_terminal for item in wanted),
        )
        return [self._found(info.sandbox_id, info) for info in infos]

    async def pull_image(
        self,
        reference: str,
        *,
        refresh: bool = False,
        name: str | None = None,
        on_progress: Callable[[ImageInfo], object] | None = None,
    ) -> ImageInfo:
        """Have the server fetch an image, unless it is there, and wait until it is.

        The pull goes on in the server if the wait is cancelled.

        Args:
            reference: of a registry, `oci:PATH[:TAG]` or `docker-archive:PATH[:NAME]`; paths are the server's.
            refresh: ask the registry although the image is there, since a tag may mean another one by now.
            name: what it is called, too, from then on, as images of registries are, such as `python:3.12-slim`.
            on_progress: called twice a second with how far it is, and at the end.

        Raises:
            SandboxImageError: it cannot be had; its `reason` says why.
        """
        from aviato.core import images

        checked, client = image_reference(reference), self._client(self._connection)
        given = None if name is None else image_name(name)
        return await images.have(client, checked, refresh=refresh, name=given, on_progress=on_progress)

    async def prefetch(
        self, images: Iterable[str], *, refresh: bool = False, on_progress: Callable[[ImageInfo], object] | None = None
    ) -> _Images:
        """Have the server fetch images, four at a time, such as the column of a data set.

        Args:
            images: references, as `pull_image` takes them; each is pulled once.
            refresh: ask registries although images are there.
            on_progress: called with each image twice a second while it is on its way, and at its end.

        Returns:
            Each different one in the order of `images`; one that cannot be had has the status `failed` and a message.
        """
        from aviato.core.images import prefetch

        references = image_references(images)
        return await prefetch(self._client(self._connection), references, refresh=refresh, on_progress=on_progress)

    async def images(self) -> _Images:
        """The images that the server has or fetches."""
        from aviato.core.images import public

        return [public(info) for info in await self._client(self._connection).list_images()]

    async def inspect_image(self, reference: str) -> ImageInfo:
        """An image that the server has or fetches, by a name, an id, or 12 and more digits of one.

        Raises:
            SandboxImageError: it is not there.
        """
        from aviato.core.images import public

        return public(await self._client(self._connection).inspect_image(image_reference(reference)))

    async def export_image(self, reference: str, path: str | os.PathLike[str]) -> None:
        """Write an image of the server's to this machine, as others take it: a directory of OCI layout, or that in one file.

        It appears whole, or not at all. Layers are packed anew, so its id is another one than the server's.

        Args:
            reference: as `inspect_image` takes it; a snapshot's id, too.
            path: a new or empty directory; or a file whose name ends with `.tar`, which `docker load`, podman and skopeo take.

        Raises:
            SandboxImageError: it is not there, or begins with the machine's own files (`base_of_this_machine`).
            AviatoValidationError: the name of the file is that of a compressed one.
            OSError: it cannot be written.
        """
        from aviato.core import image_exports

        checked, client = image_reference(reference), self._client(self._connection)
        await image_exports.export(client, checked, os.fsdecode(path))

    async def push_image(
        self,
        reference: str,
        destination: str | None = None,
        *,
        on_progress: Callable[[PushInfo], object] | None = None,
    ) -> str:
        """Have the server put an image into a registry, by the credentials that it pulls with, and wait until it is there.

        What the registry has is not sent again. The push goes on in the server if the wait is cancelled.

        Args:
            reference: as `inspect_image` takes it; a snapshot's id, too.
            destination: what it is called there, such as `ghcr.io/org/name:tag`; None: `reference`.
            on_progress: called twice a second with how far it is, and at the end.

        Returns:
            What is there, by digest: `ghcr.io/org/name@sha256:…`.

        Raises:
            SandboxImageError: it cannot be put there; its `reason` says why, such as `needs_credentials` or `denied`.
        """
        from aviato.core import image_exports

        checked, client = image_reference(reference), self._client(self._connection)
        given = None if destination is None else image_reference(destination, "destination")
        return await image_exports.push(client, checked, given, on_progress=on_progress)

    async def remove_image(self, reference: str, *, force: bool = False) -> _Names:
        """Remove a name of an image, and with its last name, or by its id, the image.

        Args:
            reference: as `inspect_image` takes it.
            force: of an image that sandboxes have, take the names away all the same; it goes with a later prune.

        Returns:
            The names that went.

        Raises:
            SandboxImageError: it is not there, or sandboxes have it.
        """
        return await self._client(self._connection).remove_image(image_reference(reference), force=force)

    async def prune_images(self, *, most_bytes: int = 0, unused_seconds: float = 0.0) -> int:
        """Remove images that no sandbox has and nobody has pinned, the longest unused first.

        Args:
            most_bytes: leave the others, once all layers have no more than that.
            unused_seconds: leave those that were in use so short ago.

        Returns:
            The bytes that this frees.
        """
        return await self._client(self._connection).prune_images(most_bytes=most_bytes, unused_seconds=unused_seconds)

    async def pin_image(self, reference: str, *, pinned: bool = True) -> ImageInfo:
        """Let an image stay whatever is pruned, or, with `pinned=False`, no longer.

        Raises:
            SandboxImageError: it is not there.
        """
        from aviato.core.images import public

        return public(await self._client(self._connection).pin_image(image_reference(reference), pinned=pinned))

    async def snapshots(self) -> _Snapshots:
        """The snapshots of the server, the newest first."""
        from aviato.core import snapshots

        return await snapshots.found(self._client(self._connection))

    async def delete_snapshot(self, snapshot_id: str, *, missing_ok: bool = False) -> None:
        """Remove a snapshot. Sandboxes that began with it go on.

        Raises:
            SandboxSnapshotError: the server does not know it (`not_found`), unless `missing_ok`.
        """
        await self._client(self._connection).delete_snapshot(forking.snapshot_id(snapshot_id), missing_ok=missing_ok)

    def __repr__(self) -> str:
        state = "not entered" if self._here is None else "open"
        return cut(f"<AsyncClient of {self._connection.server}: {state}>")

    def _found(self, sandbox_id: str, info: SandboxInfo | None = None) -> AsyncSandbox:
        handle = self._handle(sandbox_id, self._connection, None)
        handle.info = info
        return AsyncSandbox(handle, (self._defaults or sandbox_config.BUILT_IN).exec_timeout_seconds)

    def _handle(
        self, sandbox_id: str, connection: Connection, create: dict[str, Any] | None, recipe: Recipe | None = None
    ) -> SandboxHandle:
        from aviato.core.lifecycle import SandboxHandle

        client, lease = self._client(connection), self._lease()
        beginning = None if recipe is None else Building(recipe, client, lease, create or {})
        return SandboxHandle(sandbox_id, client, lease, create, beginning=beginning)

    def _client(self, connection: Connection) -> Client:
        return self._lease().client(connection.request_timeout_seconds, connection.reconnect_timeout_seconds)

    def _lease(self) -> Lease:
        if self._here is None:
            raise AviatoValidationError("use an AsyncClient inside its `async with`")
        return self._here


async def _leave_later(connection: Connection, lease_id: str) -> None:
    """End a lease whose server was away. It is held by this process, which may live for days."""
    client, _ = connect(connection)
    while True:
        try:
            await client.end_lease(lease_id, again=True)
        except AviatoError as error:
            logger.debug("a lease could not be ended: %s", error)
            if not error.is_infrastructure:
                return
        else:
            return
        await asyncio.sleep(LEAVE_AGAIN_SECONDS)
