"""Departures: a sandbox goes on in another place, while what was in the one before ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from aviato.server.link.subscription import Ended
from aviato.server.service.lifecycle import STOP_SLACK_SECONDS
from aviato.server.states import lost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from aviato.server.backends.base import Backend, ResolvedImage
    from aviato.server.images.stored_image import StoredImage
    from aviato.server.link.file_calls import Done
    from aviato.server.link.link import Process1Link
    from aviato.server.service.egress import Egress
    from aviato.server.service.event import Event as Flag
    from aviato.server.service.lifecycle import Lifecycle
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.registry import Registry
    from aviato.server.states import Ending


class Departures:
    """Lets sandboxes leave their places.

    Args:
        backend: has the places.
        registry: puts on record where they go.
        lifecycle: starts them there, and takes away what they leave.
        egress: is their way to the network, which begins anew too.
    """

    def __init__(self, backend: Backend, registry: Registry, lifecycle: Lifecycle, egress: Egress) -> None:
        self._backend = backend
        self._registry = registry
        self._lifecycle = lifecycle
        self._egress = egress

    def reset(
        self, sandbox: LiveSandbox, place_id: str, done: Done | None, image: ResolvedImage, secrets: dict[str, str]
    ) -> None:
        """Let it begin anew, in another place.

        Args:
            sandbox: it runs.
            place_id: of that place.
            done: what must not happen there again.
            image: that it begins with.
            secrets: environment variables that it has.
        """
        link, left = self._leaves(sandbox)
        kept = sandbox.begin_anew(place_id, image, secrets)
        sandbox.done = done
        self._go_on(sandbox, self._lifecycle.start(sandbox))
        link.abandon(Ended(reason="reset"))
        self._depart(sandbox, left, partial(self._end, sandbox, link, left, kept))

    def move(
        self,
        sandbox: LiveSandbox,
        place_id: str,
        done: Done,
        moving: str,
        leave: Callable[[], Coroutine[Any, Any, StoredImage]],
    ) -> asyncio.Task[StoredImage]:
        """Let it go on in another place, over its own layer. Nothing runs in it.

        Args:
            sandbox: it runs.
            place_id: of that place.
            done: what must not happen there again.
            moving: for the record.
            leave: ends what is there and makes an image of its layer.
        """
        link, left = self._leaves(sandbox)
        sandbox.move(place_id, json.loads(moving)["snapshot_id"], moving)
        sandbox.done = done
        link.let_go(Ended(reason="reset"))  # Its life waits for that, to watch the next.
        leaving = asyncio.create_task(leave(), name=f"layer of {left}")
        sandbox.spawn(leaving)
        self._go_on(sandbox, self._arrive(sandbox, leaving))
        self._depart(sandbox, left, partial(asyncio.wait, (leaving,)))
        return leaving

    def _leaves(self, sandbox: LiveSandbox) -> tuple[Process1Link, str]:
        assert sandbox.link is not None
        if sandbox.image is None:
            sandbox.expire_as_on_record()  # An earlier server has made it: only its process 1 knew what is left.
        return sandbox.link, sandbox.place_id

    def _go_on(self, sandbox: LiveSandbox, start: Coroutine[Any, Any, Ending | None]) -> None:
        self._registry.save(sandbox.record)
        self._egress.close(sandbox.sandbox_id)
        sandbox.restart = asyncio.create_task(start, name=f"next start of {sandbox.sandbox_id}")
        sandbox.spawn(sandbox.restart)

    def _depart(self, sandbox: LiveSandbox, place_id: str, end: Callable[[], Awaitable[Any]]) -> None:
        async def depart() -> None:
            await end()
            await self._lifecycle.destroy(place_id)

        departure = asyncio.create_task(depart(), name=f"departure from {place_id}")
        sandbox.departures.add(departure)
        departure.add_done_callback(sandbox.departures.discard)
        sandbox.spawn(departure)

    async def _end(self, sandbox: LiveSandbox, link: Process1Link, place_id: str, kept: Flag) -> None:
        """End what was there before a reset. Results that are there and have not arrived are kept."""
        try:
            if not link.active_execs():
                self._backend.kill(place_id)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(STOP_SLACK_SECONDS):
                        await link.stop(0)
                await self._lifecycle.keep_results(sandbox, place_id)
        finally:
            kept.set()
            link.let_go(Ended(reason="reset"))

    async def _arrive(self, sandbox: LiveSandbox, leaving: asyncio.Task[StoredImage]) -> Ending | None:
        """Start it over its layer; returns its ending where it does not."""
        await asyncio.wait((leaving,))
        if leaving.cancelled() or (error := leaving.exception()) is not None:
            return lost("its layer could not be had" if leaving.cancelled() else f"its layer could not be had: {error}")
        assert sandbox.record.lies_over is not None
        sandbox.image = self._backend.resolve_image(sandbox.record.lies_over)
        sandbox.record = sandbox.record.but(moving=None)
        return await self._lifecycle.start(sandbox)
