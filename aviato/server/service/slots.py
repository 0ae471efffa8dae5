"""Who may start now, kept up to date by events, and whom to release so that others may."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxResourceExhaustedError
from aviato.server.admission import RETRY_DELAY_SECONDS, Admission, to_release
from aviato.wire.sandboxes import QueueInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from aviato.server.service.live_sandbox import LiveSandbox
    from aviato.server.service.registry import Registry

log = logging.getLogger(__name__)

QUEUED_BYTES = 256 << 20
"""Of requests that wait, which can hold files. Small ones are not counted."""
SMALL_REQUEST_BYTES = 64 << 10
RATE_SAMPLES = 64
REFUSED_SAMPLES = 512
RATE_SECONDS = 30.0
"""What began longer ago says nothing of how fast the queue moves."""


class Slots:
    """The admission of living sandboxes.

    Args:
        admission: the queue and the limits.
        registry: the living sandboxes.
    """

    def __init__(self, admission: Admission, registry: Registry) -> None:
        self.admission = admission
        self._registry = registry
        self._holders: Counter[tuple[str | None, str]] = Counter()
        self._leaving: set[str] = set()
        self._queued_bytes: dict[str, int] = {}
        self._begun: deque[float] = deque(maxlen=RATE_SAMPLES)
        self._refused: deque[float] = deque(maxlen=REFUSED_SAMPLES)
        self.on_quiet: Callable[[], object] = bool
        """Called when none is starting any more."""

    def join(self, sandbox: LiveSandbox) -> None:
        """Wait for a place; `sandbox.place` resolves when it is there."""
        if (size_bytes := len(sandbox.record.body or "")) > SMALL_REQUEST_BYTES:
            self._queued_bytes[sandbox.sandbox_id] = size_bytes
        is_ready = sandbox.image is None or sandbox.image.is_here
        image = "" if sandbox.image is None else sandbox.image.reference
        self.admission.enqueue(sandbox.sandbox_id, *_line(sandbox), image=image, is_ready=is_ready)
        self.update()

    def image_is_here(self, sandbox: LiveSandbox) -> None:
        """It has waited for its image, and waits for a place from now on."""
        self.admission.now_ready(sandbox.sandbox_id)
        self.update()

    def check_room(self, owner: str | None, client: str, size_bytes: int = 0) -> None:
        """See whether one more of a client's may wait, with a request of this size.

        Raises:
            SandboxResourceExhaustedError: too many do, or with too much.
        """
        if not self.admission.has_room(owner, client):
            now = time.monotonic()
            refused = sum(at > now - 1.0 for at in self._refused)
            self._refused.append(now)
            self.admission.check_room(owner, client, per_second=self._rate(), refused_per_second=refused)
        if size_bytes > SMALL_REQUEST_BYTES and (queued := sum(self._queued_bytes.values())) + size_bytes > QUEUED_BYTES:
            raise SandboxResourceExhaustedError(
                f"the sandboxes that wait have {queued >> 20} MiB of files with them, and may have {QUEUED_BYTES >> 20}; "
                "write_file() adds files once a sandbox runs",
                retry_delay_seconds=RETRY_DELAY_SECONDS,
            )

    def hold(self, sandbox: LiveSandbox) -> None:
        """Take a place at once: it was found alive."""
        self.admission.hold(sandbox.sandbox_id)
        self._holders[_holder(sandbox)] += 1

    def started(self, sandbox: LiveSandbox) -> None:
        """It runs: another may begin to start."""
        self.admission.started(sandbox.sandbox_id)
        self.update()
        if not self.admission.in_flight:
            self.on_quiet()

    def leaving(self, sandbox: LiveSandbox) -> None:
        """It was told to end, so its place will be free without releasing another."""
        if self.admission.holds(sandbox.sandbox_id):
            self._leaving.add(sandbox.sandbox_id)

    def gone(self, sandbox: LiveSandbox) -> None:
        """It has ended."""
        self._leaving.discard(sandbox.sandbox_id)
        self._queued_bytes.pop(sandbox.sandbox_id, None)
        if self.admission.holds(sandbox.sandbox_id):
            self._holders[_holder(sandbox)] -= 1
            if self._holders[_holder(sandbox)] <= 0:
                del self._holders[_holder(sandbox)]
        self.admission.gone(sandbox.sandbox_id)
        self.update()

    def update(self) -> None:
        """Give out what is free; release let-go sandboxes where that is not enough."""
        if not self.admission.waiting:
            return
        for sandbox_id in self.admission.admit():
            sandbox = self._registry.live[sandbox_id]
            self._begun.append(time.monotonic())
            self._queued_bytes.pop(sandbox_id, None)
            self._holders[_holder(sandbox)] += 1
            if not sandbox.place.done():
                sandbox.place.set_result(None)
        wanted = self.admission.missing() - len(self._leaving)
        if wanted > 0 and self._registry.let_go:
            self._release_oldest(wanted)

    def use(self, sandbox: LiveSandbox) -> Use:
        """Context in which a request uses a sandbox: it is not released meanwhile."""
        return Use(self, sandbox)

    def queue_of(self, sandbox: LiveSandbox) -> QueueInfo | None:
        """Where a sandbox waits; None if it does not."""
        position = self.admission.position(sandbox.sandbox_id)
        if position is None:
            return None
        holders: Counter[str] = Counter()
        for (owner, holder), count in self._holders.items():
            # A tenant is told of its own processes alone.
            holders[holder if sandbox.record.owner in (None, owner) else "others"] += count
        return QueueInfo(position=position, live=self.admission.live, limit=self.admission.limit, holders=dict(holders))

    def _rate(self) -> float | None:
        """How many have begun a second of late; None while that is not known."""
        now = time.monotonic()
        lately = [at for at in self._begun if at > now - RATE_SECONDS]
        return len(lately) / max(0.01, now - lately[0]) if len(lately) > 1 else None

    def _release_oldest(self, wanted: int) -> None:
        let_go = self._registry.let_go
        candidates = [(sandbox.record.created_at, sandbox_id) for sandbox_id, sandbox in let_go.items() if sandbox.releasable]
        for sandbox_id in to_release(candidates, wanted):
            log.info("sandbox %s is released: it was let go and its place is needed", sandbox_id)
            let_go[sandbox_id].ask_to_end("released")


class Use:
    """A request that uses a sandbox, see `Slots.use`."""

    __slots__ = ("_sandbox", "_slots")

    def __init__(self, slots: Slots, sandbox: LiveSandbox) -> None:
        self._slots, self._sandbox = slots, sandbox

    def __enter__(self) -> None:
        self._sandbox.calls += 1

    def __exit__(self, *error: object) -> None:
        self._sandbox.calls -= 1
        if self._sandbox.record.let_go and self._sandbox.calls == 0:
            self._slots.update()


def _line(sandbox: LiveSandbox) -> tuple[str | None, str]:
    """Whose turn it takes in the queue."""
    return sandbox.record.owner, sandbox.record.lease_id or sandbox.client


def _holder(sandbox: LiveSandbox) -> tuple[str | None, str]:
    return sandbox.record.owner, sandbox.holder
