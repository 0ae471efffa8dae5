"""Who may start now: capacity, a fair queue with positions, and whom to release under pressure. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aviato.exceptions import SandboxResourceExhaustedError
from aviato.server.fair_queue import FairQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

QUEUE_BOUND = 10_000
RETRY_DELAY_SECONDS = 5.0
SHORTEST_RETRY_DELAY_SECONDS = 0.25
CREATES_PER_CORE = 4
LEAST_CAPACITY = 8
MOST_CAPACITY = 2_000
_RESERVE_BYTES = 1 << 30
_BYTES_PER_SANDBOX = 16 << 20
_Line = tuple[str | None, str, str]
"""Of those who wait for one image: owner, client, image."""


@dataclass(frozen=True, kw_only=True)
class HostRoom:
    """What the machine has left; None: no limit known.

    Attributes:
        memory_available_bytes: `MemAvailable`, or what the server's control group has left, if that is less.
        live: sandboxes alive at that moment, whose memory counts as available to sandboxes.
        processes_max: `pids.max` of the server's control group.
        open_files_max: the server's limit of open files.
    """

    memory_available_bytes: int | None = None
    live: int = 0
    processes_max: int | None = None
    open_files_max: int | None = None


def capacity(room: HostRoom) -> int:
    """How many sandboxes may live at once."""
    bounds = [MOST_CAPACITY]
    if room.memory_available_bytes is not None:
        held = room.live * _BYTES_PER_SANDBOX
        bounds.append((room.memory_available_bytes + held - _RESERVE_BYTES) // _BYTES_PER_SANDBOX)
    if room.processes_max is not None:
        bounds.append(room.processes_max // 8)
    if room.open_files_max is not None:
        bounds.append(room.open_files_max // 8)
    return max(LEAST_CAPACITY, min(bounds))


class Admission:
    """The queue and the places. An id waits, then holds a place and is in flight, then only holds the place, then is gone.

    Args:
        limit: how many sandboxes may live at once.
        in_flight_limit: how many of them may be starting at once.
        queue_bound: how many of one client's may wait. What others have waiting counts too, but whoever has little waiting
            is let in beyond it: all of an owner's clients together may have a quarter more, and all owners half as much again.
    """

    def __init__(self, *, limit: int, in_flight_limit: int, queue_bound: int = QUEUE_BOUND) -> None:
        self.limit = limit
        self.in_flight_limit = in_flight_limit
        self.queue_bound = queue_bound
        self._queue = FairQueue()
        self._unready = FairQueue()
        self._lines: dict[_Line, dict[str, bool]] = {}
        self._line_of: dict[str, _Line] = {}
        self._live: set[str] = set()
        self._in_flight: set[str] = set()

    @property
    def live(self) -> int:
        """How many places are held."""
        return len(self._live)

    @property
    def in_flight(self) -> int:
        """How many are starting."""
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queue)

    def has_room(self, owner: str | None = None, client: str = "") -> bool:
        """Whether one more may come."""
        # The more is taken the less may one have, so that there is always room for who has nothing waiting.
        own, of_owner = self._count(owner, client), self._count(owner)
        all_of_them = len(self._queue) + len(self._unready)
        return own < 4 * (1.25 * self.queue_bound - of_owner) and of_owner < 5 * (1.5 * self.queue_bound - all_of_them)

    def _count(self, owner: str | None, client: str | None = None) -> int:
        return self._queue.count(owner, client) + self._unready.count(owner, client)

    def check_room(
        self, owner: str | None = None, client: str = "", *, per_second: float | None = None, refused_per_second: float = 0.0
    ) -> None:
        """See whether one more may come.

        Args:
            owner: whose it would be.
            client: which of the owner's.
            per_second: how many have lately begun, where that is known.
            refused_per_second: how many have lately been refused.

        Raises:
            SandboxResourceExhaustedError: the queue is full; it carries the delay before the next try.
        """
        if self.has_room(owner, client):
            return
        waiting, own = len(self._queue) + len(self._unready), self._count(owner, client)
        delay = RETRY_DELAY_SECONDS
        if per_second:
            # A queue that is half empty by then never runs dry while its clients wait. Where that is soon, twice as many as can
            # begin shall come: more would only be refused again, and fewer would leave places empty.
            soon = max(self.queue_bound, refused_per_second) / 2 / per_second
            delay = max(SHORTEST_RETRY_DELAY_SECONDS, min(delay, soon))
        raise SandboxResourceExhaustedError(
            f"the queue is full: {waiting} sandboxes wait ({own} of this client) and {len(self._live)} of {self.limit} places "
            "are held",
            retry_delay_seconds=delay,
        )

    def enqueue(
        self, sandbox_id: str, owner: str | None = None, client: str = "", *, image: str = "", is_ready: bool = True
    ) -> None:
        """Wait behind the others of the same client; what is not ready counts, and has no turn before `now_ready`.

        Args:
            sandbox_id: whose turn it is.
            owner: whose it is.
            client: which of the owner's.
            image: what it waits for, if it is not ready. Those of one client and one image have their turns as they came,
                whoever of them is ready first: a client may use them in that order, and free no place before.
            is_ready: whether it needs a place alone.
        """
        line = owner, client, image
        if is_ready and line not in self._lines:
            self._queue.add(sandbox_id, owner, client)
            return
        self._unready.add(sandbox_id, owner, client)
        self._lines.setdefault(line, {})[sandbox_id] = is_ready
        self._line_of[sandbox_id] = line

    def now_ready(self, sandbox_id: str) -> None:
        """It waits like the others from now on, once those before it with its image do."""
        line = self._line_of[sandbox_id]
        self._lines[line][sandbox_id] = True
        self._pass_on(line)

    def _pass_on(self, line: _Line) -> None:
        """Let those at the head of a line wait for their turns that are ready."""
        waiting = self._lines[line]
        while (first := next(iter(waiting), None)) is not None and waiting[first]:
            del waiting[first], self._line_of[first]
            self._unready.remove(first)
            self._queue.add(first, *line[:2])
        if not waiting:
            del self._lines[line]

    def hold(self, sandbox_id: str) -> None:
        """Take a place without waiting: a sandbox found alive after a restart."""
        self._live.add(sandbox_id)

    def admit(self) -> list[str]:
        """The ids that may start now, in order; each then holds a place."""
        room = min(self.limit - len(self._live), self.in_flight_limit - len(self._in_flight), len(self._queue))
        admitted = [self._queue.pop() for _ in range(room)]
        self._live.update(admitted)
        self._in_flight.update(admitted)
        return admitted

    def started(self, sandbox_id: str) -> None:
        """It is no longer in flight, but keeps its place."""
        self._in_flight.discard(sandbox_id)

    def gone(self, sandbox_id: str) -> None:
        """It waits no more and holds nothing."""
        self._in_flight.discard(sandbox_id)
        self._live.discard(sandbox_id)
        self._queue.remove(sandbox_id)
        self._unready.remove(sandbox_id)
        line = self._line_of.pop(sandbox_id, None)
        if line is not None:
            del self._lines[line][sandbox_id]
            self._pass_on(line)

    def holds(self, sandbox_id: str) -> bool:
        """Whether it holds a place."""
        return sandbox_id in self._live

    def position(self, sandbox_id: str) -> int | None:
        """Its place in the queue, 1 is next; None if it does not wait."""
        return self._queue.position(sandbox_id)

    def missing(self) -> int:
        """How many places those who wait lack, beyond the free ones."""
        return max(0, len(self._queue) - max(0, self.limit - len(self._live)))


def to_release(candidates: Iterable[tuple[float, str]], wanted: int) -> list[str]:
    """The ids to end so that others may start: the `wanted` oldest of `(created_at, id)`."""
    if wanted <= 0:
        return []
    return [sandbox_id for _, sandbox_id in sorted(candidates)[:wanted]]
