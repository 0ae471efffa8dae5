"""The images of the backend's store: pulls that go on whoever waits for them, and what else is asked of it."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoAuthenticationError, AviatoError, SandboxImageError
from aviato.server.backends.capabilities import Capability
from aviato.server.callers import OPERATOR
from aviato.server.images.oci_reference import parse_own_name
from aviato.server.service.event import Event
from aviato.system.threads import in_thread
from aviato.wire.images import BUILT, ImageInfo, ImageList, PrunedImages, RemovedImage, is_machines_own

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.backends.base import Backend
    from aviato.server.callers import Caller
    from aviato.server.images.resolved import ResolvedImage
    from aviato.server.images.store import ImageStore
    from aviato.server.images.stored_image import Progress, StoredImage
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.long_polls import LongPolls
    from aviato.server.store import SandboxRecord

log = logging.getLogger(__name__)

REMEMBERED_SECONDS = 5.0
"""So long a failure is told to those who ask again, before it is tried anew."""


class Images:
    """What is asked of the images of a server.

    Args:
        backend: has the store.
        long_polls: the waits of the server.
        check_able: raises where the backend could not be opened.
    """

    def __init__(self, backend: Backend, long_polls: LongPolls, check_able: Callable[[], None]) -> None:
        self._backend = backend
        self._check_able = check_able
        self._long_polls = long_polls
        self._pulls: dict[str, _Pull] = {}

    async def pull(self, reference: str, refresh: bool, timeout_seconds: float, caller: Caller) -> ImageInfo:
        """An image once it is here or has failed, or how far it is after a time. The pull goes on.

        Args:
            reference: as the store takes it.
            refresh: ask the registry although it is here.
            timeout_seconds: how long to wait.
            caller: who asks; a tenant is told of what is here.

        Raises:
            SandboxImageError: this server has no store, this is no reference to pull, or a tenant asks and it is not here.
        """
        store = self.store()
        if is_machines_own(reference):
            raise SandboxImageError(f"{reference!r} is of this machine: there is nothing to pull", reason="bad_reference")
        pull = None if caller.tenant is not None else self._known(reference)
        if pull is None and (not refresh or caller.tenant is not None):
            here = await in_thread(store.find, caller.image(reference))
            if here is not None and _sees(caller, here):
                return await _info(store, here, reference)
        if caller.tenant is not None:
            # It would come by credentials of the server's user, from whatever host its name says.
            raise not_for_a_key(reference)
        pull = pull or self._known(reference)  # Somebody else may have asked meanwhile.
        if pull is None:
            pull = self._pulls[reference] = _Pull(reference)
            pull.task = asyncio.create_task(self._run(pull, store, refresh), name=f"pull {reference}")
        await self._long_polls.wait(pull.ended, timeout_seconds)
        return pull.tell()

    def check_name(self, name: str) -> None:
        """See whether an image can be given a name, before it is fetched for that.

        Raises:
            SandboxImageError: it cannot.
        """
        parse_own_name(name)

    async def name(self, info: ImageInfo, name: str, caller: Caller) -> ImageInfo:
        """Give an image that is here one more name; it is then as before, and has that too.

        Raises:
            AviatoAuthenticationError: a tenant asks.
            SandboxImageError: that is no name, or the image has been removed meanwhile.
        """
        check_operator(caller, "names no images")
        image_id = str(info.image_id)
        await in_thread(self.store().name, image_id, name)
        return info.model_copy(update={"names": (await self.inspect(image_id)).names})

    async def list(self, caller: Caller) -> ImageList:
        """What is on its way and what is here.

        Raises:
            SandboxImageError: this server has no store.
        """
        store = self.store()
        on_their_way = [_under_way(name, progress) for name, progress in store.under_way().items()]
        seen = [one for one in await in_thread(store.list) if _sees(caller, one)]
        infos = [_described(one, next(iter(one.names), one.image_id)) for one in await store.sized(seen)]
        return ImageList(images=[*on_their_way, *infos])

    async def inspect(self, reference: str, caller: Caller = OPERATOR) -> ImageInfo:
        """One image that is here, on its way, or has just failed.

        Raises:
            SandboxImageError: it is none of them, or this server has no store.
        """
        store = self.store()
        found = await in_thread(store.find, caller.image(reference))
        if found is not None and _sees(caller, found):
            return await _info(store, found, reference)
        pull = self._known(reference)
        if pull is not None and pull.info.status != "here":
            return pull.info
        raise SandboxImageError(
            f"the image {reference!r} is not here; `aviato image ls` lists those that are", reason="image_not_here"
        )

    async def remove(self, reference: str, force: bool, caller: Caller) -> RemovedImage:
        """Remove a name, or an image.

        Raises:
            AviatoAuthenticationError: a tenant asks.
            SandboxImageError: it is not here or in use, or this server has no store.
        """
        check_operator(caller, "removes no images")
        return RemovedImage(names=await self.store().remove(reference, force=force))

    async def prune(self, most_bytes: int, unused_seconds: float, caller: Caller) -> PrunedImages:
        """Remove what no sandbox has and nobody has pinned.

        Raises:
            AviatoAuthenticationError: a tenant asks.
            SandboxImageError: this server has no store.
        """
        check_operator(caller, "removes no images")
        freed = await self.store().prune(most_bytes=most_bytes, unused_seconds=unused_seconds)
        return PrunedImages(freed_bytes=freed)

    async def pin(self, reference: str, pinned: bool, caller: Caller) -> ImageInfo:
        """Let an image stay, or no longer.

        Raises:
            AviatoAuthenticationError: a tenant asks.
            SandboxImageError: it is not here, or this server has no store.
        """
        check_operator(caller, "pins no images")
        await in_thread(self.store().pin, reference, pinned)
        return await self.inspect(reference)

    async def close(self) -> None:
        """Leave pulls where they are; the next server goes on with them when somebody asks."""
        tasks = [pull.task for pull in self._pulls.values() if not pull.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def store(self) -> ImageStore:
        """The images.

        Raises:
            SandboxImageError: this server has none.
        """
        self._backend.require(Capability.IMAGE_STORE, "images")
        store = self._backend.image_store
        if store is None:
            self._check_able()
            raise SandboxImageError(f"the images of the backend {self._backend.name!r} cannot be had", reason="no_image_store")
        return store

    @property
    def is_pulling(self) -> bool:
        """Whether an image is on its way that somebody has asked for."""
        return any(not pull.ended.is_set() for pull in self._pulls.values())

    def _known(self, reference: str) -> _Pull | None:
        """The pull of a reference that is under way, or has just failed."""
        now = time.monotonic()
        for name, pull in list(self._pulls.items()):
            if pull.ended.is_set() and now >= pull.forgotten_at:
                del self._pulls[name]
        return self._pulls.get(reference)

    async def _run(self, pull: _Pull, store: ImageStore, refresh: bool) -> None:
        began = time.monotonic()
        try:
            stored = await store.pull(pull.reference, refresh=refresh, on_progress=pull.hear, on_begin=pull.begin)
            info = await _info(store, stored, pull.reference)
            came = {"pull_seconds": time.monotonic() - began, "done_bytes": pull.info.done_bytes, "joined": pull.joined}
            pull.info = info.model_copy(update=came)
        except AviatoError as error:
            pull.fail(str(error), error.reason, retryable=error.retryable)
        except Exception as error:
            log.exception("the image %r cannot be pulled", pull.reference)
            pull.fail(f"image {pull.reference!r} cannot be pulled: {error}", "store_failed")
        finally:
            pull.ended.set()


class _Pull:
    """One pull, and how far it is."""

    task: asyncio.Task[None]

    def __init__(self, reference: str) -> None:
        self.reference = reference
        self.info = ImageInfo(reference=reference, status="pulling", names=[reference])
        self.ended = Event()
        self.forgotten_at = 0.0
        self.joined = True
        """Unless it is this one that began it: a sandbox may have done so."""

    def begin(self) -> None:
        """It is begun for this one."""
        self.joined = False

    def tell(self) -> ImageInfo:
        """How far it is; once it is here, the first who hears that counts it."""
        told = self.info
        if told.status == "here":
            self.info = told.model_copy(update={"joined": True})
        return told

    def hear(self, progress: Progress) -> None:
        """Take note of how far it is."""
        self.info = _under_way(self.reference, progress)

    def fail(self, message: str, reason: str, *, retryable: bool = False) -> None:
        """It comes to nothing."""
        said = {"status": "failed", "message": message, "reason": reason, "retryable": retryable}
        self.info = self.info.model_copy(update=said)
        self.forgotten_at = time.monotonic() + REMEMBERED_SECONDS


def image_before(backend: Backend, named: ResolvedImage, image_id: str | None) -> ResolvedImage:
    """What an image's name meant when a sandbox took it; `named` where that is known to be here no more.

    Args:
        backend: has it.
        named: what its name means now.
        image_id: what it meant then, where that is known.
    """
    if image_id is None or named.lasting_id == image_id:
        return named
    try:
        before = backend.resolve_image(image_id)
    except SandboxImageError:  # The store has it no more.
        return named
    return replace(before, reference=named.reference) if before.is_here else before


def of_image(record: SandboxRecord, image_id: str | None) -> SandboxRecord:
    """The same with the id of its image, if that is known now and was not before."""
    if image_id is None or record.image_id is not None:
        return record
    return record.but(image_id=image_id, first_image_id=image_id if record.place_id is None else record.first_image_id)


def note_image(backend: Backend, sandbox: LiveSandbox) -> None:
    """Take down what its image is, where that is said by its place alone, which may be some time after it runs."""
    record = sandbox.record
    if record.image_id is None and record.image is not None and sandbox.runs:
        sandbox.record = of_image(record, backend.image_id_in(sandbox.place_id, record.image))


def note_made_of(backend: Backend, sandbox: LiveSandbox) -> None:
    """Take down what its new place is made of, where somebody removed its image and the name meant another one by then.

    Raises:
        SandboxImageError: it was to begin anew, which is with the very image that it had.
    """
    image, made_of = sandbox.image, backend.image_in(sandbox.place_id)
    if image is None or made_of is None or made_of.image_id == image.image_id:
        return
    if sandbox.record.place_id is not None:
        message = f"image {image.reference!r} was removed meanwhile, and is another one by now; make another sandbox"
        raise SandboxImageError(message, reason="image_gone")
    sandbox.image, image_id = made_of, made_of.lasting_id
    note = made_of.note or sandbox.record.image_note
    sandbox.record = sandbox.record.but(image_id=image_id, first_image_id=image_id, image_note=note)


def check_image(image: ResolvedImage, caller: Caller, reference: str) -> None:
    """See whether a caller may have a sandbox of an image: a key has its own snapshots, and what is here; a step of a build
    is here, or nowhere.

    Raises:
        SandboxImageError: it may not.
    """
    if not image.is_here and reference.startswith(f"{BUILT}/"):
        # No registry has it, so whoever asks for it is told at once, and can make it anew.
        raise SandboxImageError(f"the step {reference!r} of a build is not here; build it again", reason="image_not_here")
    # What is not here would come by credentials of the server's user, from whatever host its name says.
    if (image.is_snapshot and not caller.sees(image.owner)) or (not image.is_here and caller.tenant is not None):
        raise not_for_a_key(reference)


def not_for_a_key(reference: str) -> SandboxImageError:
    """What a tenant is told of an image that is not there for it."""
    return SandboxImageError(
        f"image {reference!r} is not here, and this API key pulls none; let the operator `aviato image pull` it",
        reason="image_not_here",
    )


def check_operator(caller: Caller, what: str) -> None:
    """Refuse what changes the images of all who use the server, or has it call others by credentials of its own user.

    Raises:
        AviatoAuthenticationError: a tenant asks.
    """
    if caller.tenant is not None:
        raise AviatoAuthenticationError(
            f"this API key {what}: ask the operator, who does it by `aviato image` on the server's Unix socket", reason="tenant"
        )


def _sees(caller: Caller, stored: StoredImage) -> bool:
    """Whether an image is there for a caller: a snapshot is so for its owner."""
    return stored.snapshot is None or caller.sees(stored.snapshot.owner)


def _under_way(reference: str, progress: Progress) -> ImageInfo:
    return ImageInfo(
        reference=reference,
        status="pulling",
        names=[reference],
        done_bytes=progress.done_bytes,
        total_bytes=progress.total_bytes,
        layers_done=progress.layers_done,
        layers_total=progress.layers_total,
    )


async def _info(store: ImageStore, stored: StoredImage, reference: str) -> ImageInfo:
    [sized] = await store.sized([stored])
    return _described(sized, reference)


def _described(stored: StoredImage, reference: str) -> ImageInfo:
    config = stored.config
    return ImageInfo(
        reference=reference,
        status="here",
        image_id=stored.image_id,
        names=list(stored.names),
        layers=len(stored.layers),
        size_bytes=stored.size_bytes or 0,
        created_at=stored.created_at,
        pulled_at=stored.pulled_at,
        used_at=stored.used_at,
        pinned=stored.pinned,
        architecture=stored.architecture,
        working_dir=config.working_dir,
        user=config.user,
        entrypoint=list(config.entrypoint),
        command=list(config.command),
        environment=dict(config.environment),
        labels=dict(config.labels),
        shell=list(config.shell),
        layers_done=len(stored.layers),
        layers_total=len(stored.layers),
    )
