"""Images that go out of a server: exports, and pushes that go on whoever waits for them."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aviato.exceptions import AviatoError, AviatoValidationError
from aviato.server.service.event import Event
from aviato.server.service.images import check_operator
from aviato.wire.images import PushInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aviato.server.callers import Caller
    from aviato.server.images.image_exports import Form
    from aviato.server.images.image_exports import ImageExports as Exports
    from aviato.server.images.image_push import PushProgress
    from aviato.server.service.images import Images
    from aviato.server.service.long_polls import LongPolls
    from aviato.wire.images import PushImage

log = logging.getLogger(__name__)

REMEMBERED_SECONDS = 60.0
"""So long it is told what became of a push."""


class ImageExports:
    """What goes out of a server.

    Args:
        images: of the server.
        long_polls: the waits of the server.
    """

    def __init__(self, images: Images, long_polls: LongPolls) -> None:
        self._images = images
        self._long_polls = long_polls
        self._pushes: dict[str, _Push] = {}
        self._exporting = 0

    @asynccontextmanager
    async def archive(self, reference: str, form: Form, caller: Caller) -> AsyncIterator[AsyncIterator[bytes]]:
        """An image as a tar that has a layout of OCI, in pieces.

        Args:
            reference: of an image that is here.
            form: what the tar has.
            caller: who asks.

        Raises:
            AviatoAuthenticationError: a tenant asks.
            SandboxImageError: it is not here, or cannot go out.
        """
        check_operator(caller, "exports no images")
        exports = self._exports()
        self._exporting += 1
        try:
            async with exports.archive(reference, form) as pieces:
                yield pieces
        finally:
            self._exporting -= 1

    async def push(self, request: PushImage, key: str | None, timeout_seconds: float, caller: Caller) -> PushInfo:
        """A push once it has ended, or how far it is after a time. It goes on.

        Args:
            request: what goes where.
            key: of the push; who comes again with it joins.
            timeout_seconds: how long to wait.
            caller: who asks.

        Raises:
            AviatoAuthenticationError: a tenant asks.
            AviatoValidationError: there is no key.
            SandboxImageError: this server has no store.
        """
        check_operator(caller, "pushes no images")
        exports = self._exports()
        if key is None:
            raise AviatoValidationError("a push needs an Idempotency-Key", field_violations={"Idempotency-Key": "missing"})
        push = self._known(key)
        if push is None:
            self._long_polls.check()
            push = self._pushes[key] = _Push(request.destination or request.reference)
            push.task = asyncio.create_task(self._run(push, request, exports), name=f"push {request.reference}")
        await self._long_polls.wait(push.ended, timeout_seconds)
        return push.info

    async def close(self) -> None:
        """Give up pushes; what a registry has of them stays there, and no tag means it."""
        tasks = [push.task for push in self._pushes.values() if not push.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_busy(self) -> bool:
        """Whether something goes out."""
        return self._exporting > 0 or any(not push.ended.is_set() for push in self._pushes.values())

    def _exports(self) -> Exports:
        exports = self._images.store().exports
        assert exports is not None, "the backend gives its store what packs"
        return exports

    def _known(self, key: str) -> _Push | None:
        now = time.monotonic()
        for name, push in list(self._pushes.items()):
            if push.ended.is_set() and now >= push.forgotten_at:
                del self._pushes[name]
        return self._pushes.get(key)

    async def _run(self, push: _Push, request: PushImage, exports: Exports) -> None:
        try:
            push.hear(await exports.push(request.reference, request.destination, push.hear))
        except AviatoError as error:
            push.end("failed", message=str(error), reason=error.reason, retryable=error.retryable)
        except Exception as error:
            log.exception("the image %r cannot be pushed", request.reference)
            push.end("failed", message=f"image {request.reference!r} cannot be pushed: {error}", reason="store_failed")
        else:
            push.end("done")
        finally:
            push.ended.set()


class _Push:
    """One push, and how far it is."""

    task: asyncio.Task[None]

    def __init__(self, reference: str) -> None:
        self.info = PushInfo(reference=reference, status="pushing")
        self.ended = Event()
        self.forgotten_at = 0.0

    def hear(self, progress: PushProgress) -> None:
        """Take note of how far it is."""
        self.info = PushInfo(
            reference=progress.reference,
            status="pushing",
            digest=progress.digest,
            layers_done=progress.layers_done,
            layers_total=progress.layers_total,
            sent_bytes=progress.sent_bytes,
            layer_done_bytes=progress.layer_done_bytes,
            layer_total_bytes=progress.layer_total_bytes,
        )

    def end(self, status: str, **said: object) -> None:
        """It has ended."""
        self.info = self.info.model_copy(update={"status": status, **said})
        self.forgotten_at = time.monotonic() + REMEMBERED_SECONDS
