"""Images: pull or join a pull, look, remove. A pull goes on whoever waits for it."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import time
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, SandboxImageError
from aviato.server.images.oci_reference import id_prefix, parse_oci_reference
from aviato.server.images.reference import parse
from aviato.server.service.event import Event
from aviato.server.service.long_polls import stopping_error
from aviato.system.threads import in_thread
from aviato.values.text import line
from aviato.wire.images import ImageInfo, ImageList, PrunedImages, RemovedImage

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.backends.base import Backend
    from aviato.server.callers import Caller
    from aviato.server.images.store import ImageStore
    from aviato.server.images.stored_image import Progress, StoredImage
    from aviato.server.service.long_polls import LongPolls

log = logging.getLogger(__name__)

FAILED_SECONDS = 5.0
"""How long a failure is the answer to those who ask for the same image."""
OWED_SECONDS = 30.0
"""How long it is known what came of a refresh for those who were told to ask again."""


class Images:
    """The images of a server's store.

    Args:
        backend: has the store.
        long_polls: end early when the server goes.
        check_able: raises where sandboxes cannot run.
    """

    def __init__(self, backend: Backend, long_polls: LongPolls, check_able: Callable[[], None]) -> None:
        self._backend = backend
        self._long_polls = long_polls
        self._check_able = check_able
        self._pulls: dict[tuple[str, bool], _Pull] = {}

    async def pull(self, reference: str, caller: Caller, *, refresh: bool, timeout_seconds: float) -> ImageInfo:
        """An image once it is here or has failed to come, or how far it is after that time.

        Args:
            reference: which; a directory or `host` is here if sandboxes can be made of it.
            caller: a tenant gets what is here.
            refresh: ask the registry although the image is here.
            timeout_seconds: how long to wait. Asked again, it goes on.

        Raises:
            SandboxImageError: the reference is wrong, or the caller may not have it pulled.
            SandboxUnavailableError: the server goes; the next one goes on with the pull.
        """
        store = self._store()
        if self._is_directory(reference):
            return ImageInfo(reference=reference, status="here")
        key = reference, refresh
        if key not in self._pulls:
            here = await in_thread(store.find, reference)
            if here is not None and (not refresh or caller.tenant is not None or _is_id(reference, here)):
                return described(here, reference)
        _check_may_pull(reference, caller)
        pull = self._pulls.get(key)
        if pull is None:
            self._long_polls.check()
            pull = self._begin(key, store)
        pull.owed = max(0, pull.owed - 1)
        if not await self._long_polls.wait(pull.ended, timeout_seconds):
            pull.owed += 1
            return pull.under_way()
        if not pull.owed and pull.error is None:
            self._forget(key, pull)
        return pull.outcome()

    async def list(self) -> ImageList:
        """All that are here, and those that are being pulled or have just failed."""
        store = self._store()
        coming = [on_its_way(name, progress) for name, progress in store.under_way().items()]
        failed = [pull.outcome() for pull in self._pulls.values() if pull.error is not None]
        return ImageList(images=[*coming, *failed, *map(described, await in_thread(store.list))])

    async def inspect(self, reference: str) -> ImageInfo:
        """One that is here.

        Raises:
            SandboxImageError: it is not.
        """
        found = await in_thread(self._store().find, reference)
        if found is None:
            raise _not_here(reference)
        return described(found, reference)

    async def name(self, info: ImageInfo, name: str, caller: Caller) -> ImageInfo:
        """Give an image that a pull has come to one more name.

        Raises:
            SandboxImageError: that is no name, the image is not in the store, or the caller may not.
        """
        _check_operator(caller, "names")
        reference = info.image_id or info.reference
        await in_thread(self._store().name, reference, name)
        return (await self.inspect(reference)).model_copy(update={"reference": name, "pull_seconds": info.pull_seconds})

    async def remove(self, reference: str, caller: Caller, *, force: bool) -> RemovedImage:
        """Remove a name, and with its last name, or by its id, the image.

        Raises:
            SandboxImageError: it is not here, sandboxes have it, or the caller may not.
        """
        _check_operator(caller, "removes")
        return RemovedImage(names=await self._store().remove(reference, force=force))

    async def prune(self, caller: Caller, *, most_bytes: int, unused_seconds: float) -> PrunedImages:
        """Remove what no sandbox has and nobody has pinned.

        Raises:
            SandboxImageError: the caller may not.
        """
        _check_operator(caller, "prunes")
        return PrunedImages(freed_bytes=await self._store().prune(most_bytes=most_bytes, unused_seconds=unused_seconds))

    async def pin(self, reference: str, caller: Caller, *, pinned: bool) -> ImageInfo:
        """Let an image stay whatever is pruned, or no longer.

        Raises:
            SandboxImageError: it is not here, or the caller may not.
        """
        _check_operator(caller, "pins")
        await in_thread(self._store().pin, reference, pinned)
        return await self.inspect(reference)

    async def close(self) -> None:
        """Break pulls off; what they have downloaded stays, and the next server goes on with it."""
        tasks = [pull.task for pull in self._pulls.values() if not pull.ended.is_set()]
        self._pulls.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _store(self) -> ImageStore:
        self._check_able()
        store = self._backend.image_store
        if store is None:
            message = f"the backend {self._backend.name!r} keeps no images; its sandboxes are made of the machine's own files"
            raise SandboxImageError(message, reason="no_image_store")
        return store

    def _is_directory(self, reference: str) -> bool:
        """Whether sandboxes are made of it without the store.

        Raises:
            SandboxImageError: it is of a kind that never is in the store, and there is no such directory.
        """
        kind = parse(reference).kind
        if kind == "other":
            return False
        try:
            return self._backend.resolve_image(reference).kind == "dir" or kind != "python"
        except SandboxImageError:
            if kind != "python":
                raise
            return False

    @property
    def is_pulling(self) -> bool:
        """Whether a pull is under way that somebody has asked for."""
        return any(not pull.ended.is_set() for pull in self._pulls.values())

    def _begin(self, key: tuple[str, bool], store: ImageStore) -> _Pull:
        reference, refresh = key
        pull = self._pulls[key] = _Pull(reference)
        pull.task = asyncio.create_task(self._run(key, pull, store, refresh), name=f"pull {reference}")
        return pull

    async def _run(self, key: tuple[str, bool], pull: _Pull, store: ImageStore, refresh: bool) -> None:
        began = time.monotonic()
        try:
            pull.image = await store.pull(pull.reference, refresh=refresh, on_progress=pull.tell)
        except AviatoError as error:
            pull.error = copy.copy(error).with_traceback(None)
            log.info("image %s cannot be had: %s", line(pull.reference), line(str(error)))
        except Exception as error:
            log.exception("the pull of image %s broke off", line(pull.reference))
            pull.error = SandboxImageError(f"the server failed: {type(error).__name__}", reason="store_failed")
        finally:
            pull.seconds = time.monotonic() - began
            pull.ended.set()
            if pull.error is not None:
                asyncio.get_running_loop().call_later(FAILED_SECONDS, self._forget, key, pull)
            elif pull.owed:
                asyncio.get_running_loop().call_later(OWED_SECONDS, self._forget, key, pull)
            else:
                self._forget(key, pull)

    def _forget(self, key: tuple[str, bool], pull: _Pull) -> None:
        if self._pulls.get(key) is pull:
            del self._pulls[key]


class _Pull:
    """A pull that somebody has asked for.

    Attributes:
        owed: how many were told to ask again, and have not yet.
    """

    task: asyncio.Task[None]

    def __init__(self, reference: str) -> None:
        self.reference = reference
        self.ended = Event()
        self.owed = 0
        self.image: StoredImage | None = None
        self.error: AviatoError | None = None
        self.seconds = 0.0
        self._progress: Progress | None = None

    def tell(self, progress: Progress) -> None:
        """It has gone on."""
        self._progress = progress

    def under_way(self) -> ImageInfo:
        """How far it is."""
        return on_its_way(self.reference, self._progress)

    def outcome(self) -> ImageInfo:
        """What came of it.

        Raises:
            SandboxUnavailableError: it was broken off, since the server goes.
        """
        if self.image is not None:
            return described(self.image, self.reference).model_copy(update={"pull_seconds": self.seconds})
        if self.error is None:
            raise stopping_error()
        return ImageInfo(
            reference=self.reference,
            status="failed",
            message=str(self.error),
            reason=self.error.reason,
            is_infrastructure=self.error.is_infrastructure,
            retryable=self.error.retryable,
            pull_seconds=self.seconds,
        )


def on_its_way(reference: str, progress: Progress | None) -> ImageInfo:
    """An image that is being pulled, for its users."""
    if progress is None:
        return ImageInfo(reference=reference, status="pulling", phase="resolving")
    return ImageInfo(
        reference=reference,
        status="pulling",
        phase=progress.phase,
        done_bytes=progress.done_bytes,
        total_bytes=progress.total_bytes,
        layers=progress.layers_total,
        layers_done=progress.layers_done,
    )


def described(image: StoredImage, reference: str | None = None) -> ImageInfo:
    """An image that is here, for its users."""
    return ImageInfo(
        reference=reference or (image.names[0] if image.names else image.image_id),
        status="here",
        image_id=image.image_id,
        names=list(image.names),
        layers=len(image.layers),
        layers_done=len(image.layers),
        size_bytes=image.size_bytes,
        created_at=image.created_at,
        pulled_at=image.pulled_at,
        used_at=image.used_at,
        pinned=image.pinned,
        architecture=image.architecture,
        environment=dict(image.config.environment),
        working_dir=image.config.working_dir,
        user=image.config.user,
        entrypoint=list(image.config.entrypoint),
        command=list(image.config.command),
        labels=dict(image.config.labels),
    )


def _is_id(reference: str, image: StoredImage) -> bool:
    """Whether it is the image's own id, which no registry is asked for."""
    digits = id_prefix(reference)
    return digits is not None and image.image_id.startswith(f"sha256:{digits}")


def _check_may_pull(reference: str, caller: Caller) -> None:
    """See whether this caller may have this pulled.

    Raises:
        SandboxImageError: it may not, or this is no image that can be pulled.
    """
    if caller.tenant is not None:
        # It would come by credentials of the server's user, from whatever host its name says.
        message = f"image {reference!r} is not here, and this API key pulls none; let the operator `aviato image pull` it"
        raise SandboxImageError(message, reason="image_not_here")
    wanted = parse_oci_reference(reference)
    if wanted.kind != "registry" and not os.path.isabs(wanted.path):
        raise SandboxImageError(f"image {reference!r}: its path must be absolute", reason="bad_reference")


def _check_operator(caller: Caller, does: str) -> None:
    """See whether this caller is the server's own user.

    Raises:
        SandboxImageError: it is a tenant.
    """
    if caller.tenant is not None:
        raise SandboxImageError(f"only the server's own user {does} images, by its Unix socket", reason="not_allowed")


def _not_here(reference: str) -> SandboxImageError:
    message = f"image {reference!r} is not here; `aviato image ls` lists those that are, `aviato image pull` fetches one"
    return SandboxImageError(message, reason="image_not_here")
