"""Places that are ready before anybody asks for a sandbox.

A pool keeps so many of one kind. What is handed out is told its environment, directory and times then; it was made, and its
warm-up commands were run, off the way. Where none is ready, a sandbox starts as any other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from aviato.exceptions import AviatoError, SandboxResourceExhaustedError, SandboxUnavailableError
from aviato.server.backends.capabilities import Capability
from aviato.server.service.commands_of_server import warm_up
from aviato.server.service.specs import spec_of
from aviato.wire.errors import RequestConflictError
from aviato.wire.ids import new_place_id, new_sandbox_id
from aviato.wire.pools import PoolInfo
from aviato.wire.sandboxes import CreateSandbox

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from aviato.server.backends.base import Backend, SandboxSpec
    from aviato.server.callers import Caller
    from aviato.server.images.resolved import ResolvedImage
    from aviato.server.link.link import Process1Link
    from aviato.server.service.egress import Egress
    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.slots import Slots
    from aviato.wire.pools import MakePool

log = logging.getLogger(__name__)

ORPHAN_SECONDS = 60.0
"""How long what is ready waits for a server; the next one makes its own."""
KEPT_SECONDS = 90.0
"""How long a pool stays without a word of its client."""
UNUSED_SECONDS = 600.0
"""After so long without a claim a pool halves what it keeps; the next claim brings it back."""
AGAIN_SECONDS = 10.0
"""After a failure."""
BREATH_SECONDS = 0.02
"""Before a pool that has enough is filled up: who has just claimed one runs a first command in it."""
MOST_POOLS_OF_A_KEY = 16


class _Kind(NamedTuple):
    """What a place is made with; places of the same kind differ in what they are told then."""

    image: ResolvedImage
    rest: tuple[Hashable, ...]


class Warm(NamedTuple):
    """A place that is ready."""

    place_id: str
    link: Process1Link


@dataclass(eq=False, slots=True, kw_only=True)
class _Pool:
    """One kind of place.

    Attributes:
        pool_id: by which sandboxes ask for it; None: for all that want its kind.
        owner: whose it is.
        size: how many it may keep.
        wanted: how many it keeps now.
        request: of its sandboxes.
        ready: what can be handed out, the oldest first.
        making: how many are on their way.
        message: why there are none, if that is so.
        kind: of what is ready; None: nothing is.
        expires_at: when it goes, by the monotonic clock; None: with the server.
    """

    pool_id: str | None
    owner: str | None
    size: int
    wanted: int
    request: CreateSandbox
    ready: deque[Warm] = field(default_factory=deque)
    making: int = 0
    message: str | None = None
    expires_at: float | None = None
    claimed_at: float = field(default_factory=time.monotonic)
    filling: asyncio.Task[None] | None = None
    kind: _Kind | None = None


class WarmPools:
    """The pools of a server.

    Args:
        backend: makes the places.
        slots: tell how many more there may be, and who goes before.
        egress: is the way to the network.
    """

    def __init__(self, backend: Backend, slots: Slots, egress: Egress) -> None:
        self._backend = backend
        self._slots = slots
        self._egress = egress
        self._own: dict[str, _Pool] = {}
        """Of clients, by id."""
        self._common: list[_Pool] = []
        """For all."""
        self._endings: set[asyncio.Task[None]] = set()
        self._fillings: set[asyncio.Task[None]] = set()
        self._closed = False
        slots.on_quiet = self._fill_all

    def serve(self, warm: Mapping[str, int]) -> None:
        """Keep these for all: images, and how many of each."""
        for image, size in warm.items():
            request = CreateSandbox(sandbox_id=new_sandbox_id(), detached=True, image=image)
            pool = _Pool(pool_id=None, owner=None, size=size, wanted=size, request=request)
            self._common.append(pool)
            self._fill(pool)

    def make(self, pool_id: str, request: MakePool, caller: Caller) -> PoolInfo:
        """Have a pool, or one for longer: a client says again and again that it needs it.

        Raises:
            RequestConflictError: it is another caller's, or of another kind.
            SandboxResourceExhaustedError: the caller has too many.
            AviatoValidationError: the backend keeps none ready.
            AviatoError: sandboxes of this kind cannot be had.
        """
        pool = self._own.get(pool_id)
        if pool is None:
            self._backend.require(Capability.POOLS, "pool")
            if (
                caller.tenant is not None
                and sum(one.owner == caller.tenant for one in self._own.values()) >= MOST_POOLS_OF_A_KEY
            ):
                message = f"this API key has {MOST_POOLS_OF_A_KEY} pools, and may have no more"
                raise SandboxResourceExhaustedError(message, reason="key_limit")
            size = min(request.size, caller.max_sandboxes or request.size)
            pool = _Pool(pool_id=pool_id, owner=caller.tenant, size=size, wanted=size, request=request.sandbox)
            self._own[pool_id] = pool
        elif pool.owner != caller.tenant or _said(pool.request) != _said(request.sandbox):
            raise RequestConflictError(f"{pool_id} was used before for another pool")
        pool.expires_at = time.monotonic() + KEPT_SECONDS
        if pool.message is None:
            self._fill(pool)
        return self._info(pool)

    def remove(self, pool_id: str, caller: Caller) -> None:
        """Take a pool away; what was handed out goes on. One that is not there is fine."""
        pool = self._own.get(pool_id)
        if pool is not None and pool.owner == caller.tenant:
            self._drop(pool_id, pool)

    def take(self, sandbox: LiveSandbox, spec: SandboxSpec) -> Warm | None:
        """A place that is ready for a sandbox, if there is one."""
        pool = self._pool_of(sandbox, spec)
        if pool is None:
            return None
        pool.claimed_at, pool.wanted = time.monotonic(), pool.size
        found = None
        while pool.ready and found is None:
            warm = pool.ready.popleft()
            if warm.link.ended() is None:
                found = warm
            else:
                self._end(*warm)
        self._fill(pool)
        return found

    def tick(self) -> None:
        """Take away what nobody needs any more, and make what is missing."""
        now = time.monotonic()
        for pool_id, pool in list(self._own.items()):
            if pool.expires_at is not None and pool.expires_at <= now:
                self._drop(pool_id, pool)
        room = self._slots.admission.limit - self._slots.admission.live
        for pool in self._pools():
            if now - pool.claimed_at > UNUSED_SECONDS and pool.wanted > 1:
                pool.claimed_at, pool.wanted = now, (pool.wanted + 1) // 2
            self._renew(pool)
            self._empty(pool, max(0, min(pool.wanted, room)))
            for warm in [one for one in pool.ready if one.link.ended() is not None]:
                pool.ready.remove(warm)
                self._end(*warm)
            room -= len(pool.ready)
            self._fill(pool)

    @property
    def is_used(self) -> bool:
        """Whether a client keeps a pool."""
        return bool(self._own)

    @property
    def kept(self) -> int:
        """How many places are ready or on their way."""
        return sum(len(pool.ready) + pool.making for pool in self._pools())

    async def close(self) -> None:
        """Take away all that nobody has."""
        self._closed = True
        filling = list(self._fillings)
        for task in filling:
            task.cancel()
        await asyncio.gather(*filling, return_exceptions=True)
        for pool in self._pools():
            self._empty(pool, 0)
        if self._endings:
            await asyncio.wait(self._endings)

    def _pools(self) -> list[_Pool]:
        return [*self._common, *self._own.values()]

    def _pool_of(self, sandbox: LiveSandbox, spec: SandboxSpec) -> _Pool | None:
        pool_id = sandbox.request.pool_id
        if pool_id is not None:
            pool = self._own.get(pool_id)
            fits = pool is not None and pool.owner == sandbox.record.owner and pool.kind == _kind(spec)
            return pool if fits and pool is not None and _warmed(pool.request) == _warmed(sandbox.request) else None
        if sandbox.request.warmup or not self._common:
            return None
        return next((pool for pool in self._common if pool.kind == _kind(spec)), None)

    def _fill_all(self) -> None:
        for pool in self._pools():
            self._fill(pool)

    def _info(self, pool: _Pool) -> PoolInfo:
        return PoolInfo(pool_id=str(pool.pool_id), size=pool.size, ready=len(pool.ready), message=pool.message)

    def _fill(self, pool: _Pool) -> None:
        if self._closed or len(pool.ready) >= pool.wanted:
            return
        if pool.filling is None or pool.filling.done():
            pool.filling = asyncio.create_task(self._filled(pool), name=f"fill the pool {pool.pool_id or pool.request.image}")
            self._fillings.add(pool.filling)
            pool.filling.add_done_callback(self._fillings.discard)

    async def _filled(self, pool: _Pool) -> None:
        """Make what is missing, a few at a time."""
        try:
            if 2 * len(pool.ready) >= pool.wanted:
                await asyncio.sleep(BREATH_SECONDS)
            done = await asyncio.gather(*(self._make_some(pool) for _ in range(os.cpu_count() or 1)), return_exceptions=True)
            for error in done:
                if error is not None:
                    raise error
            pool.message = None
        except (AviatoError, OSError) as error:
            if pool.message is None:
                log.warning("the pool %s has no sandboxes ready: %s", pool.pool_id or pool.request.image, error)
            pool.message = str(error)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _make_some(self, pool: _Pool) -> None:
        while self._is_short(pool):
            pool.making += 1
            try:
                warm, kind = await self._made(pool)
            finally:
                pool.making -= 1
            if self._is_there(pool) and pool.kind == kind:
                pool.ready.append(warm)
            else:
                self._end(*warm)

    def _is_there(self, pool: _Pool) -> bool:
        """Whether nobody has taken the pool away."""
        return pool.pool_id is None or self._own.get(pool.pool_id) is pool

    def _is_short(self, pool: _Pool) -> bool:
        if not self._is_there(pool):
            return False
        admission = self._slots.admission
        # Who starts, or waits for that, goes before.
        has_room = not admission.waiting and not admission.in_flight and admission.live + self.kept < admission.limit
        return has_room and len(pool.ready) + pool.making < pool.wanted

    async def _made(self, pool: _Pool) -> tuple[Warm, _Kind]:
        resolved = self._backend.resolve_image(pool.request.image, fallback=pool.request.image_fallback)
        image = await self._backend.fetch_image(resolved)
        place_id = new_place_id()
        spec = spec_of(pool.request, image, place_id, max_lifetime_seconds=None, orphan_timeout_seconds=ORPHAN_SECONDS)
        if pool.kind != (kind := _kind(spec)):
            # Its image is another one by now: what is ready is of the one before.
            self._empty(pool, 0)
            pool.kind = kind
        link = None
        try:
            link = await self._created(spec)
            await self._egress.attach_place(place_id, pool.request)
            await warm_up(link, pool.request.warmup)
        except BaseException:
            self._end(place_id, link)
            raise
        made_of = self._backend.image_in(place_id)
        if made_of is not None and made_of.image_id != image.image_id:
            kind = _kind(replace(spec, image=made_of))  # Somebody has removed that one, and its name means this one by now.
        return Warm(place_id, link), kind

    async def _created(self, spec: SandboxSpec) -> Process1Link:
        try:
            async with asyncio.timeout(self._backend.start_seconds):
                return await self._backend.create(spec)
        except TimeoutError:
            message = self._backend.too_long(spec.sandbox_id)
            raise SandboxUnavailableError(message, sandbox_id=spec.sandbox_id, reason="start_failed") from None

    def _renew(self, pool: _Pool) -> None:
        """Take away what is ready of another image than its reference means by now, as after a pull of a tag that has moved."""
        if pool.kind is None:
            return
        with suppress(AviatoError, OSError):
            image = self._backend.resolve_image(pool.request.image, fallback=pool.request.image_fallback)
            # One that is not here any more comes again with the next place.
            if image.is_here and image.without_names != pool.kind.image:
                pool.kind = None
                self._empty(pool, 0)

    def _drop(self, pool_id: str, pool: _Pool) -> None:
        """What is ready of a pool, and what is on its way, is nobody's any more."""
        del self._own[pool_id]
        if pool.filling is not None:
            pool.filling.cancel()
        self._empty(pool, 0)

    def _empty(self, pool: _Pool, most: int) -> None:
        while len(pool.ready) > most:
            self._end(*pool.ready.pop())

    def _end(self, place_id: str, link: Process1Link | None) -> None:
        """Take a place away that nobody has."""
        self._egress.close(place_id)
        if link is not None:
            self._backend.kill(place_id)
            link.detach()
        task = asyncio.create_task(self._destroy(place_id))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _destroy(self, place_id: str) -> None:
        with suppress(AviatoError, OSError, TimeoutError):
            await self._backend.destroy(place_id)


def _kind(spec: SandboxSpec) -> _Kind:
    rest = (spec.packages, spec.mounted_files, spec.exposes_ports, spec.egress_port)
    return _Kind(spec.image.without_names, (*rest, tuple(spec.requests.items()), tuple(spec.limits.items())))


def _warmed(request: CreateSandbox) -> Hashable:
    """What its warm-up depends on."""
    mode = request.egress_mode or "none"
    return tuple(map(tuple, request.warmup)), tuple(mode) if isinstance(mode, list) else mode


def _said(request: CreateSandbox) -> dict[str, object]:
    return request.model_dump(exclude={"sandbox_id", "lease_id", "pool_id"})
