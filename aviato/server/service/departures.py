"""Departures: a sandbox goes on in another place, while what was in the one before ends."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from aviato.exceptions import AviatoError
from aviato.server.link.ended import Ended, SandboxGone
from aviato.server.service.lifecycle import STOP_SLACK_SECONDS
from aviato.server.states import lost
from aviato.wire.ids import derived_place_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from aviato.server.backends.base import Backend, ResolvedImage
    from aviato.server.images.image_snapshots import NewSnapshot
    from aviato.server.images.stored_image import StoredImage
    from aviato.server.link.at_rest import Done
    from aviato.server.link.link import Process1Link
    from aviato.server.service.egress import Egress
    from aviato.server.service.event import Event as Flag
    from aviato.server.service.lifecycle import Lifecycle
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.registry import Registry
    from aviato.server.service.snapshot_requests import SnapshotRequest
    from aviato.server.states import Ending

ANSWER_SECONDS = 1.0
AFTER_START_SECONDS = 0.01
"""So long the end of a place in which no command is waits for the start in the next, which has the processors to itself."""
TURNS = 4
"""Of the loop, in which whoever waits for a snapshot is answered, before the sandbox begins anew."""


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

    def reset(self, sandbox: LiveSandbox, place_id: str, image: ResolvedImage, secrets: dict[str, str]) -> None:
        """Let it begin anew, in another place.

        Args:
            sandbox: it runs.
            place_id: of that place.
            image: that it begins with.
            secrets: environment variables that it has.
        """
        link, left = self._leaves(sandbox)
        kept = sandbox.begin_anew(place_id, image, secrets)  # On record once it begins there, before its old place ends.
        link.abandon(Ended(reason="reset"))
        done = asyncio.create_task(_done(link), name=f"what was done in {left}")
        self._go_on(sandbox, done, self._lifecycle.start(sandbox))
        self._depart(sandbox, left, partial(self._end, sandbox, link, left, kept, done))

    def move(self, sandbox: LiveSandbox, done: Done, request: SnapshotRequest, new: NewSnapshot) -> asyncio.Task[StoredImage]:
        """Let it go on in another place, over its own layer. Nothing runs in it.

        Args:
            sandbox: it runs.
            done: what must not happen there again.
            request: for the snapshot that its layer becomes.
            new: the same, as the store takes it.
        """
        link, left = self._leaves(sandbox)
        place_id = derived_place_id(sandbox.sandbox_id, request.snapshot_id)
        sandbox.move(place_id, request.snapshot_id, request.to_json(left))
        self._registry.save(sandbox.record)
        link.let_go(Ended(reason="reset"))  # Its life waits for that, to watch the next.
        leaving = asyncio.create_task(self._backend.leave_layer(left, new), name=f"layer of {left}")
        sandbox.spawn(leaving)
        known: asyncio.Future[Done | None] = asyncio.get_running_loop().create_future()
        known.set_result(done)
        self._go_on(sandbox, known, self._arrive(sandbox, leaving))
        self._depart(sandbox, left, partial(asyncio.wait, (leaving,)))
        return leaving

    def _leaves(self, sandbox: LiveSandbox) -> tuple[Process1Link, str]:
        assert sandbox.link is not None
        if sandbox.image is None:
            sandbox.expire_as_on_record()  # An earlier server has made it: only its process 1 knew what is left.
        return sandbox.link, sandbox.place_id

    def _go_on(
        self, sandbox: LiveSandbox, done: asyncio.Future[Done | None], start: Coroutine[Any, Any, Ending | None]
    ) -> None:
        sandbox.done = done
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

    async def _end(
        self, sandbox: LiveSandbox, link: Process1Link, place_id: str, kept: Flag, done: asyncio.Task[Done | None]
    ) -> None:
        """End what was there before a reset. Results that are there and have not arrived are kept."""
        try:
            await asyncio.wait((done,))
            if not link.active_execs():
                assert sandbox.restart is not None
                await asyncio.wait((sandbox.restart,), timeout=AFTER_START_SECONDS)
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
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if leaving.cancelled() or (error := leaving.exception()) is not None:
            return lost("its layer could not be had" if leaving.cancelled() else f"its layer could not be had: {error}")
        assert sandbox.record.lies_over is not None
        sandbox.image = self._backend.resolve_image(sandbox.record.lies_over)
        sandbox.record = sandbox.record.but(moving=None)
        return await self._lifecycle.start(sandbox)


async def _done(link: Process1Link) -> Done | None:
    """What must not happen again; None where its process 1 does not say so soon: it goes in any case."""
    with suppress(TimeoutError, AviatoError, SandboxGone):
        async with asyncio.timeout(ANSWER_SECONDS):
            said = await link.rest(at_end=True)
            return None if said is None else said.done
    return None
